r"""vLLM's OpenAI-compatible server, by ``/v1/completions`` with token ids both ways.

Start it so that it takes adapters, and reports the log-probs of what it really sampled from::

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL \
        --enable-lora --max-lora-rank 32 --logprobs-mode processed_logprobs

``return_token_ids`` came with vLLM 0.10.2. Adapters are loaded by ``/v1/load_lora_adapter``, from a folder
that the server can see too. Each version gets a name of its own: vLLM's prefix cache goes by the adapter's
name, so that one loaded in place of another would go on with the other's keys and values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from art_trainer.engines.engine import PROBE_TOKENS, Completion, CompletionRequest, completion
from art_trainer.engines.server import ServerEngine
from art_trainer.engines.weights import SavedWeights
from art_trainer.errors import EngineError
from art_trainer.sampler import SamplingParams

_NEEDS_TOKENS = "return_token_ids needs vLLM 0.10.2 or newer; is this server vLLM?"
_CERTAIN = 1e-4


class VLLMEngine(ServerEngine):
    """A vLLM server; implements :class:`art_trainer.engines.engine.Engine`.

    Its arguments are those of :class:`~art_trainer.engines.server.ServerEngine`.
    """

    full_weights = False
    kind = "vLLM"
    adapter_paths = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
    already_loaded = "already been loaded"
    needs_lora = (
        "start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment, --enable-lora, and "
        "--max-lora-rank at least the adapter's; it must be able to read that folder"
    )

    def __init__(self, url: str, model: str | None = None, **transport: Any) -> None:
        super().__init__(url, model, **transport)
        self._processed: bool | None = None
        self._looking = asyncio.Lock()

    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample one completion."""
        name = self._adapter or await self._model_name()
        # All of them are said, for what is left out the server takes from the model's generation_config.json.
        sampling = request.sampling
        answer = await self._transport.post(
            "/v1/completions",
            {
                "model": name,
                "prompt": list(request.prompt_ids),
                "max_tokens": sampling.max_new_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p,
                "repetition_penalty": sampling.repetition_penalty,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "stop_token_ids": list(request.stop_token_ids),
                "stop": list(sampling.stop_strings),
                "include_stop_str_in_output": True,
                "logprobs": 0,
                "return_token_ids": True,
                **({} if request.seed is None else {"seed": request.seed}),
            },
        )
        return self._completion(request, name, answer)

    async def load(self, weights: SavedWeights) -> None:
        """Load an adapter under its own name, and let go of the one before.

        Raises:
            EngineError: For all weights of a model, or an adapter that the server does not take.
        """
        if not weights.adapter:
            raise EngineError(
                "vLLM takes LoRA adapters over HTTP, not whole models: train an adapter (lora), or use SGLang"
            )
        await self._load_adapter(weights)

    async def check(self, sampling: SamplingParams, prompt_ids: Sequence[int]) -> None:
        """Find out whether log-probs are those of the distribution sampled from, where that matters.

        Of one candidate (``top_k=1``) the processed log-probability is 0; the raw one, vLLM's default, is the
        model's.

        Raises:
            EngineError: Where they are raw, and temperature or filters change the distribution.
        """
        if sampling.greedy or _is_plain(sampling):
            return
        if self._processed is None:
            probe = SamplingParams(top_k=1, max_new_tokens=PROBE_TOKENS)
            found = await self.complete(CompletionRequest(tuple(prompt_ids), probe))
            self._processed = min(found.logprobs) > -_CERTAIN
        if not self._processed:
            raise EngineError(
                f"{self._transport.url} reports log-probs of the model's own distribution, but {sampling} "
                "samples from another: start vLLM with --logprobs-mode processed_logprobs"
            )

    async def _model_name(self) -> str:
        async with self._looking:
            if self._model is None:
                self._model = (await self.served()).name
        return self._model

    def _completion(self, request: CompletionRequest, name: str, answer: Mapping[str, Any]) -> Completion:
        """Read an answer; nothing about it is taken for granted."""
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise EngineError(f"{self._transport.url} answered without one choice: is this server vLLM?")
        choice = choices[0]
        token_ids = choice.get("token_ids")
        if not isinstance(token_ids, list):
            raise EngineError(
                f"{self._transport.url} answered without token ids, and training needs them: {_NEEDS_TOKENS}"
            )
        logprobs = choice.get("logprobs")
        values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        if not isinstance(values, list):
            raise EngineError(
                f"{self._transport.url} answered without log-probs, and training needs them: start vLLM with "
                "--max-logprobs at least 1, and without what turns them off"
            )
        read = choice.get("prompt_token_ids")
        if read is not None and read != list(request.prompt_ids):
            raise EngineError(
                f"{self._transport.url} read another prompt than it was sent: it must not add or cut tokens"
            )
        weights = str(answer.get("model", name))
        # A server of a policy that is being trained says which version of it has answered.
        if weights != name and not weights.startswith(f"{name}@"):
            raise EngineError(
                f"{self._transport.url} answered with {answer['model']!r} where {name!r} was asked"
            )
        finish = choice.get("finish_reason")
        return completion(self._transport.url, request, token_ids, values, finish, weights)


def _is_plain(sampling: SamplingParams) -> bool:
    """Whether tokens are sampled from the model's own distribution."""
    filters = (sampling.top_p, sampling.top_k, sampling.min_p)
    return filters == (1, 0, 0) and sampling.temperature == 1 and sampling.repetition_penalty == 1
