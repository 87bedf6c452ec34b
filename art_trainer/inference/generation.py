"""Batched token generation: sequences are started together, then extended token by token.

There are two decoders. :class:`~art_trainer.inference.slot_decoder.SlotDecoder` keeps keys and values from
turn to turn; it serves every model whose cache is one entry a token, sliding windows included, and whose
attention Transformers looks up by name.
:class:`RecomputeDecoder`, here, serves every other causal language model: it reads the whole context again
each turn, contexts of equal length together and so without padding.

Shape letters: B rows, V the vocabulary.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from art_trainer.inference.sampling import SamplingParams, penalize_repetition, sample, sampling_logprobs
from art_trainer.models.cache_name import CACHE_NAME
from art_trainer.models.loading import full_precision
from art_trainer.models.logprobs import rounding_tolerance
from art_trainer.models.lora import base_model
from art_trainer.models.tree_attention import can_prune, pruned

_log = logging.getLogger(__name__)

TopLogprobs = tuple[tuple[int, float], ...]
"""The most likely tokens at one position with their log-probs, the most likely first."""


@dataclass(eq=False, slots=True)
class SharedPrompt:
    """A prompt that several sequences begin with, in a row of the cache's shared table."""

    row: int
    users: int = 0


@dataclass(eq=False, slots=True)
class SamplingOverride:
    """Sampling parameters of one sequence, if they differ from the decoder's.

    Log-probs are those of the distribution sampled from; at temperature 0, where that distribution has one
    token only, they are the model's own.
    """

    params: SamplingParams
    alternatives: int = 0
    """How many of the most likely tokens to record at each position."""
    recorded: list[TopLogprobs] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class TokenSequence:
    """One context: what was read and sampled so far, and how much of it the decoder has computed."""

    tokens: list[int]
    group: Hashable = None
    """What sequences of one ``group`` read after equal tokens is read once."""
    uniforms: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """This turn's random numbers, one a token."""
    logprobs: list[float] = field(default_factory=list)
    """The log-probs of the tokens sampled this turn."""
    cached: int = 0
    """How many tokens, from the start, have keys and values in ``prefix`` and ``row``."""
    row: int = -1
    prefix: SharedPrompt | None = None
    """The prompt computed once for several sequences; ``row`` holds what follows it."""
    prefix_used: int = 0
    """How many tokens of the shared prompt belong to this sequence."""
    override: SamplingOverride | None = None

    @property
    def uniform(self) -> float:
        """The random number of the next token; 0 if there are none, as for greedy sampling."""
        return float(self.uniforms[len(self.logprobs)]) if self.uniforms.size else 0.0

    @property
    def own_cached(self) -> int:
        """How many tokens the sequence's own row holds."""
        return self.cached - self.prefix_used

    def extend(self, token_ids: list[int], *, restarted: bool) -> None:
        """Append tokens to read; if the context was restarted, they replace it.

        What the old context and the new one begin with in common stays computed.
        """
        if restarted:
            self.cached = common_prefix_length(self.tokens[: self.cached], token_ids[:-1])
            self.tokens = token_ids
        else:
            self.tokens = self.tokens + token_ids

    def begin_turn(self, uniforms: NDArray[np.float32]) -> None:
        """Forget the last turn's samples and set the random numbers of the next."""
        self.uniforms = uniforms
        self.logprobs = []


class Decoder(Protocol):
    """Samples tokens for sequences."""

    def start(self, sequences: Sequence[TokenSequence]) -> None:
        """Read all tokens that were not read yet and sample one token for each sequence."""

    def step(self, sequences: Sequence[TokenSequence]) -> None:
        """Sample one more token for each; sequences may be left out of a step and come back later."""

    def free(self, sequence: TokenSequence) -> None:
        """Free what is kept for a sequence."""


class SamplingModel:
    """A causal language model as decoders use it: logits of the last position, and sampling from them."""

    def __init__(self, model: torch.nn.Module, params: SamplingParams) -> None:
        self.model = model
        self.params = params
        self.base: PreTrainedModel = base_model(model)
        self.config = self.base.config
        self._takes_keep = "logits_to_keep" in inspect.signature(self.base.forward).parameters
        self._decoder = self.base.get_decoder()
        self._prunes = self._takes_keep and can_prune(self._decoder) and self._pruning_agrees()

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return next(p.dtype for p in self.model.parameters() if p.is_floating_point())

    def __call__(self, **inputs: Any) -> tuple[Tensor, Any]:
        """Return the last position's logits [B, V] and the model's whole output."""
        rows, columns = inputs["input_ids"].shape
        if self._prunes and columns > 1:
            last = torch.arange(1, rows + 1, device=self.device) * columns - 1
            with pruned(self._decoder, last):
                output = self.model(**inputs, return_dict=True)
            return output.logits[0], output
        keep = {"logits_to_keep": 1} if self._takes_keep else {}
        output = self.model(**inputs, **keep, return_dict=True)
        return output.logits[:, -1], output

    def sample_into(
        self, sequences: Sequence[TokenSequence], logits_B_V: Tensor, uniforms_B: Tensor | None = None
    ) -> None:
        """Sample a token for each sequence from its row of logits and its random number, and append it."""
        if uniforms_B is None:
            uniforms_B = torch.tensor([s.uniform for s in sequences], device=logits_B_V.device)
        if all(s.override is None for s in sequences):
            return self._sample_alike(sequences, logits_B_V, uniforms_B, self.params)
        rows_of: defaultdict[SamplingParams, list[int]] = defaultdict(list)
        for row, sequence in enumerate(sequences):
            rows_of[self.params if sequence.override is None else sequence.override.params].append(row)
        for params, rows in rows_of.items():
            places = torch.tensor(rows, device=logits_B_V.device)
            some = [sequences[row] for row in rows]
            self._sample_alike(some, logits_B_V[places], uniforms_B[places], params)
        return None

    def _pruning_agrees(self) -> bool:
        """Whether the last layer, pruned, leads to the logits of the model's own forward."""
        tokens = torch.arange(8, device=self.device).reshape(2, 4) % self.config.get_text_config().vocab_size
        with sampling_mode(self.model), full_precision():
            wanted = self.model(input_ids=tokens, logits_to_keep=1).logits[:, -1]
            with pruned(self._decoder, torch.tensor([3, 7], device=self.device)):
                found = self.model(input_ids=tokens).logits[0]
        return found.shape == wanted.shape and bool((found - wanted).abs().max() < rounding_tolerance(wanted))

    @staticmethod
    def _sample_alike(
        sequences: Sequence[TokenSequence], logits_B_V: Tensor, uniforms_B: Tensor, params: SamplingParams
    ) -> None:
        if params.repetition_penalty != 1:
            contexts = [s.tokens for s in sequences]
            logits_B_V = penalize_repetition(logits_B_V, contexts, params.repetition_penalty)
        # One fetch, for which a GPU waits once; float32 holds every token's number.
        sampled = torch.stack(sample(logits_B_V, uniforms_B, params, check=False)).tolist()
        if -math.inf in sampled[1]:
            sampled = torch.stack(sample(logits_B_V, uniforms_B, params)).tolist()
        for row, (sequence, token, logprob) in enumerate(zip(sequences, *sampled, strict=True)):
            sequence.tokens.append(int(token))
            sequence.logprobs.append(logprob)
            if sequence.override is not None and (sequence.override.alternatives or params.greedy):
                _record_alternatives(sequence, sequence.override, logits_B_V[row : row + 1])


def _record_alternatives(sequence: TokenSequence, override: SamplingOverride, logits_1_V: Tensor) -> None:
    """Record the alternatives to a sequence's newest token, and a greedy one's log-prob."""
    params = override.params
    logprobs = sampling_logprobs(logits_1_V, params.unfiltered(1.0) if params.greedy else params)[0]
    if params.greedy:
        sequence.logprobs[-1] = float(logprobs[sequence.tokens[-1]])
    if override.alternatives:
        best = logprobs.topk(min(override.alternatives, len(logprobs)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        override.recorded.append(tuple(pair for pair in pairs if pair[1] > -math.inf))


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many leading tokens two lists share."""
    shorter = min(len(left), len(right))
    if list(left[:shorter]) == list(right[:shorter]):
        return shorter
    return next(place for place in range(shorter) if left[place] != right[place])


@contextmanager
def sampling_mode(model: torch.nn.Module) -> Iterator[None]:
    """Disable dropout and gradients; afterwards the model's mode is what it was."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


@dataclass(eq=False, slots=True)
class _Bucket:
    """Sequences whose contexts are equally long, and the model's own cache of them."""

    sequences: list[TokenSequence]
    cache: Any
    """``None`` if the model returns none, or a wrong one."""


class RecomputeDecoder:
    """Reads the whole context again each turn; within one it uses the model's own cache, if that is right."""

    def __init__(self, model: torch.nn.Module, params: SamplingParams, *, max_rows: int) -> None:
        self._model = SamplingModel(model, params)
        self._max_rows = max_rows
        self._buckets: dict[TokenSequence, _Bucket] = {}
        self._caches = self._cache_agrees()

    def start(self, sequences: Sequence[TokenSequence]) -> None:
        """Read the contexts, those of equal length together; sample one token each."""
        by_length: defaultdict[int, list[TokenSequence]] = defaultdict(list)
        for sequence in sequences:
            by_length[len(sequence.tokens)].append(sequence)
        for alike in by_length.values():
            for first in range(0, len(alike), self._max_rows):
                some = alike[first : first + self._max_rows]
                tokens = torch.tensor([s.tokens for s in some], device=self._model.device)
                logits, output = self._model(input_ids=tokens, use_cache=self._caches)
                kept = getattr(output, CACHE_NAME, None) if self._caches else None
                self._buckets |= dict.fromkeys(some, _Bucket(some, kept))
                self._model.sample_into(some, logits)

    def step(self, sequences: Sequence[TokenSequence]) -> None:
        """Extend all by one token, bucket by bucket; a finished member is computed along until all finish.

        A model without such a cache reads the whole contexts again.
        """
        wanted = set(sequences)
        for bucket in dict.fromkeys(self._buckets[s] for s in sequences):
            members = enumerate(bucket.sequences)
            running = [row for row, s in members if s in wanted and self._buckets.get(s) is bucket]
            some = [bucket.sequences[row] for row in running]
            if bucket.cache is None:
                self.start(some)
                continue
            device = self._model.device
            last = torch.tensor([[s.tokens[-1]] for s in bucket.sequences], device=device)
            logits, _ = self._model(input_ids=last, use_cache=True, **{CACHE_NAME: bucket.cache})
            self._model.sample_into(some, logits[torch.tensor(running, device=device)])

    def free(self, sequence: TokenSequence) -> None:
        """Forget the sequence's bucket."""
        self._buckets.pop(sequence, None)

    def _cache_agrees(self) -> bool:
        """Whether tokens read one by one with the model's own cache lead to the logits of its forward."""
        model = self._model
        tokens = torch.arange(18, device=model.device).reshape(2, 9)
        tokens %= model.config.get_text_config(decoder=True).vocab_size
        with sampling_mode(model.model), full_precision():
            wanted, _ = model(input_ids=tokens, use_cache=False)
            _, output = model(input_ids=tokens[:, :-2], use_cache=True)
            own = getattr(output, CACHE_NAME, None)
            if own is None:
                return False
            for last in (tokens[:, -2:-1], tokens[:, -1:]):
                found, _ = model(input_ids=last, use_cache=True, **{CACHE_NAME: own})
        # Logits may be of more bits than the weights that they are computed with, as Nemotron-H's are.
        limit = 2 * rounding_tolerance(wanted.to(model.base.dtype))
        agrees = bool((found - wanted).abs().max() < limit)
        if not agrees:
            _warn_of_cache(type(model.base).__name__)
        return agrees


@cache
def _warn_of_cache(name: str) -> None:
    """Warn once for a class of models: every change of sampling parameters makes a decoder."""
    _log.warning("%s gives other logits with its cache: each token reads its context again, slowly", name)
