"""Attention to a prompt that many rows share, without a copy of it in each row.

A softmax over two sets of keys is a weighted mean of the softmax over each, and the weights follow from the
two sums of exponentials (arXiv:2205.14135, section 3.1). So the queries of all rows meet the keys of their
shared prompt in one matrix product, the keys that follow it row by row, and the two results are mixed. That
reads a group's prompt once a step instead of once an attempt, and keeps one copy of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from art_trainer.kv_cache import SlotCache, Window

_NAME = "art_shared_prefixes"
# PyTorch's attention that also returns the logarithm of the sum of exponentials; on a CPU only this one does.
_flash: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
# What a layer may ask of its attention beside what every layer does, without this module having to know it.
_HARMLESS = {"position_ids", "use_cache", "cache_position", "return_dict", "is_causal"}


class Attention(Protocol):
    """Computes one layer's attention."""

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **arguments: Any
    ) -> tuple[Tensor, None]:
        """Return the attention's result [B, Q, H, D]; arguments as Transformers gives them."""


@dataclass(eq=False)
class SharedPrefixes:
    """Which rows of a batch attend to which shared prompts; implements :class:`Attention`.

    Shape letters: B rows, G shared prompts, M places of a prompt's rows, L shared keys, K key heads, R query
    heads a key head, Q queries, D.

    Attributes:
        cache: Holds the shared prompts.
        rows_G: Their rows.
        span: The same as a slice where they are consecutive.
        members_GM: The batch rows of each prompt; any row where a place is empty.
        lengths_GM: How much of its prompt each of them sees; the longest where a place is empty.
        places_B: Where in [G, M] each row is; 0 for a row without a prompt.
        shares_B: Which rows have one.
    """

    cache: SlotCache
    rows_G: Tensor
    span: slice | None
    members_GM: Tensor
    lengths_GM: Tensor
    places_B: Tensor
    shares_B: Tensor
    width: int = field(init=False)
    _all_share: bool = field(init=False)
    _mask: Tensor | None = field(init=False, default=None)
    _masked: bool = field(init=False)

    def __post_init__(self) -> None:
        self.width = int(self.lengths_GM.max())
        self._all_share = bool(self.shares_B.all())
        self._masked = bool((self.lengths_GM != self.width).any())

    @classmethod
    def of(
        cls, cache: SlotCache, prefixes_B: Sequence[tuple[int, int] | None], device: torch.device
    ) -> SharedPrefixes:
        """Arrange a batch.

        Args:
            cache: Holds the shared prompts.
            prefixes_B: For each row its prompt's row in the shared table and how much of it the row sees.
            device: Where the batch is.
        """
        members: dict[int, list[int]] = {}
        for row, prefix in enumerate(prefixes_B):
            if prefix is not None:
                members.setdefault(prefix[0], []).append(row)
        used = sorted(members)
        # Prompts of no row are read along where that spares copying those of the others.
        span = slice(used[0], used[-1] + 1) if used[-1] - used[0] < 2 * len(used) else None
        rows = used if span is None else list(range(span.start, span.stop))
        most = max(map(len, members.values()))
        members_GM = [[*found, *[0] * (most - len(found))] for found in (members.get(r, []) for r in rows)]
        longest = max(prefix[1] for prefix in prefixes_B if prefix is not None)
        lengths_GM = [[longest] * most for _ in rows]
        places_B = [0] * len(prefixes_B)
        for g, prompt in enumerate(rows):
            for m, row in enumerate(members.get(prompt, ())):
                prefix = prefixes_B[row]
                assert prefix is not None
                places_B[row], lengths_GM[g][m] = g * most + m, prefix[1]

        def tensor(values: Any) -> Tensor:
            return torch.tensor(values, device=device)

        shares = tensor([prefix is not None for prefix in prefixes_B])
        return cls(
            cache, tensor(rows), span, tensor(members_GM), tensor(lengths_GM), tensor(places_B), shares
        )

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **arguments: Any
    ) -> tuple[Tensor, None]:
        """Attend to the own keys and the shared ones, and mix."""
        rows, heads, queries, dim = query.shape
        key_heads, scale = key.shape[1], arguments.get("scaling")
        # Query heads of one key head become further queries, so that keys are never repeated.
        asked = query.reshape(rows, key_heads, -1, dim)
        each = asked.shape[2]
        own, own_sum = _flash(asked, key, value, attn_mask=_repeated(mask, each // queries), scale=scale)
        prompts, places = self.members_GM.shape
        gathered = asked.index_select(0, self.members_GM.flatten()).view(
            prompts, places, key_heads, each, dim
        )
        gathered = gathered.transpose(1, 2).reshape(prompts, key_heads, places * each, dim)
        table = self.cache.slots[module.layer_idx].shared
        keys, values = table.read(self.rows_G, self.span, self.width)
        found, found_sum = _flash(
            gathered, keys, values, attn_mask=self._visible(each, query.dtype), scale=scale
        )
        shared = self._to_rows(found.reshape(prompts, key_heads, places, each, dim))
        weight = (self._to_rows(found_sum.reshape(prompts, key_heads, places, each)) - own_sum).sigmoid()
        if not self._all_share:
            weight = weight * self.shares_B[:, None, None]
        mixed = torch.lerp(own, shared, weight[..., None].to(own.dtype))
        return mixed.reshape(rows, heads, queries, dim).transpose(1, 2).contiguous(), None

    def _to_rows(self, states: Tensor) -> Tensor:
        """From [G, K, M, …] to [B, K, …]."""
        return states.transpose(1, 2).flatten(0, 1).index_select(0, self.places_B)

    def _visible(self, each: int, dtype: torch.dtype) -> Tensor | None:
        """The mask [G, 1, M * each, L], added, of keys that are not a row's; the same in all layers."""
        if self._masked and self._mask is None:
            keys = torch.arange(self.width, device=self.lengths_GM.device)
            hidden = (keys >= self.lengths_GM[..., None]).repeat_interleave(each, dim=1)
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
    return shared_prefixes.attend(module, query, key, value, attention_mask, **arguments)


_sdpa: Any = ALL_ATTENTION_FUNCTIONS["sdpa"]
AttentionInterface.register(_NAME, _dispatch)


@contextmanager
def shared_attention(base: PreTrainedModel) -> Iterator[None]:
    """Within, the model's layers hand their attention to the ``shared_prefixes`` given to its forward."""
    config: Any = base.config.get_text_config(decoder=True)
    usual = config._attn_implementation
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = usual


@dataclass
class _Witness:
    """Looks at what the layers give to their attention, and computes it as usual."""

    cache: SlotCache
    layers: set[int] = field(default_factory=set)
    plain: bool = True

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **arguments: Any
    ) -> tuple[Tensor, None]:
        """Note whether keys, values and arguments are those of plain attention over the cache."""
        index = getattr(module, "layer_idx", None)
        asked = {name for name, said in arguments.items() if said is not None and said is not False}
        self.plain &= asked <= {"scaling", "dropout"} | _HARMLESS and not arguments.get("dropout")
        if isinstance(index, int) and index < len(self.cache.slots):
            self.layers.add(index)
            window = self.cache.window
            kept = self.cache.slots[index].own.read(window.rows, window.span, window.width)
            for given, wanted in zip((key, value), kept, strict=True):
                self.plain &= given.shape == wanted.shape and given.data_ptr() == wanted.data_ptr()
        result: tuple[Tensor, None] = _sdpa(module, query, key, value, mask, **arguments)
        return result


def can_share(model: torch.nn.Module, base: PreTrainedModel, layer_count: int) -> bool:
    """Whether every layer's attention is plain and over just what its cache returns.

    Tried with one token: models may compute their keys from what is cached, bound the logits, add sinks, or
    not pass arguments on to their layers.

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
    witness = _Witness(cache)
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    mask = torch.zeros(1, 1, 1, 1, dtype=dtype, device=device)
    training = model.training
    model.eval()
    with torch.inference_mode(), shared_attention(base):
        model(
            input_ids=zero, attention_mask=mask, position_ids=zero, past_key_values=cache, use_cache=True,
            shared_prefixes=witness,
        )  # fmt: skip
    model.train(training)
    return witness.plain and witness.layers == set(range(layer_count))
