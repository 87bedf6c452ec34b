"""Turning contexts into tokens: a batch of sequences is started together, then extended token by token.

Two decoders do the same thing. :class:`SlotDecoder` keeps keys and values from turn to turn and serves every
model whose cache is one entry a token. :class:`RecomputeDecoder` serves every other causal language model:
it reads the whole context again each turn, with contexts of equal length together and so with no padding.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from art_trainer.kv_cache import SlotCache, Window
from art_trainer.pruning import can_prune, pruned
from art_trainer.sampler import SamplingParams, sample

# Idle rows between running ones are computed for nothing, but moving rows costs several steps: rows are moved
# when the rows computed exceed the running ones by this factor.
_COMPACT_AT = 1.5


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


class _Forward:
    """A causal language model's forward pass that gives the last position's logits."""

    def __init__(self, model: torch.nn.Module, params: SamplingParams) -> None:
        self.model = model
        self.params = params
        base: object = getattr(model, "get_base_model", lambda: model)()
        assert isinstance(base, PreTrainedModel)
        self.config = base.config
        accepted = inspect.signature(base.forward).parameters
        self.accepts_positions = "position_ids" in accepted
        self._takes_keep = "logits_to_keep" in accepted
        self._decoder = base.get_decoder()  # type: ignore[no-untyped-call]
        self._prunes = self._takes_keep and can_prune(self._decoder) and self._pruning_agrees()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.model.parameters() if p.is_floating_point())

    def __call__(self, **inputs: Any) -> tuple[torch.Tensor, Any]:
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
        if self.params.greedy:
            uniforms = torch.zeros(len(sequences))
        else:
            uniforms = torch.tensor([float(s.uniforms[len(s.logprobs)]) for s in sequences])
        tokens, logprobs = sample(logits, uniforms.to(logits.device), self.params)
        for sequence, token, logprob in zip(sequences, tokens.tolist(), logprobs.tolist(), strict=True):
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)


class SlotDecoder:
    """Keeps every sequence's keys and values in a row of its own until it is freed.

    Args:
        model: A causal language model whose cache is one entry a token (see :meth:`serves`).
        params: How to sample.
        read_tokens: Most tokens, padding included, that one forward pass reads.
    """

    def __init__(self, model: torch.nn.Module, params: SamplingParams, *, read_tokens: int) -> None:
        self._forward = _Forward(model, params)
        layers = SlotCache.layer_count_for(self._forward.config)
        assert layers is not None, "ask SlotDecoder.serves first"
        self._cache = SlotCache(layers)
        self._read_tokens = read_tokens
        self._owners: list[TokenSequence | None] = []

    @staticmethod
    def serves(model: torch.nn.Module) -> bool:
        """Whether the model's attention and cache can be driven with rows of unequal length."""
        forward = _Forward(model, SamplingParams())
        # Other attention kernels (flash, flex) do not take a mask of four dimensions.
        plain_attention = forward.config._attn_implementation in ("sdpa", "eager")
        layers = SlotCache.layer_count_for(forward.config)
        return plain_attention and forward.accepts_positions and layers is not None

    def start(self, sequences: Sequence[TokenSequence]) -> None:
        """Read what is new, shared prompts once, in batches of similar length; sample one token each."""
        leaders: dict[Hashable, TokenSequence] = {}
        followers: defaultdict[TokenSequence, list[TokenSequence]] = defaultdict(list)
        fresh: list[TokenSequence] = []
        for sequence in sequences:
            if sequence.row < 0:
                self._claim_row(sequence)
            prompt = (sequence.group, tuple(sequence.tokens)) if sequence.cached == 0 else id(sequence)
            leader = leaders.setdefault(prompt, sequence)
            (fresh if leader is sequence else followers[leader]).append(sequence)
        fresh.sort(key=lambda s: (len(s.tokens) - s.cached, s.row))
        for batch in self._batches(fresh):
            self._read(batch, followers)

    def step(self, sequences: Sequence[TokenSequence]) -> None:
        """Extend all by one token, reading consecutive cache rows without copying them."""
        height = 1 + max(s.row for s in sequences)
        if height > _COMPACT_AT * len(sequences):
            self._compact(sequences)
            height = len(sequences)
        tokens = [0] * height
        positions = [0 if owner is None else owner.cached for owner in self._owners[:height]]
        for sequence in sequences:
            tokens[sequence.row] = sequence.tokens[-1]
        width = 1 + max(s.cached for s in sequences)
        # An idle row's dummy entry lands behind its last valid one, where a real one will overwrite it.
        self._cache.reserve(len(self._owners), 1 + max(positions))
        device = self._forward.device
        positions_B_1 = torch.tensor(positions, device=device)[:, None]
        window = Window(torch.arange(height, device=device), slice(0, height), positions_B_1, width)
        logits = self._run(torch.tensor(tokens, device=device)[:, None], window, positions_B_1)
        rows = torch.tensor([s.row for s in sequences], device=device)
        for sequence in sequences:
            sequence.cached += 1
        self._forward.sample_into(sequences, logits[rows])

    def free(self, sequence: TokenSequence) -> None:
        """Leave the row to the next sequence."""
        if sequence.row >= 0:
            self._owners[sequence.row] = None
            sequence.row, sequence.cached = -1, 0

    def _claim_row(self, sequence: TokenSequence) -> None:
        try:
            sequence.row = self._owners.index(None)
        except ValueError:
            sequence.row = len(self._owners)
            self._owners.append(None)
        self._owners[sequence.row] = sequence

    def _batches(self, sequences: Sequence[TokenSequence]) -> list[list[TokenSequence]]:
        """Split sequences in order of length so that no batch reads too much or is mostly padding."""
        batches: list[list[TokenSequence]] = []
        total = 0
        for sequence in sequences:
            length = len(sequence.tokens) - sequence.cached
            total += length
            size = len(batches[-1]) + 1 if batches else 0
            too_big = size * length > self._read_tokens
            too_ragged = size * length > max(1.5 * total, total + 256)
            if not batches or too_big or too_ragged:
                batches.append([])
                total = length
            batches[-1].append(sequence)
        return batches

    def _read(
        self, batch: Sequence[TokenSequence], followers: dict[TokenSequence, list[TokenSequence]]
    ) -> None:
        device = self._forward.device
        news = [len(s.tokens) - s.cached for s in batch]
        longest = max(news)
        self._cache.reserve(len(self._owners), max(s.cached for s in batch) + longest)
        # Padding stands on the left, so that every row's last token is in the last column.
        tokens = [[0] * (longest - new) + s.tokens[s.cached :] for s, new in zip(batch, news, strict=True)]
        starts = torch.tensor([s.cached for s in batch], device=device)[:, None]
        pads = longest - torch.tensor(news, device=device)[:, None]
        columns = torch.arange(longest, device=device)[None]
        real = starts + columns - pads
        # Padding is written behind the row's last real token, where it is masked until overwritten.
        positions = torch.where(columns < pads, starts + longest - pads + columns, real)
        rows = [s.row for s in batch]
        window = Window(torch.tensor(rows, device=device), None, positions, max(len(s.tokens) for s in batch))
        logits = self._run(torch.tensor(tokens, device=device), window, real.clamp(min=0))
        everyone, picks = list(batch), list(range(len(batch)))
        sources: list[int] = []
        for pick, leader in enumerate(batch):
            leader.cached = len(leader.tokens)
            for member in followers.get(leader, ()):
                member.cached = leader.cached
                everyone.append(member)
                picks.append(pick)
                sources.append(leader.row)
        members = everyone[len(batch) :]
        self._cache.copy_rows(sources, [member.row for member in members], window.width)
        self._forward.sample_into(everyone, logits[torch.tensor(picks, device=device)])

    def _run(self, tokens: torch.Tensor, window: Window, positions: torch.Tensor) -> torch.Tensor:
        """One forward pass; a query sees the keys of its row up to its own position."""
        dtype = self._forward.dtype
        hidden = torch.arange(window.width, device=tokens.device) > positions[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=tokens.device)
        mask.masked_fill_(hidden, torch.finfo(dtype).min)
        self._cache.window = window
        logits, _ = self._forward(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        return logits

    def _compact(self, running: Sequence[TokenSequence]) -> None:
        """Exchange rows so that the running sequences have the first ones."""
        count = len(running)
        high = [s for s in running if s.row >= count]
        taken = {s.row for s in running}
        low = [row for row in range(count) if row not in taken]
        sources, targets = [s.row for s in high], low
        moved = [self._owners[row] for row in low]
        kept = [(owner.cached, s.row, row) for owner, s, row in zip(moved, high, low, strict=True) if owner]
        length = max([s.cached for s in high] + [cached for cached, _, _ in kept], default=0)
        self._cache.copy_rows(
            sources + [row for _, _, row in kept], targets + [row for _, row, _ in kept], length
        )
        for sequence, row, owner in zip(high, low, moved, strict=True):
            self._owners[sequence.row] = owner
            if owner is not None:
                owner.row = sequence.row
            self._owners[row] = sequence
            sequence.row = row


@dataclass(eq=False, slots=True)
class _Bucket:
    """Sequences whose contexts are equally long, and the model's own cache of them."""

    sequences: list[TokenSequence]
    cache: Any


class RecomputeDecoder:
    """Reads the whole context again each turn; right for every model, and the slower for it."""

    def __init__(self, model: torch.nn.Module, params: SamplingParams, *, max_rows: int) -> None:
        self._forward = _Forward(model, params)
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
