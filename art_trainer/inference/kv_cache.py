"""Key-value cache with one row a conversation, and attention to a prompt that many rows share.

Each conversation owns one row of preallocated tensors, and each forward pass writes its new keys and values
at every row's own position. So rows of unequal length have no holes, a row can wait while others run, and a
freed row is used again at once.

A prompt that several conversations begin with is stored once, in a second table of shared rows; their own
rows then hold only what follows. A softmax over two sets of keys is a weighted mean of the softmax over each,
and the weights follow from the two sums of exponentials (arXiv:2205.14135, section 3.1). So the queries of
all rows meet the keys of their shared prompt in one matrix product, the keys that follow it row by row, and
the two results are mixed. That reads a group's prompt once a step instead of once an attempt.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from art_trainer.models.tree_attention import unusual_arguments

SMALL_TABLES = 2**29
"""Bytes of all tables below which they are kept from one rollout to the next."""


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

    def fit(self, rows: int, positions: int) -> bool:
        """Grow, by at least an eighth, so that copies are rare; return whether anything changed."""
        if rows <= self.rows and positions <= self.positions:
            return False
        if rows > self.rows:
            self.rows = max(rows, self.rows * 9 // 8)
        if positions > self.positions:
            self.positions = -(-max(positions, self.positions * 9 // 8) // 64) * 64
        return True


class Table:
    """One layer's keys and values ``[rows, heads, positions, dim]``; the two may differ in shape."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are allocated."""
        return sum(states.nbytes for states in (self.keys, self.values) if states is not None)

    def write(self, keys: Tensor, values: Tensor, window: Window) -> None:
        """Write new states ``[B, heads, Q, dim]`` at the window."""
        if self.keys is None or self.values is None:
            self.keys, self.values = self._allocate(keys), self._allocate(values)
        place = window.rows[:, None], slice(None), window.positions
        self.keys[place] = keys.transpose(1, 2)
        self.values[place] = values.transpose(1, 2)

    def read(self, rows: Tensor, span: slice | None, width: int) -> tuple[Tensor, Tensor]:
        """Return the first ``width`` positions of some rows; a view if they are consecutive."""
        assert self.keys is not None
        assert self.values is not None
        if span is not None:
            return self.keys[span, :, :width], self.values[span, :, :width]
        keys, values = self.keys[:, :, :width], self.values[:, :, :width]
        return keys.index_select(0, rows), values.index_select(0, rows)

    def grow(self) -> None:
        """Move to tensors of the new capacity."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self._enlarged(self.keys), self._enlarged(self.values)

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first ``length`` positions of some rows to others; rows may be in both."""
        for states in (self.keys, self.values):
            if states is not None:
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
        self._cache = cache
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
    """All layers' rows. Set :attr:`window` before each forward pass."""

    window: Window

    def __init__(self, layer_count: int) -> None:
        self.capacity = Capacity()
        self.shared_capacity = Capacity()
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
            for layer in self.slots:
                (layer.shared if shared else layer.own).grow()

    def clear(self) -> None:
        """Free both tables of every layer, unless they are small: new ones cost a tiny model time."""
        if sum(table.nbytes for layer in self.slots for table in (layer.own, layer.shared)) < SMALL_TABLES:
            return
        for capacity in (self.capacity, self.shared_capacity):
            capacity.rows = capacity.positions = 0
        for layer in self.slots:
            for table in (layer.own, layer.shared):
                table.keys = table.values = None

    def copy_rows(
        self, sources: Sequence[int], targets: Sequence[int], length: int, *, shared: bool = False
    ) -> None:
        """Copy the first ``length`` positions of rows of one of the tables to others, in every layer."""
        tables = [layer.shared if shared else layer.own for layer in self.slots]
        keys = tables[0].keys
        if not sources or length == 0 or keys is None:
            return
        source = torch.tensor(sources, device=keys.device)
        target = torch.tensor(targets, device=keys.device)
        for table in tables:
            table.move(source, target, length)


_NAME = "art_shared_prefixes"
# PyTorch's attention that also returns the logarithm of the sum of exponentials; on a CPU only this one does.
_flash: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)

Attention = Callable[..., tuple[Tensor, None]]
"""One layer's attention as Transformers calls it: (module, query, key, value, mask, ...) to [B, Q, H, D]."""


class SharedPrefixes:
    """Attention of a batch whose rows share prompts.

    Shape letters: B rows, G shared prompts, M rows of the prompt that has most, L keys of the longest part of
    a prompt that a row sees, K key heads, R query heads a key head, Q queries, D channels.

    Args:
        cache: Holds the shared prompts.
        prefixes_B: For each row its prompt's row in the shared table and how many of its tokens the row sees;
            ``None`` for a row without a prompt.
        device: The batch's device.
    """

    def __init__(
        self, cache: SlotCache, prefixes_B: Sequence[tuple[int, int] | None], device: torch.device
    ) -> None:
        members: dict[int, list[tuple[int, int]]] = {}
        for row, prefix in enumerate(prefixes_B):
            if prefix is not None:
                members.setdefault(prefix[0], []).append((row, prefix[1]))
        used = sorted(members)
        # Prompts of no row are read along if that spares copying those of the others.
        self._span = slice(used[0], used[-1] + 1) if used[-1] - used[0] < 2 * len(used) else None
        prompts = used if self._span is None else list(range(self._span.start, self._span.stop))
        most = max(map(len, members.values()))
        self._width = max(length for found in members.values() for _, length in found)
        # Unused places of [G, M] hold row 0 and see all keys; nobody reads their result.
        members_GM = [[0] * most for _ in prompts]
        lengths_GM = [[self._width] * most for _ in prompts]
        places_B = [0] * len(prefixes_B)
        for g, prompt in enumerate(prompts):
            for m, (row, length) in enumerate(members.get(prompt, ())):
                members_GM[g][m], lengths_GM[g][m], places_B[row] = row, length, g * most + m

        def tensor(values: Any) -> Tensor:
            return torch.tensor(values, device=device)

        self._cache = cache
        self._rows_G, self._members_GM, self._places_B = tensor(prompts), tensor(members_GM), tensor(places_B)
        self._members = members
        self._lengths_GM = tensor(lengths_GM)
        self._shares_B = tensor([prefix is not None for prefix in prefixes_B])
        self._all_share = None not in prefixes_B
        self._masked = any(length != self._width for lengths in lengths_GM for length in lengths)
        self._mask: Tensor | None = None

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **arguments: Any
    ) -> tuple[Tensor, None]:
        """Attend to the row's own keys and to the shared ones, and mix the two results."""
        rows, heads, queries, dim = query.shape
        key_heads, scale = key.shape[1], arguments.get("scaling")
        # Query heads of one key head become further queries, [B, K, R * Q, D], so keys are never repeated.
        asked = query.reshape(rows, key_heads, -1, dim)
        each = asked.shape[2]
        own, own_sum = _flash(asked, key, value, attn_mask=_repeated(mask, each // queries), scale=scale)
        table = self._cache.slots[module.layer_idx].shared
        if queries > 1:
            shared, shared_sum = self._attend_by_parts(table, asked, scale)
        else:
            shared, shared_sum = self._attend_together(table, asked, scale)
        # The softmax's weight of the shared part: e^s / (e^s + e^o) of the two log-sum-exps.
        weight = (shared_sum - own_sum).sigmoid()
        if not self._all_share:
            weight = weight * self._shares_B[:, None, None]
        mixed = torch.lerp(own, shared, weight[..., None].to(own.dtype))
        return mixed.reshape(rows, heads, queries, dim).transpose(1, 2).contiguous(), None

    @cached_property
    def _parts(self) -> list[tuple[int, int, Tensor]]:
        """The prompts, how many of their tokens are seen, and the rows that see these."""
        rows_of: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for prompt, found in self._members.items():
            for row, length in found:
                rows_of[prompt, length].append(row)
        device = self._places_B.device
        return [(*part, torch.tensor(rows, device=device)) for part, rows in rows_of.items()]

    def _attend_by_parts(self, table: Table, asked: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
        """Attend to one prompt after the other: exact sizes, which many queries a row are worth."""
        assert table.keys is not None
        assert table.values is not None
        sums_dtype = torch.promote_types(asked.dtype, torch.float32)
        found, sums = torch.zeros_like(asked), asked.new_zeros(asked.shape[:3], dtype=sums_dtype)
        for prompt, length, rows in self._parts:
            queries = asked.index_select(0, rows).transpose(0, 1)
            heads, members, each, dim = queries.shape
            part, part_sum = _flash(
                queries.reshape(1, heads, members * each, dim),
                table.keys[prompt : prompt + 1, :, :length],
                table.values[prompt : prompt + 1, :, :length],
                scale=scale,
            )
            found[rows] = part.view(queries.shape).transpose(0, 1)
            sums[rows] = part_sum.view(heads, members, each).transpose(0, 1)
        return found, sums

    def _attend_together(self, table: Table, asked: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
        """Attend to all prompts in one call, which spares many small ones when a row asks a single query."""
        _, key_heads, each, dim = asked.shape
        prompts, places = self._members_GM.shape
        # All queries to one prompt side by side: [G, K, M * R * Q, D].
        gathered = asked.index_select(0, self._members_GM.flatten()).view(
            prompts, places, key_heads, each, dim
        )
        gathered = gathered.transpose(1, 2).reshape(prompts, key_heads, places * each, dim)
        keys, values = table.read(self._rows_G, self._span, self._width)
        found, found_sum = _flash(
            gathered, keys, values, attn_mask=self._visible(each, asked.dtype), scale=scale
        )
        shared = self._to_rows(found.reshape(prompts, key_heads, places, each, dim))
        return shared, self._to_rows(found_sum.reshape(prompts, key_heads, places, each))

    def _to_rows(self, states: Tensor) -> Tensor:
        """Rearrange [G, K, M, …] to [B, K, …]."""
        return states.transpose(1, 2).flatten(0, 1).index_select(0, self._places_B)

    def _visible(self, each: int, dtype: torch.dtype) -> Tensor | None:
        """Return the additive mask [G, 1, M * each, L] that hides keys from rows; equal in all layers."""
        if self._masked and self._mask is None:
            keys = torch.arange(self._width, device=self._lengths_GM.device)
            hidden = (keys >= self._lengths_GM[..., None]).repeat_interleave(each, dim=1)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._mask = mask.masked_fill_(hidden, torch.finfo(dtype).min)[:, None]
        return self._mask


def _repeated(mask: Tensor, times: int) -> Tensor:
    return mask if times == 1 else mask.repeat(1, 1, times, 1)


def _dispatch(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    shared_prefixes: Attention | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    if shared_prefixes is None:
        result: tuple[Tensor, None] = _sdpa(module, query, key, value, attention_mask, **arguments)
        return result
    return shared_prefixes(module, query, key, value, attention_mask, **arguments)


_sdpa: Any = ALL_ATTENTION_FUNCTIONS["sdpa"]
AttentionInterface.register(_NAME, _dispatch)


@contextmanager
def shared_attention(base: PreTrainedModel) -> Iterator[None]:
    """Within, the model's layers call the ``shared_prefixes`` passed to its forward as their attention."""
    config: Any = base.config.get_text_config(decoder=True)
    usual = config._attn_implementation
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = usual


@dataclass
class _AttentionProbe:
    """Checks what the layers pass to their attention, and computes it as usual."""

    cache: SlotCache
    mask: Tensor
    layers: set[int] = field(default_factory=set)
    plain: bool = True

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **arguments: Any
    ) -> tuple[Tensor, None]:
        """Note whether keys, values and arguments are those of plain attention over the cache."""
        index = getattr(module, "layer_idx", None)
        self.plain &= unusual_arguments(arguments) <= {"scaling"} and mask.data_ptr() == self.mask.data_ptr()
        if isinstance(index, int) and index < len(self.cache.slots):
            self.layers.add(index)
            window = self.cache.window
            kept = self.cache.slots[index].own.read(window.rows, window.span, window.width)
            for given, wanted in zip((key, value), kept, strict=True):
                self.plain &= given.shape == wanted.shape and given.data_ptr() == wanted.data_ptr()
        result: tuple[Tensor, None] = _sdpa(module, query, key, value, mask, **arguments)
        return result


def can_share(model: torch.nn.Module, base: PreTrainedModel, layer_count: int) -> bool:
    """Whether every layer's attention is plain, over exactly what its cache returns.

    Found out with a forward pass of one token: models may compute their keys from what is cached, bound the
    logits, add sinks, or not pass arguments on to their layers.

    Args:
        model: The model that is called, maybe an adapter's around ``base``.
        base: The Transformers model.
        layer_count: How many layers the cache has.
    """
    device = next(model.parameters()).device
    accepted = inspect.signature(base.forward).parameters.values()
    passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted)
    if _flash is None or device.type != "cpu" or base.config._attn_implementation != "sdpa" or not passes_on:
        return False
    cache = SlotCache(layer_count)
    cache.reserve(1, 1)
    zero = torch.zeros(1, 1, dtype=torch.long, device=device)
    cache.window = Window(zero[0], slice(0, 1), zero, 1)
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    mask = torch.zeros(1, 1, 1, 1, dtype=dtype, device=device)
    probe = _AttentionProbe(cache, mask)
    training = model.training
    model.eval()
    with torch.inference_mode(), shared_attention(base):
        model(
            input_ids=zero, attention_mask=mask, position_ids=zero, past_key_values=cache, use_cache=True,
            shared_prefixes=probe.attend,
        )  # fmt: skip
    model.train(training)
    return probe.plain and probe.layers == set(range(layer_count))
