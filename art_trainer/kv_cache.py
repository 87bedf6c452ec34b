"""Keys and values of many conversations, kept from turn to turn.

Each conversation owns one row of preallocated tensors, and each forward pass writes its new keys and values
at every row's own position. So rows of unequal length have no holes, a row can wait while others run, and a
freed row is used again at once. What several conversations begin with can stand once in a table of shared
rows (:mod:`art_trainer.shared_attention` reads it); their own rows then hold only what follows.
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
        positions: For each query token the position its key goes to ``[B, Q]``, counted in its row.
        width: How many positions are read; at least every position a query may see.
        shared: Whether the rows are of the shared table instead of the conversations' own.
    """

    rows: torch.Tensor
    span: slice | None
    positions: torch.Tensor
    width: int
    shared: bool = False


@dataclass(slots=True)
class Room:
    """How many rows and positions are allocated."""

    rows: int = 0
    positions: int = 0

    def fit(self, rows: int, positions: int) -> bool:
        """Make room by at least half as much again, so that growth is rare; whether anything changed."""
        if rows <= self.rows and positions <= self.positions:
            return False
        if rows > self.rows:
            self.rows = max(rows, 2 * self.rows)
        if positions > self.positions:
            self.positions = -(-max(positions, self.positions * 3 // 2) // 64) * 64
        return True


class Table:
    """One layer's keys and values ``[rows, heads, positions, dim]``; the two may differ in shape."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def write(
        self, keys: torch.Tensor, values: torch.Tensor, window: Window
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new states ``[B, heads, Q, dim]`` at the window."""
        if self.keys is None or self.values is None:
            self.keys, self.values = self._allocate(keys), self._allocate(values)
        place = window.rows[:, None], slice(None), window.positions
        self.keys[place] = keys.transpose(1, 2)
        self.values[place] = values.transpose(1, 2)
        return self.keys, self.values

    def read(self, rows: torch.Tensor, span: slice | None, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first ``width`` positions of some rows; a view where they are consecutive."""
        assert self.keys is not None
        assert self.values is not None
        if span is not None:
            return self.keys[span, :, :width], self.values[span, :, :width]
        keys, values = self.keys[:, :, :width], self.values[:, :, :width]
        return keys.index_select(0, rows), values.index_select(0, rows)

    def grow(self) -> None:
        """Move to tensors of the room's new size."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self._enlarged(self.keys), self._enlarged(self.values)

    def move(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Copy the first ``length`` positions of some rows to others; rows may be in both."""
        for states in (self.keys, self.values):
            if states is not None:
                states[targets, :, :length] = states[:, :, :length].index_select(0, sources)

    def _allocate(self, states: torch.Tensor) -> torch.Tensor:
        _, heads, _, dim = states.shape
        return states.new_zeros(self._room.rows, heads, self._room.positions, dim)

    def _enlarged(self, states: torch.Tensor) -> torch.Tensor:
        larger = self._allocate(states)
        larger[: states.shape[0], :, : states.shape[2]] = states
        return larger


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's two tables."""

    is_sliding = False

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache = cache
        self.own = Table(cache.room)
        self.shared = Table(cache.shared_room)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the tables allocate when they are first written."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
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
    """All layers' rows. Set :attr:`window` before each forward pass."""

    window: Window

    def __init__(self, layer_count: int) -> None:
        self.room = Room()
        self.shared_room = Room()
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

    def reserve(self, rows: int, positions: int, *, shared: bool = False) -> None:
        """Make room for at least so many rows and positions in one of the tables."""
        room = self.shared_room if shared else self.room
        if room.fit(rows, positions):
            for layer in self.slots:
                (layer.shared if shared else layer.own).grow()

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` positions of own rows to others, in every layer."""
        keys = self.slots[0].own.keys
        if not sources or length == 0 or keys is None:
            return
        source = torch.tensor(sources, device=keys.device)
        target = torch.tensor(targets, device=keys.device)
        for layer in self.slots:
            layer.own.move(source, target, length)
