"""The decoder that keeps every sequence's keys and values from turn to turn.

Shape letters: B rows, Q query tokens, V the vocabulary.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from art_trainer.inference.cache_attention import (
    FlashRows,
    Prefix,
    SharedPrefixes,
    prompt_runs,
    shared_attention,
    sharing_attention,
)
from art_trainer.inference.cuda_graphs import StepGraphs, padded_height
from art_trainer.inference.generation import (
    SamplingModel,
    SharedPrompt,
    TokenSequence,
    common_prefix_length,
    sampling_mode,
)
from art_trainer.inference.kv_cache import SlotCache, Window
from art_trainer.inference.sampling import SamplingParams
from art_trainer.models.cache_name import CACHE_NAME
from art_trainer.models.loading import full_precision
from art_trainer.models.logprobs import rounding_tolerance
from art_trainer.models.lora import base_model

# Idle rows between running ones are computed for nothing, but moving rows costs several steps: rows are moved
# when the rows computed exceed the running ones by this factor.
_COMPACT_AT = 1.5

# Shorter prompts are copied to each row: mixing two attentions costs more than it saves.
_SHARE_FROM = 64


class SlotDecoder:
    """Keeps every sequence's keys and values in a cache row of its own until it is freed.

    A prompt shared by the sequences of a group is computed once and, if the model allows it, kept once.

    Args:
        model: A causal language model that :meth:`serves` accepts.
        params: How to sample.
        read_tokens: Most tokens, padding included, that one forward pass reads.
    """

    def __init__(self, model: torch.nn.Module, params: SamplingParams, *, read_tokens: int) -> None:
        self._model = SamplingModel(model, params)
        layers = SlotCache.layer_count_for(self._model.config)
        assert layers is not None, "ask SlotDecoder.serves first"
        self._window = SlotCache.window_for(self._model.config)
        self._mask_types = frozenset() if self._window is None else _mask_types(self._model.base)
        self._read_tokens = read_tokens
        self._owners: list[TokenSequence | None] = []
        self._prompts: list[SharedPrompt | None] = []
        self._attention = sharing_attention(self._model, layers) if self._window is None else None
        self.shares = self._attention is not None
        records = self._attention is FlashRows and self._model.device.type == "cuda"
        self._graphs = StepGraphs(model) if records else None
        self._cache = SlotCache(layers, lasting=records)

    @staticmethod
    def serves(model: torch.nn.Module) -> bool:
        """Whether the model's attention and cache can take rows of unequal length."""
        base = base_model(model)
        return can_serve(base) and (SlotCache.window_for(base.config) is None or _windows_agree(model))

    def start(self, sequences: Sequence[TokenSequence]) -> None:
        """Read what is new, in batches of similar length; sample one token each.

        What the attempts of a group have in common is read once: their prompt, and an observation after
        equal replies.
        """
        leaders: dict[Hashable, TokenSequence] = {}
        followers: defaultdict[TokenSequence, list[TokenSequence]] = defaultdict(list)
        fresh: list[TokenSequence] = []
        for sequence in sequences:
            if sequence.row < 0:
                self._claim_row(sequence)
            self._trim_prefix(sequence)
            kept = id(sequence.prefix), sequence.prefix_used, sequence.cached
            leader = leaders.setdefault((sequence.group, *kept, *sequence.tokens), sequence)
            (fresh if leader is sequence else followers[leader]).append(sequence)
        prompts = {s for s in followers if s.cached == 0 and self.shares and len(s.tokens) >= _SHARE_FROM}
        common = self._read_common([s for s in fresh if s.cached == 0], prompts)
        for batch in self._batches(prompts):
            self._read_prompts(batch, followers, common)
        if common is not None and common.users == 0:
            self._prompts[common.row] = None
        for batch in self._batches(s for s in fresh if s not in prompts):
            self._read_own(batch, followers)

    def step(self, sequences: Sequence[TokenSequence]) -> None:
        """Extend all by one token.

        All rows up to the highest running one are computed, so that the cache is read as a view.
        """
        height = 1 + max(s.row for s in sequences)
        if height > _COMPACT_AT * len(sequences):
            self._compact(sequences)
            height = len(sequences)
        if self._graphs is not None:
            height = padded_height(height)
        owners = self._owners[:height] + [None] * (height - len(self._owners))
        # An idle row's dummy entry is written behind its last valid one and overwritten by a real one.
        longest = max(owner.own_cached for owner in owners if owner is not None)
        self._cache.reserve(max(height, len(self._owners)), 1 + longest)
        running = set(sequences)
        prefixes = [_prefix(owner) if owner in running else None for owner in owners]
        prompts = prompt_runs(prefixes) if self._attention is FlashRows and any(prefixes) else None
        numbers = _step_numbers(sequences, owners)
        sent = _send(numbers if prompts is None else np.concatenate([numbers, prompts]), self._model.device)
        width = 1 + max(s.own_cached for s in sequences)

        def compute(sent: Tensor) -> Tensor:
            tokens, positions, cached = sent[:3, :height].long()
            rows = torch.arange(height, device=sent.device)
            window = Window(rows, slice(0, height), positions[:, None], width)
            given = prefixes if prompts is None else sent[5:]
            return self._run(tokens[:, None], window, cached[:, None], given)

        if self._graphs is None:
            logits = compute(sent)
        else:
            logits = self._graphs.run(self._cache.version, sent, compute)
        for sequence in sequences:
            sequence.cached += 1
        count = len(sequences)
        self._model.sample_into(
            sequences, logits[sent[3, :count].long()], sent[4, :count].view(torch.float32)
        )

    def free(self, sequence: TokenSequence) -> None:
        """Free the row, the shared prompt if no other sequence uses it, and with the last row the tables."""
        if sequence.row >= 0:
            self._owners[sequence.row] = None
            sequence.row, sequence.cached = -1, 0
            self._trim_prefix(sequence)
        if not any(self._owners):
            self._owners.clear()
            self._prompts.clear()
            self._cache.clear()

    def _claim_row(self, sequence: TokenSequence) -> None:
        sequence.row = _first_free(self._owners)
        self._owners[sequence.row] = sequence

    def _trim_prefix(self, sequence: TokenSequence) -> None:
        """Drop the part of the shared prompt that a chat template has rewritten."""
        sequence.prefix_used = min(sequence.prefix_used, sequence.cached)
        prompt = sequence.prefix
        if prompt is not None and sequence.prefix_used == 0:
            sequence.prefix = None
            prompt.users -= 1
            if prompt.users == 0:
                self._prompts[prompt.row] = None

    def _batches(self, sequences: Iterable[TokenSequence]) -> list[list[TokenSequence]]:
        """Split sequences so that no batch reads too much or is mostly padding; rows in rising order."""
        batches: list[list[TokenSequence]] = []
        total = 0
        for sequence in sorted(sequences, key=lambda s: (len(s.tokens) - s.cached, s.row)):
            length = len(sequence.tokens) - sequence.cached
            total += length
            size = len(batches[-1]) + 1 if batches else 0
            too_big = size * length > self._read_tokens
            too_ragged = size * length > max(1.5 * total, total + 256)
            if not batches or too_big or too_ragged:
                batches.append([])
                total = length
            batches[-1].append(sequence)
        return [sorted(batch, key=lambda s: s.row) for batch in batches]

    def _claim_prompt(self) -> SharedPrompt:
        prompt = SharedPrompt(_first_free(self._prompts))
        self._prompts[prompt.row] = prompt
        return prompt

    def _read_common(
        self, sequences: Sequence[TokenSequence], prompts: Container[TokenSequence]
    ) -> SharedPrompt | None:
        """Read once what all new contexts begin with, such as instructions; ``None`` if that is short.

        Those of a single sequence share it as it is; a group's prompt goes on from a copy.
        """
        if not self.shares or len(sequences) < 2:
            return None
        first = sequences[0].tokens
        length = min(common_prefix_length(first[:-1], s.tokens[:-1]) for s in sequences)
        if length < _SHARE_FROM:
            return None
        common = self._claim_prompt()
        self._read([TokenSequence(first[:length])], [common.row], shared=True)
        for sequence in sequences:
            sequence.cached = length
            if sequence not in prompts:
                sequence.prefix, sequence.prefix_used = common, length
                common.users += 1
        return common

    def _read_prompts(
        self,
        batch: Sequence[TokenSequence],
        followers: dict[TokenSequence, list[TokenSequence]],
        common: SharedPrompt | None,
    ) -> None:
        """Read prompts into the shared table; sample a first token for each of their sequences."""
        prompts = [self._claim_prompt() for _ in batch]
        if common is not None:
            self._cache.reserve(len(self._prompts), batch[0].cached, shared=True)
            rows = [prompt.row for prompt in prompts]
            self._cache.copy_rows([common.row] * len(rows), rows, batch[0].cached, shared=True)
        logits = self._read(batch, [prompt.row for prompt in prompts], shared=True)
        for leader, prompt in zip(batch, prompts, strict=True):
            for member in (leader, *followers[leader]):
                member.prefix, member.prefix_used = prompt, len(leader.tokens)
                member.cached = len(leader.tokens)
                prompt.users += 1
        self._sample_all(batch, followers, logits)

    def _read_own(
        self, batch: Sequence[TokenSequence], followers: dict[TokenSequence, list[TokenSequence]]
    ) -> None:
        """Read each sequence's new tokens into its row, and copy the row to those that are equal."""
        logits = self._read(batch, [s.row for s in batch], shared=False)
        pairs = [(leader, member) for leader in batch for member in followers.get(leader, ())]
        for sequence in batch:
            sequence.cached = len(sequence.tokens)
        for leader, member in pairs:
            member.cached = leader.cached
        width = max((leader.own_cached for leader, _ in pairs), default=0)
        self._cache.copy_rows([leader.row for leader, _ in pairs], [m.row for _, m in pairs], width)
        self._sample_all(batch, followers, logits)

    def _sample_all(
        self,
        batch: Sequence[TokenSequence],
        followers: dict[TokenSequence, list[TokenSequence]],
        logits: Tensor,
    ) -> None:
        everyone = [
            (s, pick) for pick, leader in enumerate(batch) for s in (leader, *followers.get(leader, ()))
        ]
        picks = torch.tensor([pick for _, pick in everyone], device=logits.device)
        self._model.sample_into([sequence for sequence, _ in everyone], logits[picks])

    def _read(self, batch: Sequence[TokenSequence], rows: Sequence[int], *, shared: bool) -> Tensor:
        """Read the new tokens of some sequences into table rows; return the last tokens' logits [B, V]."""
        device = self._model.device
        new = [len(s.tokens) - s.cached for s in batch]
        kept = [s.own_cached for s in batch]
        longest = max(new)
        room = len(self._prompts if shared else self._owners)
        self._cache.reserve(room, max(kept) + longest, shared=shared)
        # Padding stands on the left, so that every row's last token is in the last column.
        tokens = [[0] * (longest - len(s.tokens) + s.cached) + s.tokens[s.cached :] for s in batch]
        starts = torch.tensor(kept, device=device)[:, None]
        pads = longest - torch.tensor(new, device=device)[:, None]
        columns = torch.arange(longest, device=device)[None]
        real = starts + columns - pads
        # Padding is written behind the row's last real token and stays masked until it is overwritten.
        places = torch.where(columns < pads, starts + longest - pads + columns, real)
        consecutive = list(rows) == list(range(rows[0], rows[0] + len(rows)))
        window = Window(
            torch.tensor(rows, device=device),
            slice(rows[0], rows[0] + len(rows)) if consecutive else None,
            places,
            max(map(sum, zip(new, kept, strict=True))),
            shared,
        )
        before = torch.tensor([s.prefix_used for s in batch], device=device)[:, None]
        prefixes = [] if shared else list(map(_prefix, batch))
        flash = self._attention is FlashRows and any(prefixes)
        given = _send(prompt_runs(prefixes), device) if flash else prefixes
        return self._run(torch.tensor(tokens, device=device), window, (real + before).clamp(min=0), given)

    def _run(
        self, tokens: Tensor, window: Window, positions: Tensor, prefixes: Sequence[Prefix] | Tensor
    ) -> Tensor:
        """Run one forward pass: a query sees its row's shared prompt, and the row up to itself.

        The prompts are given by row, or as :class:`FlashRows` takes them.
        """
        self._cache.window = window
        inputs = {
            "input_ids": tokens, "position_ids": positions, CACHE_NAME: self._cache, "use_cache": True
        }  # fmt: skip
        if self._attention is FlashRows:
            prompts = prefixes if isinstance(prefixes, Tensor) else None
            inputs["shared_prefixes"] = FlashRows(self._cache, window, prompts).attend
        else:
            assert not isinstance(prefixes, Tensor)
            inputs["attention_mask"] = self._mask(window)
            if not any(prefixes):
                return self._model(**inputs)[0]
            inputs["shared_prefixes"] = SharedPrefixes(self._cache, prefixes, tokens.device).attend
        with shared_attention(self._model.base):
            return self._model(**inputs)[0]

    def _mask(self, window: Window) -> Tensor | dict[str, Tensor]:
        """Return what hides from a query what its row holds after it, for each type of layers that asks."""
        dtype = self._model.dtype
        # [B, 1, Q, width]: a query sees the positions of its row up to its own.
        places = torch.arange(window.width, device=window.rows.device)
        queries = window.positions[:, None, :, None]
        hidden = places > queries
        full = sliding = _additive(hidden, dtype)
        if self._window is not None:
            sliding = _additive(hidden | (places <= queries - self._window), dtype)
        by_type = {"full_attention": full, "sliding_attention": sliding}
        return {kind: by_type[kind] for kind in self._mask_types} or sliding

    def _compact(self, running: Sequence[TokenSequence]) -> None:
        """Swap rows so that the running sequences have the first ones."""
        count = len(running)
        high = [s for s in running if s.row >= count]
        taken = {s.row for s in running}
        low = [row for row in range(count) if row not in taken]
        sources, targets = [s.row for s in high], low
        moved = [self._owners[row] for row in low]
        kept = [
            (owner.own_cached, s.row, row) for owner, s, row in zip(moved, high, low, strict=True) if owner
        ]
        length = max([s.own_cached for s in high] + [cached for cached, _, _ in kept], default=0)
        self._cache.copy_rows(
            sources + [row for _, _, row in kept], targets + [row for _, row, _ in kept], length
        )
        for sequence, row, owner in zip(high, low, moved, strict=True):
            self._owners[sequence.row] = owner
            if owner is not None:
                owner.row = sequence.row
            self._owners[row] = sequence
            sequence.row = row


def can_serve(base: Any) -> bool:
    """Whether :meth:`SlotDecoder.serves` accepts a model if its masks for sliding windows are right too."""
    # Other attention kernels (flash, flex) do not take a mask of four dimensions, and attention that is
    # not looked up by name may have masks of its own, such as GPT-Neo's windows and Falcon's ALiBi.
    named = base.config._attn_implementation in ("sdpa", "eager") and base._supports_attention_backend
    positions = "position_ids" in inspect.signature(base.forward).parameters
    return named and positions and SlotCache.layer_count_for(base.config) is not None


def _step_numbers(
    sequences: Sequence[TokenSequence], owners: Sequence[TokenSequence | None]
) -> NDArray[np.int32]:
    """Return what a decode step reads, int32 [5, rows + 1]: one copy to the device for all.

    For each row its newest token, the place of that in the row and in the context; for each sequence its row,
    and the bits of its random number. The last column is for what may stand below, which has one more entry.
    """
    rows, count = len(owners), len(sequences)
    table = np.zeros((5, rows + 1), np.int32)
    table[0, :rows] = [0 if owner is None else owner.tokens[-1] for owner in owners]
    table[1, :rows] = [0 if owner is None else owner.own_cached for owner in owners]
    table[2, :rows] = [0 if owner is None else owner.cached for owner in owners]
    table[3, :count] = [s.row for s in sequences]
    table[4, :count] = np.array([s.uniform for s in sequences], np.float32).view(np.int32)
    return table


def _prefix(sequence: TokenSequence | None) -> Prefix:
    if sequence is None or sequence.prefix is None:
        return None
    return sequence.prefix.row, sequence.prefix_used


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores to hide keys."""
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return mask.masked_fill_(hidden, torch.finfo(dtype).min)


def _mask_types(base: PreTrainedModel) -> frozenset[str]:
    """The types of layers for which the decoder takes a mask each; empty if it takes one for all."""
    decoder = base.get_decoder()  # type: ignore[no-untyped-call]
    takes_several = "causal_mask_mapping := attention_mask" in inspect.getsource(type(decoder))
    types = getattr(decoder.config, "layer_types", None)
    return frozenset(types) if takes_several and types else frozenset()


_PROBE_WINDOW, _PROBE_LENGTH = 3, 9


def _windows_agree(model: torch.nn.Module) -> bool:
    """Whether the masks for sliding windows lead to the logits of the model's own forward.

    Found out with a window of a few tokens, so that it takes few tokens to leave it.
    """
    text: Any = base_model(model).config.get_text_config(decoder=True)
    window, text.sliding_window = text.sliding_window, _PROBE_WINDOW
    try:
        decoder = SlotDecoder(model, SamplingParams(temperature=0.0), read_tokens=_PROBE_LENGTH)
        plain = decoder._model
        sequence = TokenSequence([token % text.vocab_size for token in range(_PROBE_LENGTH)])
        with sampling_mode(model), full_precision():
            wanted, _ = plain(input_ids=torch.tensor([sequence.tokens], device=plain.device), use_cache=False)
            sequence.tokens, last = sequence.tokens[:-1], sequence.tokens[-1]
            decoder._claim_row(sequence)
            decoder._read([sequence], [0], shared=False)
            sequence.cached, sequence.tokens = _PROBE_LENGTH - 1, [*sequence.tokens, last]
            found = decoder._read([sequence], [0], shared=False)
    finally:
        text.sliding_window = window
    return bool((found - wanted).abs().max() < rounding_tolerance(wanted))


def _send(table: NDArray[np.int32], device: torch.device) -> Tensor:
    """Copy to the device, at once and without waiting for it."""
    host = torch.from_numpy(table)
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)


def _first_free(places: list[SharedPrompt | None] | list[TokenSequence | None]) -> int:
    """Return the first unused place, a new one if all are used."""
    if None in places:
        return places.index(None)
    places.append(None)
    return len(places) - 1
