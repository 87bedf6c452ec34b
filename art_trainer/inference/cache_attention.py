"""Attention over the rows of a key-value cache, and to the prompts that many rows share.

A softmax over two sets of keys is a weighted mean of the softmax over each, and the weights follow from the
two sums of exponentials (arXiv:2205.14135, section 3.1). So the queries of all rows meet the keys of their
shared prompt side by side, the keys that follow it row by row, and the two results are mixed. That reads a
group's prompt once a step instead of once an attempt.

:class:`SharedPrefixes` is for CPUs. :class:`FlashRows` is for GPUs: two calls of a kernel a layer, whatever
the rows' lengths, and nothing in it depends on numbers that only the host knows, so that a step can be
replayed (:mod:`art_trainer.inference.cuda_graphs`).
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from art_trainer.inference.generation import SamplingModel
from art_trainer.inference.kv_cache import SlotCache, Table, Window
from art_trainer.models.cache_name import CACHE_NAME
from art_trainer.models.flash_attention import Runs, attend_runs, has_kernels
from art_trainer.models.tree_attention import unusual_arguments

_NAME = "art_shared_prefixes"
# PyTorch's attention that also returns the logarithm of the sum of exponentials; on a CPU only this one does.
_flash: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)

Attention = Callable[..., tuple[Tensor, None]]
"""One layer's attention as Transformers calls it: (module, query, key, value, mask, ...) to [B, Q, H, D]."""
Prefix = tuple[int, int] | None
"""The row of a shared prompt, and how many of its tokens a conversation's row sees; ``None`` without one."""


class SharedPrefixes:
    """Attention of a batch whose rows share prompts.

    Shape letters: B rows, G shared prompts, M rows of the prompt that has most, L keys of the longest part of
    a prompt that a row sees, K key heads, R query heads a key head, Q queries, D channels.

    Args:
        cache: Holds the shared prompts.
        prefixes_B: What each row sees of a prompt.
        device: The batch's device.
    """

    def __init__(self, cache: SlotCache, prefixes_B: Sequence[Prefix], device: torch.device) -> None:
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
        mask = mask if each == queries else mask.repeat(1, 1, each // queries, 1)
        own, own_sum = _flash(asked, key, value, attn_mask=mask, scale=scale)
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
        assert table.states
        keys, values = table.states
        sums_dtype = torch.promote_types(asked.dtype, torch.float32)
        found, sums = torch.zeros_like(asked), asked.new_zeros(asked.shape[:3], dtype=sums_dtype)
        for prompt, length, rows in self._parts:
            queries = asked.index_select(0, rows).transpose(0, 1)
            heads, members, each, dim = queries.shape
            part, part_sum = _flash(
                queries.reshape(1, heads, members * each, dim),
                keys[prompt : prompt + 1, :, :length],
                values[prompt : prompt + 1, :, :length],
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


def prompt_runs(prefixes_B: Sequence[Prefix]) -> NDArray[np.int32]:
    """Return which rows of a batch see which prompts, as :class:`FlashRows` takes it, int32 [6, B + 1].

    Rows that see the same part of a prompt are a run. In turn: the batch's rows, run by run and then those
    without a prompt; where each row is in that order; whether it sees a prompt; where each run starts in the
    order; its prompt; how many of the prompt's tokens it sees. There is room for a run a row.
    """
    members: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for row, prefix in enumerate(prefixes_B):
        if prefix is not None:
            members[prefix].append(row)
    count = len(prefixes_B)
    shared = [row for rows in members.values() for row in rows]
    order = np.array([*shared, *(row for row, prefix in enumerate(prefixes_B) if prefix is None)], np.int32)
    table = np.zeros((6, count + 1), np.int32)
    table[0, :count] = order
    table[1, order] = np.arange(count)
    table[2, shared] = 1
    table[3, :] = len(shared)
    table[3, : len(members)] = np.cumsum([0, *map(len, members.values())])[:-1]
    table[4:, : len(members)] = np.array(list(members)).reshape(-1, 2).T
    return table


class FlashRows:
    """Attention of a batch over its rows of the cache, and to shared prompts, by flash attention.

    Shape letters: B rows, Q queries a row, H query heads, D channels.

    Args:
        cache: Holds the rows and the prompts.
        window: The batch's part of it.
        prompts: From :func:`prompt_runs`, on the device; ``None`` if no row sees a prompt.
    """

    def __init__(self, cache: SlotCache, window: Window, prompts: Tensor | None) -> None:
        rows, queries = window.positions.shape
        self._cache, self._shared = cache, window.shared
        starts = torch.arange(rows + 1, dtype=torch.int32, device=window.rows.device) * queries
        used = (window.positions[:, -1] + 1).int()
        width = cache.shared_capacity.positions if window.shared else cache.capacity.positions
        self._rows = functional.pad(window.rows.int(), (0, 1))
        self._own = Runs(starts, starts, queries, width, used)
        self._prompts: Runs | None = None
        if prompts is not None:
            columns = torch.arange(queries, device=prompts.device)
            order, places = (
                (some[:rows, None] * queries + columns).flatten() for some in (prompts[0], prompts[1])
            )
            self._order, self._places = order, places
            self._shares = prompts[2, :rows].bool().repeat_interleave(queries, output_size=rows * queries)
            self._seen = prompts[4]
            width = cache.shared_capacity.positions
            self._prompts = Runs(prompts[3] * queries, starts, rows * queries, width, prompts[5, :rows])

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, **arguments: Any
    ) -> tuple[Tensor, None]:
        """Attend to the row's own keys and to the shared ones, and mix the two results."""
        rows, heads, queries, channels = query.shape
        scale = arguments.get("scaling") or channels**-0.5
        asked = query.transpose(1, 2).reshape(rows * queries, heads, channels)
        layer = self._cache.slots[module.layer_idx]
        table = layer.shared if self._shared else layer.own
        result, own_sum = _attend_table(asked, table, self._rows, self._own, causal=True, scale=scale)
        if self._prompts is not None:
            found, sums = _attend_table(
                asked[self._order], layer.shared, self._seen, self._prompts, causal=False, scale=scale
            )
            # The softmax's weight of the shared part: e^s / (e^s + e^o) of the two log-sum-exps.
            weight = (sums[:, self._places] - own_sum).sigmoid().T[..., None]
            mixed = torch.lerp(result, found[self._places], weight.to(result.dtype))
            result = torch.where(self._shares[:, None, None], mixed, result)
        return result.view(rows, queries, heads, channels), None


def _attend_table(
    asked: Tensor, table: Table, rows: Tensor, runs: Runs, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend to rows of a table [R, K, P, D], which a kernel reads as tokens [R * K * P, K, D] in a row."""
    assert table.states
    count, heads, positions, channels = table.states[0].shape
    size = (count * heads * positions - (heads - 1) * positions, heads, channels)
    keys, values = (s.as_strided(size, (channels, positions * channels, 1)) for s in table.states)
    runs = replace(runs, keys=rows * (heads * positions))
    return attend_runs(asked, keys, values, runs, causal=causal, scale=scale)


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
    kernels: bool = True
    """Whether flash attention takes what all layers pass."""

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **arguments: Any
    ) -> tuple[Tensor, None]:
        """Note whether keys, values and arguments are those of plain attention over the cache."""
        index = getattr(module, "layer_idx", None)
        self.plain &= unusual_arguments(arguments) <= {"scaling"} and mask.data_ptr() == self.mask.data_ptr()
        self.kernels &= has_kernels(query) and query.shape[-1] == value.shape[-1]
        if isinstance(index, int) and index < len(self.cache.slots):
            self.layers.add(index)
            window = self.cache.window
            kept = self.cache.slots[index].own.read(window.rows, window.span, window.width)
            for given, wanted in zip((key, value), kept, strict=True):
                self.plain &= given.shape == wanted.shape and given.data_ptr() == wanted.data_ptr()
        result: tuple[Tensor, None] = _sdpa(module, query, key, value, mask, **arguments)
        return result


def sharing_attention(
    model: SamplingModel, layer_count: int
) -> type[SharedPrefixes] | type[FlashRows] | None:
    """Return what attends to shared prompts in a model; ``None`` if the model cannot be served so.

    Every layer's attention must be the plain one, over exactly what its cache returns. Found out with a
    forward pass of one token: models may compute their keys from what is cached, bound the logits, add sinks,
    or not pass arguments on to their layers.

    Args:
        model: The model.
        layer_count: How many layers the cache has.
    """
    accepted = inspect.signature(model.base.forward).parameters.values()
    passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted)
    if model.config._attn_implementation != "sdpa" or not passes_on:
        return None
    cache = SlotCache(layer_count)
    cache.reserve(1, 1)
    zero = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    cache.window = Window(zero[0], slice(0, 1), zero, 1)
    mask = torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=model.device)
    probe = _AttentionProbe(cache, mask)
    training = model.model.training
    model.model.eval()
    with torch.no_grad(), shared_attention(model.base):
        model.model(
            input_ids=zero, attention_mask=mask, position_ids=zero, use_cache=True,
            shared_prefixes=probe.attend, **{CACHE_NAME: cache},
        )  # fmt: skip
    model.model.train(training)
    if not probe.plain or probe.layers != set(range(layer_count)):
        return None
    if probe.kernels:
        return FlashRows
    return SharedPrefixes if model.device.type == "cpu" and _flash is not None else None
