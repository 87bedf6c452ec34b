"""A real HTTP server on loopback that speaks vLLM's wire protocol, over a tiny model.

It generates from the token ids it is given, with the adapters that were loaded by its own endpoints, so that
a stale adapter, a lost token or a wrong log-probability would be seen.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from peft import PeftModel

from art_trainer.inference.sampling import SamplingParams, penalize_repetition, sample
from art_trainer.models.cache_name import CACHE_NAME
from tests.art_trainer.tiny_models import full_logprobs
from tests.wrappers.judging.judge_server import JudgeServer, Reply

HANG = Reply(hang=True)


class Refusal(Exception):
    """A request answered with an error."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status)
        self.status, self.body = status, body


class EngineServer(JudgeServer):
    """Serves one base model and its adapters.

    Args:
        base: The model.
        root: The folder it says to have it from.
        limit: Its ``max_model_len``.
        raw_logprobs: Whether log-probs are reported before temperature and filters, vLLM's default.

    Attributes:
        failures: By path, what the next requests are answered with instead.
        edit: Changes answers on their way out.
        asleep: Whether the server sleeps; ``None`` if it cannot, which is a server's default.
        fault: What the server does wrong, in the words of the error that should say so.
    """

    def __init__(
        self,
        base: torch.nn.Module,
        *,
        root: str = "/models/tiny",
        limit: int | None = 512,
        raw_logprobs: bool = False,
    ) -> None:
        self.base, self.name, self.root, self.limit, self.raw = base, "tiny", root, limit, raw_logprobs
        self.adapters: dict[str, torch.nn.Module] = {}
        self.fault = ""
        self.asleep: bool | None = None
        self.caches: dict[tuple[int, ...], Any] = {}
        self.failures: dict[str, list[Reply]] = {}
        self.edit: Callable[[str, Any], Any] = lambda path, answer: answer
        self._computing = threading.Lock()
        super().__init__(self._reply)
        self.url = self.url.removesuffix("/v1")

    def bodies(self, path: str) -> list[Any]:
        """The bodies of all requests to a path."""
        return [body for other, body in zip(self.paths, self.requests, strict=True) if other == path]

    def _reply(self, number: int, body: Any) -> Reply:
        path = self.paths[number]
        if self.failures.get(path):
            return self.failures[path].pop(0)
        try:
            return Reply(self.answer(path, body))
        except Refusal as refusal:
            return Reply(refusal.body, refusal.status)

    def answer(self, path: str, body: Any) -> Any:
        routes: dict[str, Callable[[Any], Any]] = {
            "/v1/models": self._models,
            "/v1/completions": self._vllm,
            "/v1/load_lora_adapter": self._load_vllm,
            "/v1/unload_lora_adapter": self._unload,
        }
        if self.asleep is not None:
            routes |= {"/sleep?level=1": self._sleep, "/wake_up": self._wake}
        if self.asleep and path != "/wake_up":
            raise Refusal(500, {"error": {"message": "the engine is asleep"}})
        if path not in routes:
            raise Refusal(404, {"detail": "Not Found"})
        with self._computing:
            return self.edit(path, routes[path](body))

    def _models(self, body: None) -> Any:
        base = {"id": self.name, "root": self.root, "parent": None, "max_model_len": self.limit}
        loaded = [{"id": name, "root": "x", "parent": self.name} for name in self.adapters]
        return {"object": "list", "data": [base, *loaded]}

    def _load_vllm(self, body: Any) -> str:
        name = body["lora_name"]
        if name in self.adapters and not body.get("load_inplace"):
            raise Refusal(400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}})
        self._load(name, body["lora_path"])
        return f"Success: LoRA adapter '{name}' added successfully."

    def _load(self, name: str, path: str) -> None:
        before = list(self.adapters.values())
        adapter: torch.nn.Module = PeftModel.from_pretrained(copy.deepcopy(self.base), path).eval()
        if self.fault == "another dtype":
            for weight in adapter.parameters():
                weight.data = weight.data.to(torch.float8_e4m3fn).float()
        elif self.fault == "the adapter is ignored":
            adapter = self.base
        elif self.fault == "other weights":
            for module in adapter.modules():
                if hasattr(module, "lora_A"):
                    module.scaling["default"] *= 2
        self.adapters[name] = before[-1] if self.fault == "stale weights" else adapter

    def _unload(self, body: Any) -> Any:
        if self.adapters.pop(body["lora_name"], None) is None:
            raise Refusal(404, {"error": {"message": "cannot be found"}})
        return {"success": True}

    def _sleep(self, body: Any) -> str:
        self.asleep = True
        return ""

    def _wake(self, body: Any) -> str:
        self.asleep = False
        return ""

    def _vllm(self, body: Any) -> Any:
        if body["model"] != self.name and body["model"] not in self.adapters:
            raise Refusal(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
        tokens, logprobs, finish = self._generate(self.adapters.get(body["model"]), body["prompt"], body)
        choice: dict[str, Any] = {"index": 0, "text": "not read", "finish_reason": finish}
        if body["return_token_ids"]:
            choice |= {"token_ids": tokens, "prompt_token_ids": body["prompt"]}
        if body["logprobs"] is not None:
            choice["logprobs"] = {"token_logprobs": logprobs}
        return {"model": body["model"], "choices": [choice]}

    def _generate(
        self, adapter: torch.nn.Module | None, prompt: list[int], asked: Mapping[str, Any]
    ) -> tuple[list[int], list[float], str]:
        model = self.base if adapter is None else adapter
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        sampling = SamplingParams(**{name: asked[name] for name in names}, max_new_tokens=asked["max_tokens"])
        if self.limit is not None and len(prompt) + sampling.max_new_tokens > self.limit:
            raise Refusal(400, {"error": {"message": f"maximum context length is {self.limit} tokens"}})
        if self.fault == "a wrong template":
            prompt = prompt[1:]
        if self.fault == "filters of its own":
            sampling = replace(sampling, top_k=20)
        tokens, logprobs, ended = list(prompt), list[float](), False
        with torch.inference_mode():
            cache = getattr(model(torch.tensor([prompt[:-1]]), use_cache=True), CACHE_NAME)
            kept = self.caches.setdefault(tuple(prompt), copy.deepcopy(cache))
            if self.fault == "a stale prefix cache":
                cache = copy.deepcopy(kept)
            for uniform in np.random.default_rng(asked.get("seed")).random(
                sampling.max_new_tokens, np.float32
            ):
                logits = model(torch.tensor([tokens[-1:]]), **{CACHE_NAME: cache}).logits[:, -1]
                logits = penalize_repetition(logits, [tokens], sampling.repetition_penalty)
                token, logprob = sample(logits, torch.tensor([uniform]), sampling)
                tokens, logprobs = tokens + token.tolist(), logprobs + logprob.tolist()
                if ended := tokens[-1] in asked["stop_token_ids"]:
                    break
        if self.raw or self.fault == "before filters":
            temperature = 1.0 if self.raw else sampling.temperature
            logprobs = full_logprobs(model, tuple(tokens), temperature)[len(prompt) - 1 :].tolist()
        return tokens[len(prompt) :], logprobs, "stop" if ended else "length"
