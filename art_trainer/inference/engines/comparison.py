"""Whether an engine samples from the model that is trained: one prompt, tried after every push of weights.

The engine answers the same prompt with the same seeds each time, and the learner scores the sampled tokens.
Rounding makes the log-probs differ by hundredths of a nat; what differs by more is another distribution. The
learner then scores the tokens in the ways that servers are known to go wrong, to find the one that fits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from art_trainer.errors import EngineError
from art_trainer.inference.engines.clients import Completion, CompletionRequest
from art_trainer.inference.generation import sampling_mode
from art_trainer.inference.sampling import SamplingParams, batch_logprobs
from art_trainer.models.logprobs import Scorer
from art_trainer.models.packing import TokenRow, pack

_log = logging.getLogger(__name__)

_REPLIES, _TOKENS = 4, 16
_TOLERANCE = 0.1
"""Nats a token, on average, at temperature 1; of a toy in bfloat16 on vLLM it is 0.02."""
_BIAS, _ERRORS = 0.03, 5.0
"""Nats a token, and standard errors, by which the engine may be above or below the learner on average.
Rounding goes both ways; a difference that goes one way adds up over a reply."""
_QUANTISED = 0.5
"""Nats a token up to which weights of fewer bits are the likely cause."""
_MOVED = 0.01
"""Nats a token by which the learner's log-probs move before an engine that repeats itself is an error."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """What an engine sampled after a prompt, its log-probs of that, and the learner's."""

    completions: list[Completion]
    reported: NDArray[np.float32]
    learner: NDArray[np.float32]
    gaps: NDArray[np.float32]

    @property
    def mean(self) -> float:
        return float(np.abs(self.gaps).mean())

    @property
    def biased(self) -> bool:
        """Whether the log-probs differ in one direction."""
        error = float(self.gaps.std()) / self.gaps.size**0.5
        return bool(abs(self.gaps.mean()) > max(_BIAS, _ERRORS * error))

    def repeats(self, before: _Answers | None) -> bool:
        """Whether the engine repeats its answers to the digit, though the learner's weights have moved."""
        if before is None or not np.array_equal(self.reported, before.reported):
            return False
        same = [c.token_ids for c in self.completions] == [c.token_ids for c in before.completions]
        return same and float(np.abs(self.learner - before.learner).mean()) > _MOVED


class EngineComparison:
    """Compares an engine's log-probs with those of the model that is trained.

    Args:
        model: The model.
        ask: Gets the engine's completions of some requests.
        bos: The token that some servers put before a prompt, if the tokenizer has one.
    """

    def __init__(
        self,
        model: nn.Module,
        ask: Callable[[list[CompletionRequest]], list[Completion]],
        bos: int | None,
    ) -> None:
        self._model, self._ask, self._bos = model, ask, bos
        self._scorer: Scorer | None = None
        self._prompt: tuple[int, ...] = ()
        self._before: dict[SamplingParams, _Answers] = {}

    def check(self, prompt: tuple[int, ...], sampling: SamplingParams) -> None:
        """Compare, with the weights as they are now.

        Args:
            prompt: Any prompt; the first one is asked again each time, for a cache to answer if it can.
            sampling: How replies are sampled; greedy ones are tried at temperature 1. If it changes the
                log-probs, a temperature of 2 is tried too, which shows whether the server reports that.

        Raises:
            EngineError: If the engine samples from another distribution, with the likely cause.
            EngineRequestError: If it does not answer.
        """
        self._prompt = self._prompt or prompt
        params = sampling.unfiltered(1.0) if sampling.greedy else sampling
        params = replace(params, max_new_tokens=min(_TOKENS, sampling.max_new_tokens), stop_strings=())
        self._compare(params)
        if params != params.unfiltered(1.0):
            self._compare(replace(params, temperature=2.0))

    def _compare(self, params: SamplingParams) -> None:
        found, before = self._answers(self._prompt, params), self._before.get(params)
        repeated, self._before[params] = found.repeats(before), found
        limit = _TOLERANCE / min(1.0, params.temperature)
        _log.info("the engine's log-probs differ from the learner's by %.3g nats a token", found.mean)
        if found.mean > limit or found.biased or repeated:
            cause = self._cause(found, params, min(limit, found.mean / 3), repeated)
            raise EngineError(
                f"the engine does not sample from the model that is trained: the log-probs of "
                f"{found.learner.size} tokens differ by {found.mean:.3g} nats a token, at most by "
                f"{np.abs(found.gaps).max():.3g}. Likely cause: {cause}"
            )

    def _answers(self, prompt: tuple[int, ...], params: SamplingParams) -> _Answers:
        completions = self._ask([CompletionRequest(prompt, params, (), seed) for seed in range(_REPLIES)])
        reported = np.concatenate([np.array(c.logprobs, np.float32) for c in completions])
        learner = self._score(prompt, completions, params)
        return _Answers(completions, reported, learner, reported - learner)

    def _score(
        self, prompt: tuple[int, ...], completions: Sequence[Completion], params: SamplingParams
    ) -> NDArray[np.float32]:
        """Return the learner's log-probs of all sampled tokens."""
        parts = []
        with sampling_mode(self._model):
            scorer = self._scorer = self._scorer or Scorer(self._model)
            for tokens in (completion.token_ids for completion in completions):
                zeros = np.zeros(len(tokens), np.float32)
                places = np.arange(len(prompt), len(prompt) + len(tokens))
                row = TokenRow(np.array([*prompt, *tokens]), places, zeros, zeros, 0.0, 0)
                (batch,) = pack([row], 1, share=False, device=scorer.device)
                parts.append(batch_logprobs(scorer, batch, params).float().cpu().numpy())
        return np.concatenate(parts)

    def _cause(self, found: _Answers, params: SamplingParams, limit: float, repeated: bool) -> str:
        for learner, cause in self._explanations(found.completions, params):
            if np.abs(found.reported - learner).mean() <= limit:
                return cause
        if repeated:
            return "stale weights: it answers as before the last update, so it has not taken the new adapter"
        # A prompt that begins otherwise is in no cache.
        first, *rest = self._prompt
        other = next((token for token in rest if token != first), first)
        if self._answers((other, *rest), params).mean <= limit:
            return (
                "a stale prefix cache: a prompt that is in no cache is answered right: empty the cache with "
                "each update or switch prefix caching off"
            )
        if (found.gaps > -limit).all():
            return (
                "other sampling support: every token is likelier there, so filters of its own apply, such as "
                "those of the model's generation_config.json (vLLM: --generation-config vllm)"
            )
        if found.mean < _QUANTISED:
            return "another dtype: its weights are quantised or of fewer bits than the model's here"
        return "other weights or prompts: another base model, adapter, LoRA scaling or template than here"

    def _explanations(
        self, completions: list[Completion], params: SamplingParams
    ) -> Iterator[tuple[NDArray[np.float32], str]]:
        """Yield what the learner's log-probs would be if a server went wrong, and how it did."""
        prompt = self._prompt
        with getattr(self._model, "disable_adapter", nullcontext)():
            without = self._score(prompt, completions, params)
        yield without, "the adapter is ignored: these are the log-probs of the model without it"
        for at, what in ((params.temperature, "filters"), (1.0, "temperature and filters")):
            unfiltered = self._score(prompt, completions, params.unfiltered(at))
            mend = "start vLLM with --logprobs-mode processed_logprobs"
            yield unfiltered, f"other sampling support: it reports log-probs before {what}: {mend}"
        others = [prompt[1:], prompt[:-1]] + ([] if self._bos is None else [(self._bos, *prompt)])
        for other in filter(None, others):
            cause = f"it reads a prompt of {len(other)} tokens where {len(prompt)} were sent"
            yield self._score(other, completions, params), f"a wrong template: {cause}"
