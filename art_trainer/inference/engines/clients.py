r"""Client of vLLM as a server that samples: token ids in, token ids and log-probs out.

Somebody started it. It answers with the ids it sampled and the log-prob of each, so
that nothing is ever tokenised twice. Weights travel as a folder that both sides can read. Its name holds a
digest of the content, so that equal names are equal weights: a server's prefix cache is keyed by the name of
the adapter, and could otherwise serve keys and values of the version before.

Start vLLM so that it takes adapters, and reports the log-probs of what it really sampled from::

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL \
        --enable-lora --max-lora-rank 32 --logprobs-mode processed_logprobs
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import reprlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from art_gym.errors import did_you_mean
from art_trainer.errors import EngineError, EngineRequestError
from art_trainer.inference.engines.http import HttpClient
from art_trainer.inference.sampling import SamplingParams
from art_trainer.models.weights_io import SavedWeights

_log = logging.getLogger(__name__)

_NO_TOKEN = 2**31  # a vocabulary has fewer


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


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that a server serves."""

    name: str
    """What requests call the model."""
    path: str
    """The folder or Hugging Face name it was loaded from."""
    context_limit: int | None
    """Most tokens of prompt and completion together, if the server reports it."""


def distribution_fields(sampling: SamplingParams) -> dict[str, float]:
    """Return the fields of a request that decide the distribution, by vLLM's names.

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
    if not all(type(token) is int and 0 <= token < _NO_TOKEN for token in token_ids):
        raise EngineError(f"{url} sent invalid token ids: {list(token_ids)[:8]}")
    for place, value in enumerate(logprobs):
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            found = reprlib.repr(value)
            raise EngineError(f"{url} sent {found} as the log-prob of token {place}, not a number")
    if finish not in ("stop", "length"):
        raise EngineError(f"{url} stopped a completion because of {finish!r}, not 'stop' or 'length'")


class VLLMEngine:
    """A vLLM server: ``/v1/completions`` with token ids both ways, which came with vLLM 0.10.2.

    Methods may run many times at once, in one event loop.

    Attributes:
        asleep: Whether the server has freed its GPU's memory, and must be woken before it is asked.

    Args:
        url: The server's address, such as ``http://localhost:8000``.
        model: The model's name on the server; ``None`` for the one it was started with.
        **transport: ``api_key``, ``max_concurrency``, ``timeout``, ``max_retries`` and ``backoff`` of
            :class:`~art_trainer.inference.engines.http.HttpClient`.
    """

    def __init__(self, url: str, model: str | None = None, **transport: Any) -> None:
        self._http = HttpClient(url, **transport)
        self._model = model
        self._adapter: str | None = None
        self.asleep = False
        self.name = f"vllm:{model or ''}@{self._http.url}"
        self._name_lock = asyncio.Lock()
        self._can_sleep = True

    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample one completion.

        Raises:
            EngineRequestError: If this request failed for good.
            EngineError: If the answer lacks what training needs; the message says what to set.
        """
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
        """Load an adapter under its own name, and unload the one before; sample with it from now on.

        Raises:
            EngineError: If the server does not take it; it keeps what it had.
        """
        if not weights.adapter:
            raise EngineError("vLLM takes LoRA adapters over HTTP, not whole models: train an adapter (lora)")
        try:
            await self._http.send(
                "/v1/load_lora_adapter", {"lora_name": weights.name, "lora_path": str(weights.folder)}
            )
        except EngineRequestError as fault:
            # Equal names are equal content: an attempt before this one, or run, has loaded it.
            if "already been loaded" not in str(fault):
                raise EngineError(
                    f"vLLM did not take the adapter {weights.folder}: {fault}; start it with "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment, --enable-lora, and "
                    "--max-lora-rank at least the adapter's; it must be able to read that folder"
                ) from fault
        before, self._adapter = self._adapter, weights.name
        if before is not None and before != weights.name:
            # It may be gone already, as after a restart.
            with contextlib.suppress(EngineRequestError):
                await self._http.send("/v1/unload_lora_adapter", {"lora_name": before})

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
        """Have vLLM take its memory again.

        Raises:
            EngineError: If it does not.
        """
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
        await self._http.aclose()

    def cannot_report(self, sampling: SamplingParams) -> str | None:
        """Return why the server's log-probs are never the learner's for this sampling."""
        if sampling.top_p == 1 or sampling.min_p == 0:
            return None
        return "vLLM applies min_p before top_p, which keeps other tokens than the learner: set only one"

    async def served_model(self) -> ServedModel:
        """Return the model that requests name, by default the first that is no adapter of another.

        Raises:
            EngineError: If the server has none of that name.
            EngineRequestError: If the server does not answer.
        """
        url, wanted = self._http.url, self._model
        cards = (await self._http.get("/v1/models")).get("data")
        if not isinstance(cards, list) or not all(isinstance(card, dict) and "id" in card for card in cards):
            raise EngineError(f"{url}/v1/models lists no models: is it vLLM?")
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
        return Completion(tuple(token_ids), tuple(map(float, values)), finish)
