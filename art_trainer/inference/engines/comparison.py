"""Whether an engine samples from the model that is trained: one prompt, tried after every push of weights.

The engine answers the same prompt with the same seeds each time, and the learner scores the tokens as they
were sampled. Rounding makes the log-probs differ by hundredths of a nat; what differs by more is another
distribution, from which a run would learn nothing and say nothing. The learner then scores the tokens once
more in the ways that servers are known to go wrong, to find the one that explains them.
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
"""Nats a token, on average, at temperature 1: twice and more what bfloat16 makes of a model."""
_BIAS, _ERRORS = 0.03, 5.0
"""Nats a token, and standard errors, by which the engine may be above or below the learner on average.
Rounding goes both ways; a difference that goes one way adds up over a reply."""
_QUANTISED = 0.5
"""Nats a token up to which weights of fewer bits are the likely cause."""
_MOVED = 0.01
"""Nats a token by which the learner's log-probs move before an engine that repeats itself is an error."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """What an engine sampled for some requests, and the learner's log-probs of it."""

    requests: list[CompletionRequest]
    completions: list[Completion]
    learner: NDArray[np.float32]

    @property
    def reported(self) -> NDArray[np.float32]:
        return np.concatenate([completion.logprobs for completion in self.completions]).astype(np.float32)

    @property
    def gaps(self) -> NDArray[np.float32]:
        """By how much the engine's log-probs are above the learner's."""
        return self.reported - self.learner

    @property
    def mean(self) -> float:
        return float(np.abs(self.gaps).mean())

    @property
    def biased(self) -> bool:
        """Whether the log-probs differ in one direction."""
        error = float(self.gaps.std()) / self.gaps.size**0.5
        return bool(abs(self.gaps.mean()) > max(_BIAS, _ERRORS * error))


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
            sampling: How replies are sampled; greedy ones are tried at temperature 1.

        Raises:
            EngineError: If the engine samples from another distribution, with the likely cause.
            EngineRequestError: If it does not answer.
        """
        self._prompt = self._prompt or prompt
        params = sampling.unfiltered(1.0) if sampling.greedy else sampling
        params = replace(params, max_new_tokens=min(_TOKENS, sampling.max_new_tokens), stop_strings=())
        found, before = self._answers(self._prompt, params), self._before.get(params)
        self._before[params] = found
        limit = _TOLERANCE / min(1.0, params.temperature)
        repeated = before is not None and _repeats(found, before)
        _log.info("the engine's log-probs differ from the learner's by %.3g nats a token", found.mean)
        if found.mean > limit or found.biased or repeated:
            raise EngineError(
                f"the engine does not sample from the model that is trained: the log-probs of "
                f"{found.learner.size} tokens differ by {found.mean:.3g} nats a token, at most by "
                f"{np.abs(found.gaps).max():.3g}. Likely cause: {self._cause(found, params, limit, repeated)}"
            )

    def _answers(self, prompt: tuple[int, ...], params: SamplingParams) -> _Answers:
        requests = [CompletionRequest(prompt, params, (), seed) for seed in range(_REPLIES)]
        completions = self._ask(requests)
        return _Answers(requests, completions, self._score(prompt, completions, params))

    def _score(
        self, prompt: tuple[int, ...], completions: Sequence[Completion], params: SamplingParams
    ) -> NDArray[np.float32]:
        """Return the learner's log-probs of all sampled tokens."""
        with sampling_mode(self._model):
            scorer = self._scorer = self._scorer or Scorer(self._model)
            parts = []
            for tokens in (completion.token_ids for completion in completions):
                zeros = np.zeros(len(tokens), np.float32)
                places = np.arange(len(prompt), len(prompt) + len(tokens))
                row = TokenRow(np.array([*prompt, *tokens]), places, zeros, zeros, 0.0, 0)
                (batch,) = pack([row], 1, share=False, device=scorer.device)
                parts.append(batch_logprobs(scorer, batch, params).float().cpu().numpy())
        return np.concatenate(parts)

    def _cause(self, found: _Answers, params: SamplingParams, limit: float, repeated: bool) -> str:
        limit = min(limit, found.mean / 3)
        for learner, cause in self._explanations(found, params):
            if np.abs(found.reported - learner).mean() <= limit:
                return cause
        if repeated:
            return "stale weights: it answers as before the last update, so it has not taken the new adapter"
        if self._fresh(params).mean <= limit:
            return (
                "a stale prefix cache: another prompt is answered right, so keys and values of this one are "
                "of older weights: empty the cache with each update or switch prefix caching off"
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
        self, found: _Answers, params: SamplingParams
    ) -> Iterator[tuple[NDArray[np.float32], str]]:
        """Yield what the learner's log-probs would be if a server went wrong, and how it did."""
        prompt, completions = found.requests[0].prompt_ids, found.completions
        switched_off = getattr(self._model, "disable_adapter", nullcontext)
        with switched_off():
            yield (
                self._score(prompt, completions, params),
                "the adapter is ignored: these are the log-probs of the model without it",
            )
        for at, what in ((params.temperature, "filters"), (1.0, "temperature and filters")):
            yield (
                self._score(prompt, completions, params.unfiltered(at)),
                f"other sampling support: it reports log-probs before {what} (vLLM: start it with "
                "--logprobs-mode processed_logprobs)",
            )
        others = [prompt[1:], prompt[:-1]] + ([] if self._bos is None else [(self._bos, *prompt)])
        for other in filter(None, others):
            yield (
                self._score(other, completions, params),
                f"a wrong template: it reads a prompt of {len(other)} tokens where {len(prompt)} were sent, "
                "as a server does that adds or cuts tokens at its ends",
            )

    def _fresh(self, params: SamplingParams) -> _Answers:
        """Ask for a prompt that begins otherwise, so that no cache knows it."""
        first, *rest = self._prompt
        return self._answers((next((t for t in rest if t != first), first), *rest), params)


def _repeats(now: _Answers, before: _Answers) -> bool:
    """Whether the engine repeats its answers to the digit, though the learner's weights have moved."""
    if [(c.token_ids, c.logprobs) for c in now.completions] != [
        (c.token_ids, c.logprobs) for c in before.completions
    ]:
        return False
    return float(np.abs(now.learner - before.learner).mean()) > _MOVED
