"""Turning contexts into tokens: a batch of sequences is started together, then extended token by token.

Two decoders do the same thing. :class:`~art_trainer.slot_decoder.SlotDecoder` keeps keys and values from turn
to turn and serves every model whose cache is one entry a token. :class:`RecomputeDecoder` serves every other
causal language model: it reads the whole context again each turn, with contexts of equal length together and
so with no padding.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from art_trainer.pruning import can_prune, pruned
from art_trainer.sampler import SamplingParams, penalize_repetition, sample, sampling_logprobs

Alternatives = tuple[tuple[int, float], ...]
"""The most likely tokens in one place with their log-probs, the most likely first."""


@dataclass(eq=False, slots=True)
class SharedPrompt:
    """A prompt that several sequences begin with, in a row of the cache's shared table."""

    row: int
    users: int = 0


@dataclass(eq=False, slots=True)
class Choosing:
    """How one sequence's tokens are chosen, where that is not the decoder's way.

    Log-probs are those of the distribution chosen from; but at temperature 0, where that has one token only,
    the model's own.
    """

    params: SamplingParams
    alternatives: int = 0
    """How many of the most likely tokens to note in each place."""
    noted: list[Alternatives] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class TokenSequence:
    """One context: what was read and sampled so far, and how much of it the decoder has computed."""

    tokens: list[int]
    group: Hashable = None
    """Fresh sequences with equal ``group`` and tokens are computed once."""
    uniforms: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """This turn's random numbers, one a token."""
    logprobs: list[float] = field(default_factory=list)
    """The log-probabilities of the tokens sampled this turn."""
    cached: int = 0
    """How many tokens, from the start, have keys and values in ``row``."""
    row: int = -1
    prefix: SharedPrompt | None = None
    """Where the first tokens are computed once for several sequences; ``row`` holds what follows them."""
    prefix_used: int = 0
    """How many tokens of the shared prompt belong to this sequence."""
    choosing: Choosing | None = None
    """How its tokens are chosen; ``None`` for the decoder's way."""

    def begin_turn(self, uniforms: NDArray[np.float32]) -> None:
        """Forget the last turn's samples, and bring the randomness of the next."""
        self.uniforms = uniforms
        self.logprobs = []


class Decoder(Protocol):
    """Samples tokens for sequences."""

    def start(self, sequences: Sequence[TokenSequence]) -> None:
        """Read all tokens that were not read yet and sample one token for each sequence."""

    def step(self, sequences: Sequence[TokenSequence]) -> None:
        """Sample one more token for each; sequences started earlier may be left out, and come back later."""

    def free(self, sequence: TokenSequence) -> None:
        """Give up what is kept for a sequence."""


class Forward:
    """A causal language model's forward pass that gives the last position's logits."""

    def __init__(self, model: torch.nn.Module, params: SamplingParams) -> None:
        self.model = model
        self.params = params
        base: object = getattr(model, "get_base_model", lambda: model)()
        assert isinstance(base, PreTrainedModel)
        self.base = base
        self.config = base.config
        accepted = inspect.signature(base.forward).parameters
        self.accepts_positions = "position_ids" in accepted
        self._takes_keep = "logits_to_keep" in accepted
        self._decoder = base.get_decoder()  # type: ignore[no-untyped-call]
        self._prunes = self._takes_keep and can_prune(self._decoder) and self._pruning_agrees()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """What its weights are."""
        return next(p.dtype for p in self.model.parameters() if p.is_floating_point())

    def __call__(self, **inputs: Any) -> tuple[torch.Tensor, Any]:
        """Return the last position's logits ``[B, V]`` and the model's whole output."""
        rows, columns = inputs["input_ids"].shape
        if self._prunes and columns > 1:
            last = torch.arange(1, rows + 1, device=self.device) * columns - 1
            with pruned(self._decoder, last):
                output = self.model(**inputs, return_dict=True)
            return output.logits[0], output
        keep = {"logits_to_keep": 1} if self._takes_keep else {}
        output = self.model(**inputs, **keep, return_dict=True)
        return output.logits[:, -1], output

    @torch.inference_mode()
    def _pruning_agrees(self) -> bool:
        """Whether the last layer, pruned, leads to the logits of the model's own forward."""
        tokens = torch.arange(8, device=self.device).reshape(2, 4) % self.config.get_text_config().vocab_size
        training = self.model.training
        self.model.eval()
        wanted = self.model(input_ids=tokens, logits_to_keep=1).logits[:, -1]
        with pruned(self._decoder, torch.tensor([3, 7], device=self.device)):
            found = self.model(input_ids=tokens).logits[0]
        self.model.train(training)
        tolerance = 1e-4 if wanted.dtype in (torch.float32, torch.float64) else 0.1
        return bool(found.shape == wanted.shape and (found - wanted).abs().max() < tolerance)

    def sample_into(self, sequences: Sequence[TokenSequence], logits: torch.Tensor) -> None:
        """Sample a token for each sequence from its row of logits, and append it."""
        if all(s.choosing is None for s in sequences):
            self._choose(sequences, logits, self.params)
            return
        ways: defaultdict[SamplingParams, list[int]] = defaultdict(list)
        for place, sequence in enumerate(sequences):
            ways[self.params if sequence.choosing is None else sequence.choosing.params].append(place)
        for params, places in ways.items():
            chosen = logits if len(ways) == 1 else logits[torch.tensor(places, device=logits.device)]
            self._choose([sequences[place] for place in places], chosen, params)

    def _choose(
        self, sequences: Sequence[TokenSequence], logits: torch.Tensor, params: SamplingParams
    ) -> None:
        if params.greedy:
            uniforms = torch.zeros(len(sequences))
        else:
            uniforms = torch.tensor([float(s.uniforms[len(s.logprobs)]) for s in sequences])
        if params.repetition_penalty != 1:
            contexts = [s.tokens for s in sequences]
            logits = penalize_repetition(logits, contexts, params.repetition_penalty)
        tokens, logprobs = sample(logits, uniforms.to(logits.device), params)
        for sequence, token, logprob in zip(sequences, tokens.tolist(), logprobs.tolist(), strict=True):
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
        for place, sequence in enumerate(sequences):
            if sequence.choosing is not None and (sequence.choosing.alternatives or params.greedy):
                _note(sequence, sequence.choosing, logits[place : place + 1])


def _note(sequence: TokenSequence, choosing: Choosing, logits_1_V: torch.Tensor) -> None:
    """Note the alternatives to a sequence's newest token, and a greedy one's log-probability."""
    params = choosing.params
    own = params.unfiltered(1.0) if params.greedy else params
    logprobs = sampling_logprobs(logits_1_V, own)[0]
    if params.greedy:
        sequence.logprobs[-1] = float(logprobs[sequence.tokens[-1]])
    if choosing.alternatives:
        best = logprobs.topk(min(choosing.alternatives, len(logprobs)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        choosing.noted.append(tuple(pair for pair in pairs if pair[1] > -math.inf))


@dataclass(eq=False, slots=True)
class _Bucket:
    """Sequences whose contexts are equally long, and the model's own cache of them."""

    sequences: list[TokenSequence]
    cache: Any


class RecomputeDecoder:
    """Reads the whole context again each turn; right for every model, and the slower for it."""

    def __init__(self, model: torch.nn.Module, params: SamplingParams, *, max_rows: int) -> None:
        self._forward = Forward(model, params)
        self._max_rows = max_rows
        self._buckets: dict[TokenSequence, _Bucket] = {}

    def start(self, sequences: Sequence[TokenSequence]) -> None:
        """Read the contexts, those of equal length together; sample one token each."""
        by_length: defaultdict[int, list[TokenSequence]] = defaultdict(list)
        for sequence in sequences:
            by_length[len(sequence.tokens)].append(sequence)
        for group in by_length.values():
            for first in range(0, len(group), self._max_rows):
                self._open(group[first : first + self._max_rows])

    def step(self, sequences: Sequence[TokenSequence]) -> None:
        """Extend all by one token, bucket by bucket; a finished member is computed along until all are."""
        wanted = set(sequences)
        for bucket in dict.fromkeys(self._buckets[s] for s in sequences):
            running = [s in wanted and self._buckets.get(s) is bucket for s in bucket.sequences]
            logits = self._next_logits(bucket)
            chosen = [s for s, runs in zip(bucket.sequences, running, strict=True) if runs]
            self._forward.sample_into(chosen, logits[torch.tensor(running, device=logits.device)])

    def free(self, sequence: TokenSequence) -> None:
        """Forget the sequence's bucket."""
        self._buckets.pop(sequence, None)

    def _open(self, sequences: list[TokenSequence]) -> None:
        tokens = torch.tensor([s.tokens for s in sequences], device=self._forward.device)
        logits, output = self._forward(input_ids=tokens, use_cache=True)
        bucket = _Bucket(sequences, getattr(output, "past_key_values", None))
        for sequence in sequences:
            self._buckets[sequence] = bucket
        self._forward.sample_into(sequences, logits)

    def _next_logits(self, bucket: _Bucket) -> torch.Tensor:
        device = self._forward.device
        if bucket.cache is not None:
            last = torch.tensor([[s.tokens[-1]] for s in bucket.sequences], device=device)
            logits, _ = self._forward(input_ids=last, past_key_values=bucket.cache, use_cache=True)
            return logits
        longest = max(len(s.tokens) for s in bucket.sequences)
        tokens = [s.tokens + s.tokens[-1:] * (longest - len(s.tokens)) for s in bucket.sequences]
        logits, _ = self._forward(input_ids=torch.tensor(tokens, device=device))
        return logits


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens two lists share."""
    shorter = min(len(left), len(right))
    if list(left[:shorter]) == list(right[:shorter]):
        return shorter
    return next(place for place in range(shorter) if left[place] != right[place])


@contextmanager
def sampling_mode(model: torch.nn.Module) -> Iterator[None]:
    """Without dropout and without gradients, leaving the model's mode as it was."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)
