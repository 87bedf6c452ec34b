"""Keys and values of many conversations, kept from turn to turn.

Each conversation owns one row of preallocated tensors, and each forward pass writes its new keys and values
at every row's own position. So rows of unequal length have no holes, a row can wait while others run, and a
freed row is used again at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer
from transformers.configuration_utils import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class Window:
    """Where one forward pass reads and writes.

    Attributes:
        rows: The cache rows of the batch ``[B]``.
        span: The same rows as a slice where they are consecutive, which reads them without a copy.
        positions: For each query token the position its key goes to ``[B, Q]``.
        width: How many positions are read; at least every position a query may see.
    """

    rows: torch.Tensor
    span: slice | None
    positions: torch.Tensor
    width: int


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's keys and values ``[rows, heads, capacity, dim]``; keys and values may differ in shape."""

    is_sliding = False

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate, now that heads, size and type are known."""
        self.keys = self._allocate(key_states)
        self.values = self._allocate(value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new states ``[B, heads, Q, dim]`` at the window and return what its rows hold."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        window = self._cache.window
        return self._write(self.keys, key_states, window), self._write(self.values, value_states, window)

    def grow(self) -> None:
        """Move to tensors of the cache's new size."""
        if not self.is_initialized:
            return
        self.keys = self._enlarged(self.keys)
        self.values = self._enlarged(self.values)

    def move(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Copy the first ``length`` positions of some rows to others; rows may be in both."""
        for states in (self.keys, self.values):
            if states is not None:
                states[targets, :, :length] = states[:, :, :length].index_select(0, sources)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys a mask covers."""
        return self._cache.window.width, 0

    def get_seq_length(self) -> int:
        """Positions in use before this pass; rows differ, so this is the most any may have."""
        return self._cache.window.width - self._cache.window.positions.shape[1]

    def get_max_length(self) -> int:
        """No maximum: the cache grows."""
        return -1

    def _allocate(self, states: torch.Tensor) -> torch.Tensor:
        _, heads, _, dim = states.shape
        return states.new_zeros(self._cache.row_count, heads, self._cache.capacity, dim)

    def _enlarged(self, states: torch.Tensor | None) -> torch.Tensor:
        assert states is not None
        larger = self._allocate(states)
        larger[: states.shape[0], :, : states.shape[2]] = states
        return larger

    @staticmethod
    def _write(states: torch.Tensor, new: torch.Tensor, window: Window) -> torch.Tensor:
        states[window.rows[:, None], :, window.positions] = new.transpose(1, 2)
        if window.span is not None:
            return states[window.span, :, : window.width]
        return states[:, :, : window.width].index_select(0, window.rows)


class SlotCache(Cache):
    """All layers' rows. Set :attr:`window` before each forward pass."""

    window: Window

    def __init__(self, layer_count: int) -> None:
        self.row_count = 0
        self.capacity = 0
        self.slots = [SlotLayer(self) for _ in range(layer_count)]
        super().__init__(layers=list(self.slots))

    @staticmethod
    def layer_count_for(config: PreTrainedConfig) -> int | None:
        """How many layers a model needs, or ``None`` where its cache is not plain keys and values.

        Sliding windows, linear attention and indexed attention keep other things than one entry a token;
        compressed latents (DeepSeek-V3, Kimi K2) are one entry a token and fit.
        """
        layers = DynamicCache(config=config).layers
        if not layers or any(type(layer) is not DynamicLayer for layer in layers):
            return None
        return len(layers)

    def reserve(self, rows: int, positions: int) -> None:
        """Make room for at least so many rows and positions, by doubling, so that growth is rare."""
        if rows <= self.row_count and positions <= self.capacity:
            return
        if rows > self.row_count:
            self.row_count = max(rows, 2 * self.row_count)
        if positions > self.capacity:
            self.capacity = -(-max(positions, self.capacity * 3 // 2) // 64) * 64
        for layer in self.slots:
            layer.grow()

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` positions of the rows ``sources`` to ``targets``, in every layer."""
        if not sources or length == 0 or not self.slots[0].is_initialized:
            return
        keys = self.slots[0].keys
        assert keys is not None
        source = torch.tensor(sources, device=keys.device)
        target = torch.tensor(targets, device=keys.device)
        for layer in self.slots:
            layer.move(source, target, length)
