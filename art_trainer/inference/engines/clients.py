r"""Clients of inference engines that run as servers: token ids in, token ids and log-probs out.

An engine is a server that somebody started. It answers with the ids it sampled and the log-prob of each, so
that nothing is ever tokenised twice. Weights travel as a folder that both sides can read. Its name holds a
digest of the content, so that equal names are equal weights: a server's prefix cache is keyed by the name of
the adapter, and could otherwise serve keys and values of the version before.

Start vLLM so that it takes adapters, and reports the log-probs of what it really sampled from::

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL \
        --enable-lora --max-lora-rank 32 --logprobs-mode processed_logprobs

Start SGLang with room for adapters; to train all weights, without these flags::

    python -m sglang.launch_server --model-path MODEL \
        --enable-lora --max-lora-rank 32 --lora-target-modules all
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from art_gym.errors import did_you_mean
from art_trainer.errors import EngineError, EngineRequestError
from art_trainer.inference.engines.http import HttpClient
from art_trainer.inference.sampling import SamplingParams
from art_trainer.models.weights_io import SavedWeights

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A prompt and how to continue it."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...] = ()
    """All tokens that end the completion."""
    seed: int | None = None
    """Seed of the engine's randomness for this completion; ``None`` leaves it to the engine."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled."""

    token_ids: tuple[int, ...]
    """The tokens, the one that ended it included; at least one."""
    logprobs: tuple[float, ...]
    """The log-prob of each, as the engine reports it."""
    finish: Literal["stop", "length"]
    """Whether the last token ends it, or the limit of tokens was reached."""
    weights: str
    """The name of the weights that sampled it, as the engine has it."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that a server serves."""

    name: str
    """What requests call the model."""
    path: str
    """The folder or Hugging Face name it was loaded from."""
    context_limit: int | None
    """Most tokens of prompt and completion together, if the server reports it."""


class Engine(ABC):
    """Base of clients of inference servers. Methods may run many times at once, in one event loop.

    Attributes:
        asleep: Whether the server has freed its GPU's memory, and must be woken before it is asked.

    Args:
        url: The server's address, such as ``http://localhost:8000``.
        model: The model's name on the server; ``None`` for the one it was started with.
        **transport: ``api_key``, ``max_concurrency``, ``timeout``, ``max_retries`` and ``backoff`` of
            :class:`~art_trainer.inference.engines.http.HttpClient`.
    """

    kind: ClassVar[str]
    """The server's usual name."""
    full_weights: ClassVar[bool]
    """Whether :meth:`load` takes all weights of a model, or LoRA adapters only."""
    adapter_paths: ClassVar[tuple[str, str]]
    """HTTP paths that load and unload adapters."""
    already_loaded: ClassVar[str]
    """Part of the server's error message if an adapter's name is taken."""
    needs_lora: ClassVar[str]
    """How to start the server so that it takes adapters."""
    needs_logprobs: ClassVar[str]
    """How to start the server so that log-probs are those of the distribution sampled from."""

    def __init__(self, url: str, model: str | None = None, **transport: Any) -> None:
        self._http = HttpClient(url, **transport)
        self._model = model
        self._adapter: str | None = None
        self.asleep = False
        self.name = f"{self.kind.lower()}:{model or ''}@{self._http.url}"

    @abstractmethod
    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample one completion.

        Raises:
            EngineRequestError: If this request failed for good.
            EngineError: If the answer lacks what training needs; the message says what to set.
        """

    @abstractmethod
    async def load(self, weights: SavedWeights) -> None:
        """Sample with these weights from now on; loading what is already loaded changes nothing.

        Raises:
            EngineError: If the server does not take them; it keeps those it had.
        """

    async def sleep(self) -> None:
        """Have the server free its GPU's memory until :meth:`wake`, if it can; see :attr:`asleep`."""
        self.asleep = False

    async def wake(self) -> None:
        """Have the server take its memory again.

        Raises:
            EngineError: If it does not.
        """
        self.asleep = False

    @abstractmethod
    def cannot_report(self, sampling: SamplingParams) -> str | None:
        """Return why the server's log-probs are never those that the learner computes for this sampling."""

    async def served_model(self) -> ServedModel:
        """Return the model that requests name, by default the first that is no adapter of another.

        Raises:
            EngineError: If the server has none of that name.
            EngineRequestError: If the server does not answer.
        """
        url, wanted = self._http.url, self._model
        cards = (await self._http.get("/v1/models")).get("data")
        if not isinstance(cards, list) or not all(isinstance(card, dict) and "id" in card for card in cards):
            raise EngineError(f"{url}/v1/models lists no models: is it vLLM or SGLang?")
        named = [c for c in cards if (c.get("parent") is None if wanted is None else c["id"] == wanted)]
        if not named:
            names = [str(card["id"]) for card in cards]
            raise EngineError(
                f"{url} serves no model {wanted!r}{did_you_mean(str(wanted), names)}; it serves "
                f"{', '.join(names) or 'none'}"
            )
        card = named[0]
        # An adapter has the limit, and the tokenizer, of the model below it.
        base = next((other for other in cards if other["id"] == card.get("parent")), card)
        limit = base.get("max_model_len")
        path = str(base.get("root") or base["id"])
        return ServedModel(str(card["id"]), path, limit if type(limit) is int else None)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _load_adapter(self, weights: SavedWeights) -> None:
        """Load an adapter under its own name, and unload the one before."""
        load, unload = self.adapter_paths
        try:
            await self._http.send(load, {"lora_name": weights.name, "lora_path": str(weights.folder)})
        except EngineRequestError as fault:
            # Equal names are equal content: an attempt before this one, or run, has loaded it.
            if self.already_loaded not in str(fault):
                raise EngineError(
                    f"{self.kind} did not take the adapter {weights.folder}: {fault}; {self.needs_lora}"
                ) from fault
        before, self._adapter = self._adapter, weights.name
        if before is not None and before != weights.name:
            # It may be gone already, as after a restart.
            with contextlib.suppress(EngineRequestError):
                await self._http.send(unload, {"lora_name": before})


def distribution_fields(sampling: SamplingParams) -> dict[str, float]:
    """Return the fields of a request that decide the distribution, named alike by vLLM and SGLang.

    All are sent, since the server takes what is left out from the model's ``generation_config.json``.
    """
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


def check_completion(
    url: str, request: CompletionRequest, token_ids: Sequence[Any], logprobs: Sequence[Any], finish: object
) -> None:
    """Check a server's answer: nothing else may reach the learner.

    Raises:
        EngineError: Naming what is wrong with it.
    """
    limit = request.sampling.max_new_tokens
    if len(logprobs) != len(token_ids):
        raise EngineError(f"{url} sent {len(token_ids)} token ids with {len(logprobs)} log-probs")
    if not 0 < len(token_ids) <= limit:
        raise EngineError(f"{url} sent {len(token_ids)} tokens, but 1 to {limit} were asked for")
    if not all(type(token) is int and token >= 0 for token in token_ids):
        raise EngineError(f"{url} sent invalid token ids: {list(token_ids)[:8]}")
    for place, value in enumerate(logprobs):
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise EngineError(f"{url} sent {value!r} as the log-prob of token {place}, not a number")
    if finish not in ("stop", "length"):
        raise EngineError(f"{url} stopped a completion because of {finish!r}, not 'stop' or 'length'")


class VLLMEngine(Engine):
    """A vLLM server: ``/v1/completions`` with token ids both ways, which came with vLLM 0.10.2."""

    full_weights = False
    kind = "vLLM"
    adapter_paths = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
    already_loaded = "already been loaded"
    needs_lora = (
        "start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment, --enable-lora, and "
        "--max-lora-rank at least the adapter's; it must be able to read that folder"
    )
    needs_logprobs = "start vLLM with --logprobs-mode processed_logprobs"

    def __init__(self, url: str, model: str | None = None, **transport: Any) -> None:
        super().__init__(url, model, **transport)
        self._name_lock = asyncio.Lock()
        self._can_sleep = True

    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample one completion."""
        name = self._adapter or await self._model_name()
        return self._completion(request, name, await self._http.post(*self._request(request, name)))

    def _request(self, request: CompletionRequest, name: str) -> tuple[str, Any]:
        sampling = request.sampling
        body = {
            "model": name,
            "prompt": list(request.prompt_ids),
            "max_tokens": sampling.max_new_tokens,
            **distribution_fields(sampling),
            "stop_token_ids": list(request.stop_token_ids),
            "stop": list(sampling.stop_strings),
            "include_stop_str_in_output": True,
            "logprobs": 0,
            "return_token_ids": True,
            **({} if request.seed is None else {"seed": request.seed}),
        }
        return "/v1/completions", body

    async def load(self, weights: SavedWeights) -> None:
        """Load an adapter under its own name, and unload the one before."""
        if not weights.adapter:
            raise EngineError(
                "vLLM takes LoRA adapters over HTTP, not whole models: train an adapter (lora), or use SGLang"
            )
        await self._load_adapter(weights)

    async def sleep(self) -> None:
        """Free memory, if vLLM was started with ``VLLM_SERVER_DEV_MODE=1`` and ``--enable-sleep-mode``."""
        if not self._can_sleep or self.asleep:
            return
        try:
            await self._http.send("/sleep?level=1", {})  # weights wait in the machine's memory
        except EngineRequestError as fault:
            self._can_sleep = False
            if fault.status != 404:
                _log.warning("%s does not free its GPU's memory for updates: %s", self.name, fault)
        else:
            self.asleep = True

    async def wake(self) -> None:
        """Have vLLM take its memory again."""
        if self.asleep:
            try:
                await self._http.send("/wake_up", {})
            except EngineRequestError as fault:
                raise EngineError(f"{self.name} does not wake up: {fault}") from fault
            self.asleep = False

    async def aclose(self) -> None:
        """Wake the server, for others, and close the connections."""
        with contextlib.suppress(EngineError):
            await self.wake()
        await super().aclose()

    def cannot_report(self, sampling: SamplingParams) -> str | None:
        """Return why the server's log-probs are never the learner's for this sampling."""
        if sampling.top_p == 1 or sampling.min_p == 0:
            return None
        return "vLLM applies min_p before top_p, which keeps other tokens than the learner: set only one"

    async def _model_name(self) -> str:
        async with self._name_lock:
            if self._model is None:
                self._model = (await self.served_model()).name
        return self._model

    def _completion(self, request: CompletionRequest, name: str, answer: Mapping[str, Any]) -> Completion:
        url, choices = self._http.url, answer.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise EngineError(f"{url} answered without one choice: is this server vLLM?")
        choice = choices[0]
        token_ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
        if not isinstance(token_ids, list):
            raise EngineError(
                f"{url} answered without token ids, and training needs them: return_token_ids needs vLLM "
                "0.10.2 or newer; is this server vLLM?"
            )
        values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        if not isinstance(values, list):
            raise EngineError(
                f"{url} answered without log-probs, and training needs them: start vLLM with "
                "--max-logprobs at least 1"
            )
        if choice.get("prompt_token_ids") not in (None, list(request.prompt_ids)):
            raise EngineError(f"{url} read another prompt than it was sent: it must not add or cut tokens")
        weights = str(answer.get("model", name))
        # A server of a policy that is being trained (art-trainer serve) adds its version: NAME@VERSION.
        if weights != name and not weights.startswith(f"{name}@"):
            raise EngineError(f"{url} answered with {weights!r}, but {name!r} was asked for")
        finish: Any = choice.get("finish_reason")
        check_completion(url, request, token_ids, values, finish)
        return Completion(tuple(token_ids), tuple(map(float, values)), finish, weights)


class SGLangEngine(Engine):
    """An SGLang server: ``/generate`` with token ids both ways.

    Its log-probs are those of the tempered distribution, before top-k, top-p and min-p.
    It follows seeds only with ``--enable-deterministic-inference``.
    """

    full_weights = True
    kind = "SGLang"
    adapter_paths = ("/load_lora_adapter", "/unload_lora_adapter")
    already_loaded = "already"
    needs_lora = (
        "start SGLang with --enable-lora, --max-lora-rank at least the adapter's and --lora-target-modules "
        "all; it must be able to read that folder"
    )
    needs_logprobs = "start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB in its environment"

    def __init__(self, url: str, model: str | None = None, **transport: Any) -> None:
        super().__init__(url, model, **transport)
        self._whole: str | None = None

    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample one completion."""
        return self._completion(request, await self._http.post(*self._request(request)))

    def _request(self, request: CompletionRequest) -> tuple[str, Any]:
        sampling = request.sampling
        params = {
            "max_new_tokens": sampling.max_new_tokens,
            **distribution_fields(sampling),
            "top_k": sampling.top_k or -1,
            "stop_token_ids": list(request.stop_token_ids),
            **({"stop": list(sampling.stop_strings)} if sampling.stop_strings else {}),
            "no_stop_trim": True,
            "skip_special_tokens": False,
            **({} if request.seed is None else {"sampling_seed": request.seed}),
        }
        body: dict[str, Any] = {"input_ids": list(request.prompt_ids), "sampling_params": params}
        body["return_logprob"] = True
        if self._adapter is not None:
            body["lora_path"] = self._adapter  # takes the adapter's name
        return "/generate", body

    async def load(self, weights: SavedWeights) -> None:
        """Load an adapter under its own name, or all weights in place."""
        if weights.adapter:
            await self._load_adapter(weights)
            return
        body = {"model_path": str(weights.folder), "weight_version": weights.name}
        try:
            answer = await self._http.post("/update_weights_from_disk", body)
        except EngineRequestError as fault:
            raise EngineError(f"SGLang did not take the weights in {weights.folder}: {fault}") from fault
        if answer.get("success") is not True:
            raise EngineError(f"SGLang did not take the weights in {weights.folder}: {answer.get('message')}")
        self._whole = weights.name

    def cannot_report(self, sampling: SamplingParams) -> str | None:
        """Return why the server's log-probs are never the learner's for this sampling."""
        if sampling.unfiltered(sampling.temperature) == sampling:
            return None
        return (
            "SGLang reports log-probs before top_k, top_p and min_p, and penalises repetition within a reply "
            "only, so training cannot compare them with the learner's: leave these settings out, or use vLLM"
        )

    def _completion(self, request: CompletionRequest, answer: Mapping[str, Any]) -> Completion:
        url, meta = self._http.url, answer.get("meta_info")
        if not isinstance(meta, dict):
            raise EngineError(f"{url}/generate answered without meta_info: is this server SGLang?")
        sampled = meta.get("output_token_logprobs")
        if not isinstance(sampled, list) or not all(isinstance(s, list) and len(s) >= 2 for s in sampled):
            raise EngineError(
                f"{url} answered without output_token_logprobs, and training needs the token ids and "
                "log-probs in them: is this server SGLang?"
            )
        if meta.get("completion_tokens", len(sampled)) != len(sampled):
            raise EngineError(
                f"{url} sampled {meta['completion_tokens']} tokens, but sent {len(sampled)} with log-probs"
            )
        if meta.get("prompt_tokens", len(request.prompt_ids)) != len(request.prompt_ids):
            raise EngineError(f"{url} read another prompt than it was sent: it must not add or cut tokens")
        if self._whole is not None and meta.get("weight_version", self._whole) != self._whole:
            raise EngineError(f"{url} sampled with weights {meta['weight_version']!r}, not {self._whole!r}")
        finish = meta.get("finish_reason")
        reason: Any = finish.get("type") if isinstance(finish, dict) else finish
        token_ids, logprobs = [s[1] for s in sampled], [s[0] for s in sampled]
        check_completion(url, request, token_ids, logprobs, reason)
        weights = self._adapter or self._whole or ""
        return Completion(tuple(token_ids), tuple(map(float, logprobs)), reason, weights)
