r"""SGLang's server, by ``/generate`` with token ids both ways.

To train adapters, start it with room for them; to train all weights, without these flags::

    python -m sglang.launch_server --model-path MODEL \
        --enable-lora --max-lora-rank 32 --lora-target-modules all

Adapters are loaded by ``/load_lora_adapter``, whole models by ``/update_weights_from_disk``, from a folder
that the server can see too. Its log-probs are those of the tempered distribution, before top-k, top-p and
min-p, as the learner's are. It follows seeds only with ``--enable-deterministic-inference``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from art_trainer.engines.engine import PROBE_TOKENS, Completion, CompletionRequest, completion
from art_trainer.engines.server import ServerEngine
from art_trainer.engines.weights import SavedWeights
from art_trainer.errors import EngineError, EngineRequestError
from art_trainer.sampler import SamplingParams

_PROBE_TEMPERATURE = 4.0
_DIFFERENCE = 0.1


class SGLangEngine(ServerEngine):
    """An SGLang server; implements :class:`art_trainer.engines.engine.Engine`.

    Its arguments are those of :class:`~art_trainer.engines.server.ServerEngine`.
    """

    full_weights = True
    kind = "SGLang"
    adapter_paths = ("/load_lora_adapter", "/unload_lora_adapter")
    already_loaded = "already"
    needs_lora = (
        "start SGLang with --enable-lora, --max-lora-rank at least the adapter's and --lora-target-modules "
        "all; it must be able to read that folder"
    )

    def __init__(self, url: str, model: str | None = None, **transport: Any) -> None:
        super().__init__(url, model, **transport)
        self._whole: str | None = None
        self._tempered: bool | None = None

    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample one completion."""
        sampling = request.sampling
        # All of them are said, for what is left out the server may take from the model's own defaults.
        answer = await self._transport.post(
            "/generate",
            {
                "input_ids": list(request.prompt_ids),
                "sampling_params": {
                    "max_new_tokens": sampling.max_new_tokens,
                    "temperature": sampling.temperature,
                    "top_p": sampling.top_p,
                    "top_k": sampling.top_k or -1,
                    "min_p": sampling.min_p,
                    "repetition_penalty": sampling.repetition_penalty,
                    "presence_penalty": 0.0,
                    "frequency_penalty": 0.0,
                    "stop_token_ids": list(request.stop_token_ids),
                    **({"stop": list(sampling.stop_strings)} if sampling.stop_strings else {}),
                    "no_stop_trim": True,
                    "skip_special_tokens": False,
                    **({} if request.seed is None else {"sampling_seed": request.seed}),
                },
                "return_logprob": True,
                # By its adapter's name, whatever the field is called.
                **({} if self._adapter is None else {"lora_path": self._adapter}),
            },
        )
        return self._completion(request, answer)

    async def load(self, weights: SavedWeights) -> None:
        """Load an adapter under its own name, or all weights in place.

        Raises:
            EngineError: Where the server does not take them.
        """
        if weights.adapter:
            await self._load_adapter(weights)
            return
        body = {"model_path": str(weights.folder), "weight_version": weights.name}
        try:
            answer = await self._transport.post("/update_weights_from_disk", body)
        except EngineRequestError as fault:
            raise EngineError(f"SGLang did not take the weights in {weights.folder}: {fault}") from fault
        if answer.get("success") is not True:
            raise EngineError(f"SGLang did not take the weights in {weights.folder}: {answer.get('message')}")
        self._whole = weights.name

    async def check(self, sampling: SamplingParams, prompt_ids: Sequence[int]) -> None:
        """Find out whether log-probs follow the temperature, where that matters.

        Of the same most likely tokens (``top_k=1``) they are other at another temperature.

        Raises:
            EngineError: Where they do not, and the temperature is not 1.
        """
        if sampling.greedy or sampling.temperature == 1:
            return
        if self._tempered is None:
            sums = []
            for temperature in (1.0, _PROBE_TEMPERATURE):
                probe = SamplingParams(temperature=temperature, top_k=1, max_new_tokens=PROBE_TOKENS)
                sums.append(sum((await self.complete(CompletionRequest(tuple(prompt_ids), probe))).logprobs))
            self._tempered = abs(sums[0] - sums[1]) > _DIFFERENCE
        if not self._tempered:
            raise EngineError(
                f"{self._transport.url} reports log-probs without temperature {sampling.temperature}: start "
                "SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB in its environment"
            )

    def _completion(self, request: CompletionRequest, answer: Mapping[str, Any]) -> Completion:
        """Read an answer; nothing about it is taken for granted."""
        url = self._transport.url
        meta = answer.get("meta_info")
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
        reason = finish.get("type") if isinstance(finish, dict) else finish
        token_ids, logprobs = [s[1] for s in sampled], [s[0] for s in sampled]
        return completion(url, request, token_ids, logprobs, reason, self._adapter or self._whole or "")
