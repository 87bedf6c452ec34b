"""The decoder that keeps keys and values from turn to turn, a prompt shared by a group only once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import torch

from art_trainer.decoding import Forward, SharedPrompt, TokenSequence
from art_trainer.kv_cache import SlotCache, Window
from art_trainer.sampler import SamplingParams
from art_trainer.shared_attention import SharedPrefixes, can_share, shared_attention

# Idle rows between running ones are computed for nothing, but moving rows costs several steps: rows are moved
# when the rows computed exceed the running ones by this factor.
_COMPACT_AT = 1.5

# Shorter prompts are copied to each row: mixing two attentions costs more than it saves.
_SHARE_FROM = 64


class SlotDecoder:
    """Keeps every sequence's keys and values in a row of its own until it is freed.

    Args:
        model: A causal language model whose cache is one entry a token (see :meth:`serves`).
        params: How to sample.
        read_tokens: Most tokens, padding included, that one forward pass reads.
    """

    def __init__(self, model: torch.nn.Module, params: SamplingParams, *, read_tokens: int) -> None:
        self._forward = Forward(model, params)
        layers = SlotCache.layer_count_for(self._forward.config)
        assert layers is not None, "ask SlotDecoder.serves first"
        self._cache = SlotCache(layers)
        self._read_tokens = read_tokens
        self._owners: list[TokenSequence | None] = []
        self._prompts: list[SharedPrompt | None] = []
        self.shares = can_share(model, self._forward.base, layers)

    @staticmethod
    def serves(model: torch.nn.Module) -> bool:
        """Whether the model's attention and cache can be driven with rows of unequal length."""
        forward = Forward(model, SamplingParams())
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
            self._trim_prefix(sequence)
            prompt = (sequence.group, tuple(sequence.tokens)) if sequence.cached == 0 else id(sequence)
            leader = leaders.setdefault(prompt, sequence)
            (fresh if leader is sequence else followers[leader]).append(sequence)
        prompts = {s for s in followers if self.shares and len(s.tokens) >= _SHARE_FROM}
        for batch in self._batches(prompts):
            self._read_prompts(batch, followers)
        for batch in self._batches(s for s in fresh if s not in prompts):
            self._read_own(batch, followers)

    def step(self, sequences: Sequence[TokenSequence]) -> None:
        """Extend all by one token, reading consecutive cache rows without copying them."""
        height = 1 + max(s.row for s in sequences)
        if height > _COMPACT_AT * len(sequences):
            self._compact(sequences)
            height = len(sequences)
        tokens = [0] * height
        owners = self._owners[:height]
        places = [0 if owner is None else _kept(owner) for owner in owners]
        positions = [0 if owner is None else owner.cached for owner in owners]
        for sequence in sequences:
            tokens[sequence.row] = sequence.tokens[-1]
        width = 1 + max(_kept(s) for s in sequences)
        # An idle row's dummy entry lands behind its last valid one, where a real one will overwrite it.
        self._cache.reserve(len(self._owners), 1 + max(places))
        device = self._forward.device
        window = Window(
            torch.arange(height, device=device),
            slice(0, height),
            torch.tensor(places, device=device)[:, None],
            width,
        )
        running = set(sequences)
        logits = self._run(
            torch.tensor(tokens, device=device)[:, None],
            window,
            torch.tensor(positions, device=device)[:, None],
            [owner if owner in running else None for owner in owners],
        )
        rows = torch.tensor([s.row for s in sequences], device=device)
        for sequence in sequences:
            sequence.cached += 1
        self._forward.sample_into(sequences, logits[rows])

    def free(self, sequence: TokenSequence) -> None:
        """Leave the row to the next sequence, and the shared prompt to the others that use it."""
        if sequence.row >= 0:
            self._owners[sequence.row] = None
            sequence.row, sequence.cached = -1, 0
            self._trim_prefix(sequence)

    def _claim_row(self, sequence: TokenSequence) -> None:
        sequence.row = _first_free(self._owners)
        self._owners[sequence.row] = sequence

    def _trim_prefix(self, sequence: TokenSequence) -> None:
        """Give up what a template has rewritten of the shared prompt."""
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

    def _read_prompts(
        self, batch: Sequence[TokenSequence], followers: dict[TokenSequence, list[TokenSequence]]
    ) -> None:
        """Read prompts into the shared table; sample a first token for each of their sequences."""
        prompts = []
        for _ in batch:
            prompts.append(SharedPrompt(_first_free(self._prompts)))
            self._prompts[prompts[-1].row] = prompts[-1]
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
        width = max((leader.cached for leader, _ in pairs), default=0)
        self._cache.copy_rows([leader.row for leader, _ in pairs], [m.row for _, m in pairs], width)
        self._sample_all(batch, followers, logits)

    def _sample_all(
        self,
        batch: Sequence[TokenSequence],
        followers: dict[TokenSequence, list[TokenSequence]],
        logits: torch.Tensor,
    ) -> None:
        everyone = [
            (s, pick) for pick, leader in enumerate(batch) for s in (leader, *followers.get(leader, ()))
        ]
        picks = torch.tensor([pick for _, pick in everyone], device=logits.device)
        self._forward.sample_into([sequence for sequence, _ in everyone], logits[picks])

    def _read(self, batch: Sequence[TokenSequence], rows: Sequence[int], *, shared: bool) -> torch.Tensor:
        """Read all that is new of some sequences into rows of a table; return the last tokens' logits."""
        device = self._forward.device
        news = [len(s.tokens) - s.cached for s in batch]
        kept = [_kept(s) for s in batch]
        longest = max(news)
        room = len(self._prompts if shared else self._owners)
        self._cache.reserve(room, max(kept) + longest, shared=shared)
        # Padding stands on the left, so that every row's last token is in the last column.
        tokens = [[0] * (longest - new) + s.tokens[s.cached :] for s, new in zip(batch, news, strict=True)]
        starts = torch.tensor(kept, device=device)[:, None]
        pads = longest - torch.tensor(news, device=device)[:, None]
        columns = torch.arange(longest, device=device)[None]
        real = starts + columns - pads
        # Padding is written behind the row's last real token, where it is masked until overwritten.
        places = torch.where(columns < pads, starts + longest - pads + columns, real)
        consecutive = list(rows) == list(range(rows[0], rows[0] + len(rows)))
        window = Window(
            torch.tensor(rows, device=device),
            slice(rows[0], rows[0] + len(rows)) if consecutive else None,
            places,
            max(new + old for new, old in zip(news, kept, strict=True)),
            shared,
        )
        before = torch.tensor([s.prefix_used for s in batch], device=device)[:, None]
        return self._run(
            torch.tensor(tokens, device=device), window, (real + before).clamp(min=0), [] if shared else batch
        )

    def _run(
        self,
        tokens: torch.Tensor,
        window: Window,
        positions: torch.Tensor,
        owners: Sequence[TokenSequence | None],
    ) -> torch.Tensor:
        """One forward pass; a query sees the shared prompt of its row's owner and its row up to itself."""
        dtype = self._forward.dtype
        hidden = torch.arange(window.width, device=tokens.device) > window.positions[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=tokens.device)
        mask.masked_fill_(hidden, torch.finfo(dtype).min)
        self._cache.window = window
        inputs = {
            "input_ids": tokens,
            "attention_mask": mask,
            "position_ids": positions,
            "past_key_values": self._cache,
            "use_cache": True,
        }
        prefixes = [
            None if owner is None or owner.prefix is None else (owner.prefix.row, owner.prefix_used)
            for owner in owners
        ]
        if not any(prefixes):
            return self._forward(**inputs)[0]
        prompts = SharedPrefixes.of(self._cache, prefixes, tokens.device)
        with shared_attention(self._forward.base):
            return self._forward(**inputs, shared_prefixes=prompts)[0]

    def _compact(self, running: Sequence[TokenSequence]) -> None:
        """Exchange rows so that the running sequences have the first ones."""
        count = len(running)
        high = [s for s in running if s.row >= count]
        taken = {s.row for s in running}
        low = [row for row in range(count) if row not in taken]
        sources, targets = [s.row for s in high], low
        moved = [self._owners[row] for row in low]
        kept = [(_kept(owner), s.row, row) for owner, s, row in zip(moved, high, low, strict=True) if owner]
        length = max([_kept(s) for s in high] + [cached for cached, _, _ in kept], default=0)
        self._cache.copy_rows(
            sources + [row for _, _, row in kept], targets + [row for _, row, _ in kept], length
        )
        for sequence, row, owner in zip(high, low, moved, strict=True):
            self._owners[sequence.row] = owner
            if owner is not None:
                owner.row = sequence.row
            self._owners[row] = sequence
            sequence.row = row


def _kept(sequence: TokenSequence) -> int:
    """How many tokens the sequence's own row holds."""
    return sequence.cached - sequence.prefix_used


def _first_free(places: list[SharedPrompt | None] | list[TokenSequence | None]) -> int:
    """The first unused place, a new one where all are used."""
    if None in places:
        return places.index(None)
    places.append(None)
    return len(places) - 1
