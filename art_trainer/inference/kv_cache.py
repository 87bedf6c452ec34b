"""Key-value cache with one row a conversation, and a second table for prompts that many rows share.

Each conversation owns one row of preallocated tensors, and each forward pass writes its new keys and values
at every row's own position. So rows of unequal length have no holes, a row can wait while others run, and a
freed row is used again at once.

A prompt that several conversations begin with is stored once, in a table of shared rows; their own rows then
hold only what follows (:mod:`art_trainer.inference.cache_attention`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)
from transformers.configuration_utils import PreTrainedConfig

SMALL_TABLES = 2**29
"""Bytes of all tables below which they are kept from one rollout to the next."""
SMALL_LASTING_TABLES = 2**32
"""The same for tables that should stay where they are."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the cache that one forward pass reads and writes.

    Attributes:
        rows: The cache rows of the batch [B].
        span: The same rows as a slice if they are consecutive, which reads them without a copy.
        positions: For each query token the position its key is written to [B, Q], counted in its row.
        width: How many positions are read; at least every position a query may see.
        shared: Whether the rows are of the shared table instead of the conversations' own.
    """

    rows: Tensor
    span: slice | None
    positions: Tensor
    width: int
    shared: bool = False


@dataclass(slots=True)
class Capacity:
    """How many rows and positions are allocated."""

    rows: int = 0
    positions: int = 0
    growth: float = 1 / 8
    """By which part of what there is it grows at least, so that copies are rare."""
    usual: int = 0
    """Positions that the last rollout came to; the next one's first tables have as many."""

    def fit(self, rows: int, positions: int) -> bool:
        """Grow if there is need; return whether anything changed."""
        if rows <= self.rows and positions <= self.positions:
            return False
        if self.positions == 0:
            positions = max(positions, self.usual)
        if rows > self.rows:
            self.rows = max(rows, int(self.rows * (1 + self.growth)))
        if positions > self.positions:
            self.positions = -(-max(positions, int(self.positions * (1 + self.growth))) // 64) * 64
        return True

    def empty(self) -> None:
        """Nothing is allocated any more."""
        self.usual, self.rows, self.positions = self.positions, 0, 0


class Table:
    """One layer's keys and values ``[rows, heads, positions, dim]``; the two may differ in shape."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self.states: tuple[Tensor, Tensor] | tuple[()] = ()
        """Keys and values; none before the first are written."""

    @property
    def nbytes(self) -> int:
        """Bytes that are allocated."""
        return sum(states.nbytes for states in self.states)

    def write(self, keys: Tensor, values: Tensor, window: Window) -> None:
        """Write new states ``[B, heads, Q, dim]`` at the window."""
        self.states = own_keys, own_values = self.states or (self._allocate(keys), self._allocate(values))
        place = window.rows[:, None], slice(None), window.positions
        own_keys[place] = keys.transpose(1, 2)
        own_values[place] = values.transpose(1, 2)

    def read(self, rows: Tensor, span: slice | None, width: int) -> tuple[Tensor, Tensor]:
        """Return the first ``width`` positions of some rows; a view if they are consecutive."""
        assert self.states
        keys, values = self.states
        if span is not None:
            return keys[span, :, :width], values[span, :, :width]
        return keys[:, :, :width].index_select(0, rows), values[:, :, :width].index_select(0, rows)

    def grow(self) -> None:
        """Move to tensors of the new capacity."""
        if self.states:
            keys, values = self.states
            self.states = self._enlarged(keys), self._enlarged(values)

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first ``length`` positions of some rows to others; rows may be in both."""
        for states in self.states:
            states[targets, :, :length] = states[:, :, :length].index_select(0, sources)

    def _allocate(self, states: Tensor) -> Tensor:
        _, heads, _, dim = states.shape
        return states.new_zeros(self._capacity.rows, heads, self._capacity.positions, dim)

    def _enlarged(self, states: Tensor) -> Tensor:
        larger = self._allocate(states)
        larger[: states.shape[0], :, : states.shape[2]] = states
        return larger


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's two tables."""

    is_sliding = False

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A cycle would keep the tables of a decoder that is no longer used until garbage is collected.
        self._cache: SlotCache = weakref.proxy(cache)
        self.own = Table(cache.capacity)
        self.shared = Table(cache.shared_capacity)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the tables allocate when they are first written."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new states ``[B, heads, Q, dim]`` at the window and return what its rows hold."""
        window = self._cache.window
        table = self.shared if window.shared else self.own
        table.write(key_states, value_states, window)
        return table.read(window.rows, window.span, window.width)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys a mask covers."""
        return self._cache.window.width, 0

    def get_seq_length(self) -> int:
        """Positions in use before this pass; rows differ, so this is the most any may have."""
        return self._cache.window.width - self._cache.window.positions.shape[1]

    def get_max_length(self) -> int:
        """No maximum: the cache grows."""
        return -1


class SlotCache(Cache):
    """All layers' rows. Set :attr:`window` before each forward pass.

    Attributes:
        version: How often the tables have moved.

    Args:
        layer_count: How many layers the model has.
        lasting: Whether the tables should stay where they are: they grow by half, not by an eighth, and are
            kept if they have less than 4 GiB.
    """

    window: Window

    def __init__(self, layer_count: int, *, lasting: bool = False) -> None:
        growth = 1 / 2 if lasting else 1 / 8
        self.capacity = Capacity(growth=growth)
        self.shared_capacity = Capacity(growth=growth)
        self.version = 0
        self._small = SMALL_LASTING_TABLES if lasting else SMALL_TABLES
        self.slots = [SlotLayer(self) for _ in range(layer_count)]
        super().__init__(layers=list(self.slots))

    @staticmethod
    def layer_count_for(config: PreTrainedConfig) -> int | None:
        """Return how many layers a model needs, or ``None`` if its cache is not plain keys and values.

        Linear, indexed and chunked attention keep other things than one entry a token; compressed latents
        (DeepSeek-V3, Kimi K2) are one entry a token and fit. Layers that see a window keep all entries here,
        and a mask hides the older ones.
        """
        layers = DynamicCache(config=config).layers
        types = {type(layer) for layer in layers}
        plain = types == {DynamicLayer} or (
            types <= {DynamicLayer, DynamicSlidingWindowLayer} and SlotCache.window_for(config) is not None
        )
        return len(layers) if plain else None

    @staticmethod
    def window_for(config: PreTrainedConfig) -> int | None:
        """How many tokens, itself included, a token sees in the layers with a window; ``None`` without."""
        text: Any = config.get_text_config(decoder=True)
        if not any(type(layer) is DynamicSlidingWindowLayer for layer in DynamicCache(config=config).layers):
            return None
        known = set(getattr(text, "layer_types", None) or ()) <= {"full_attention", "sliding_attention"}
        return getattr(text, "sliding_window", None) if known else None

    def reserve(self, rows: int, positions: int, *, shared: bool = False) -> None:
        """Grow one of the tables to at least so many rows and positions."""
        capacity = self.shared_capacity if shared else self.capacity
        if capacity.fit(rows, positions):
            self.version += 1
            for layer in self.slots:
                (layer.shared if shared else layer.own).grow()

    def clear(self) -> None:
        """Free both tables of every layer, unless they are small: new ones cost a tiny model time."""
        tables = [table for layer in self.slots for table in (layer.own, layer.shared)]
        if sum(table.nbytes for table in tables) < self._small:
            return
        self.version += 1
        for capacity in (self.capacity, self.shared_capacity):
            capacity.empty()
        for table in tables:
            table.states = ()

    def copy_rows(
        self, sources: Sequence[int], targets: Sequence[int], length: int, *, shared: bool = False
    ) -> None:
        """Copy the first ``length`` positions of rows of one of the tables to others, in every layer."""
        tables = [layer.shared if shared else layer.own for layer in self.slots]
        if not sources or length == 0 or not tables[0].states:
            return
        device = tables[0].states[0].device
        source, target = (torch.tensor(rows, device=device) for rows in (sources, targets))
        for table in tables:
            table.move(source, target, length)
