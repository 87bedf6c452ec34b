r"""Attention over a tree of tokens laid out in one row, without a mask and without copies of keys.

All tokens of a batch go through a model as one row, each once. Only the attention has to know that they are a
tree: a token sees the tokens of its own node up to itself and all tokens of the nodes above. So a node is one
causal attention over itself, and one full attention of all its descendants, which lie together, over its keys
(Hydragen, arXiv:2402.05099, does this for a shared prompt while decoding). The partial results :math:`o_i` of
a query are merged by their log-sum-exps :math:`\ell_i`,

.. math:: o = \sum_i e^{\ell_i - \ell} o_i,\quad \ell = \log \sum_i e^{\ell_i}

and in the backward pass each part gets the merged :math:`o` and :math:`\ell`, with which the usual backward
pass of flash attention (arXiv:2307.08691, algorithm 2) gives that part's share of the gradient. This is
exact, and nothing has to be differentiated through the merging.

A CPU computes it node by node. On a GPU, where each call of a kernel costs, one call computes all nodes'
own attention and one more each level of the tree (:mod:`art_trainer.models.flash_attention`). Its kernels
take 16 bits only: for other weights a GPU uses PyTorch's own attention with a mask of [T, T], the plain
method that the others are tested against.

Hugging Face models look their attention up by name, so this is registered as one more name. Without a tree
among its arguments it is PyTorch's attention.

Shape letters: T tokens, U of them queries, H heads, D channels of a head.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from art_trainer.errors import UnsupportedModelError
from art_trainer.models.flash_attention import Runs, attend_runs, attend_runs_backward, has_kernels
from art_trainer.models.prefix_tree import Node

NAME = "token_tree"
"""The name of this attention among Hugging Face's."""

_HARMLESS = {"position_ids", "use_cache", "cache_position", "return_dict", "is_causal"}

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Queries ``[first, last)`` that attend to keys ``[begin, end)``.

    Attributes:
        causal: Whether each attends to the keys up to its own only; then there is a key for each query.
        mask: Added to the scores, if attention is neither causal nor full.
    """

    first: int
    last: int
    begin: int
    end: int
    causal: bool = False
    mask: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Queries that attend in one call to the keys of nodes above them: one large node, or all of a depth.

    Attributes:
        queries: Their places.
        keys: The places of the keys.
        runs: Which of the queries attend to which of the keys.
    """

    queries: Tensor | slice
    keys: Tensor | slice
    runs: Runs


_LARGE = 4096
"""A node that so many tokens descend from is a call of its own: its queries are read where they lie."""


class TreePlan:
    """Which token attends to which, for each way to compute it as soon as that is asked for.

    Attributes:
        queries: Sorted places of the tokens whose result is wanted, [U]; ``None`` for all.
        users: The modules (their ids) that have computed their attention by this plan.

    Args:
        nodes: The tree's nodes.
        device: The model's device.
        queries: Sorted places of the tokens whose result is wanted; by default all.
    """

    def __init__(
        self, nodes: Sequence[Node], device: torch.device, queries: NDArray[np.int64] | None = None
    ) -> None:
        self._nodes, self._device, self._chosen = nodes, device, queries
        self._mask: Tensor | None = None
        self.users: set[int] = set()

    @cached_property
    def queries(self) -> Tensor | None:
        """See the class."""
        return None if self._chosen is None else self._sent(self._chosen)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """First the nodes' own parts, which hold each query once, then those of the nodes above."""
        chosen = self._chosen
        return _parts_for_all(self._nodes) if chosen is None else _parts_for(self._nodes, chosen)

    @cached_property
    def own(self) -> Runs:
        """Each node's tokens as queries and as keys."""
        firsts = [node.first for node in self._nodes]
        return self._runs(firsts, firsts, self._nodes[-1].last, self._nodes[-1].last)

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The nodes above: the large ones, and the others by their depth."""
        large: list[Node] = []
        deep: list[list[Node]] = []
        above: list[Node] = []
        for node in self._nodes:
            while above and above[-1].end <= node.first:
                above.pop()
            if node.end > node.last:
                if len(above) == len(deep):
                    deep.append([])
                (large if node.end - node.last >= _LARGE else deep[len(above)]).append(node)
                above.append(node)
        return (*map(self._large_level, large), *(self._level(nodes) for nodes in deep if nodes))

    def mask(self, dtype: torch.dtype) -> Tensor | None:
        """Return what is added to the scores [U, T] to hide keys; ``None`` for a plain causal row."""
        if self._chosen is None and len(self._nodes) == 1:
            return None
        if self._mask is None or self._mask.dtype != dtype:
            visible = tree_mask(self._nodes, self._device)
            visible = visible if self.queries is None else visible[self.queries]
            # Rows of a multiple of 16 bytes: a kernel would pad others again in every layer.
            rows, tokens = visible.shape
            padded = torch.zeros(rows, -(-tokens // 8) * 8, dtype=dtype, device=self._device)
            self._mask = padded[:, :tokens].masked_fill_(~visible, -torch.inf)
        return self._mask

    def _large_level(self, node: Node) -> Level:
        queries, keys = slice(node.last, node.end), slice(node.first, node.last)
        return Level(queries, keys, self._runs([0], [0], node.end - node.last, node.last - node.first))

    def _level(self, nodes: Sequence[Node]) -> Level:
        keys = np.concatenate([np.arange(node.first, node.last) for node in nodes])
        queries = np.concatenate([np.arange(node.last, node.end) for node in nodes])
        key_starts = np.cumsum([0] + [node.last - node.first for node in nodes])
        query_starts = np.cumsum([0] + [node.end - node.last for node in nodes])
        runs = self._runs(query_starts[:-1], key_starts[:-1], len(queries), len(keys))
        return Level(self._sent(queries), self._sent(keys), runs)

    def _runs(self, queries: ArrayLike, keys: ArrayLike, last_query: int, last_key: int) -> Runs:
        starts = [np.append(queries, last_query), np.append(keys, last_key)]
        sent = self._sent(np.stack(starts).astype(np.int32))
        most_queries, most_keys = (int(np.diff(one).max()) for one in starts)
        return Runs(sent[0], sent[1], most_queries, most_keys)

    def _sent(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _parts_for_all(nodes: Sequence[Node]) -> tuple[Part, ...]:
    own = [Part(node.first, node.last, node.first, node.last, causal=True) for node in nodes]
    above = [Part(node.last, node.end, node.first, node.last) for node in nodes if node.end > node.last]
    return (*own, *above)


def _parts_for(nodes: Sequence[Node], queries: NDArray[np.int64]) -> tuple[Part, ...]:
    own, above = [], []
    for node in nodes:
        first, last, end = np.searchsorted(queries, (node.first, node.last, node.end)).tolist()
        if last > first:
            future = torch.arange(node.first, node.last) > torch.from_numpy(queries[first:last])[:, None]
            mask = torch.zeros(future.shape).masked_fill_(future, -torch.inf)[None, None]
            own.append(Part(first, last, node.first, node.last, mask=mask))
        if end > last:
            above.append(Part(last, end, node.first, node.last))
    return (*own, *above)


def tree_mask(nodes: Sequence[Node], device: torch.device) -> Tensor:
    """Return which token sees which, bool [T, T]: those before it whose node or descendants hold it."""
    ends = np.concatenate([np.full(node.last - node.first, node.end) for node in nodes])
    end_T = torch.from_numpy(ends).to(device)
    place_T = torch.arange(len(ends), device=device)
    return (place_T <= place_T[:, None]) & (place_T[:, None] < end_T)


@contextmanager
def tree_attention(config: Any) -> Iterator[None]:
    """Within, models of this configuration use the attention of this module."""
    usual = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = usual


def attend(query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], scale: float) -> Tensor:
    """Compute differentiable attention part by part.

    Args:
        query: [1, H, U, D].
        key: [1, H, T, D].
        value: [1, H, T, D], or fewer channels.
        parts: Which queries attend to which keys; the first ones hold each query once.
        scale: Factor of the scores.

    Returns:
        [1, H, U, channels of the values].
    """
    channels = value.shape[-1]
    if channels < key.shape[-1]:
        value = functional.pad(value, (0, key.shape[-1] - channels))
    result: Tensor = _TreeAttention.apply(query, key, value, parts, scale)  # type: ignore[no-untyped-call]
    return result[..., :channels]


class _FlashTreeAttention(torch.autograd.Function):
    """The same over a whole row: [T, H, D] queries, [T, K, D] keys and values of 16 bits."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, own: Runs, levels: Sequence[Level], scale: float
    ) -> Tensor:
        out, sums = attend_runs(query, key, value, own, causal=True, scale=scale)
        total = out.float() if levels else out
        for level in levels:
            queries, keys = level.queries, level.keys
            partial, lse = attend_runs(
                query[queries], key[keys], value[keys], level.runs, causal=False, scale=scale
            )
            mine = sums[:, queries]
            both = torch.logaddexp(mine, lse)
            kept, added = ((one - both).exp_().T[..., None] for one in (mine, lse))
            merged = total[queries].mul_(kept).addcmul_(partial, added)
            if isinstance(queries, Tensor):  # else it was done in place
                total[queries] = merged
            sums[:, queries] = both
        out = total.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.own, ctx.levels, ctx.scale = own, levels, scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        query, key, value, out, sums = ctx.saved_tensors
        gradient = gradient.contiguous()
        grads = attend_runs_backward(
            gradient, query, key, value, out, sums, ctx.own, causal=True, scale=ctx.scale
        )
        totals = [grad.float() for grad in grads] if ctx.levels else grads
        for level in ctx.levels:
            queries, keys = level.queries, level.keys
            shares = attend_runs_backward(
                gradient[queries], query[queries], key[keys], value[keys], out[queries], sums[:, queries],
                level.runs, causal=False, scale=ctx.scale,
            )  # fmt: skip
            for total, share, where in zip(totals, shares, (queries, keys, keys), strict=True):
                added = total[where].add_(share)
                if isinstance(where, Tensor):
                    total[where] = added
        return *(total.to(query.dtype) for total in totals), None, None, None


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], scale: float
    ) -> Tensor:
        total = torch.promote_types(query.dtype, torch.float32)
        # Heads side by side in memory like the models' own projections, so that no copy is made later.
        out = torch.empty_like(query.transpose(1, 2), dtype=total, memory_format=torch.contiguous_format)
        out = out.transpose(1, 2)
        weight = query.new_empty(query.shape[:3], dtype=total)
        done = 0
        for part in parts:
            partial, lse = _attend(
                query[:, :, part.first : part.last],
                key[:, :, part.begin : part.end],
                value[:, :, part.begin : part.end],
                0.0,
                part.causal,
                attn_mask=None if part.mask is None else part.mask.to(query.dtype),
                scale=scale,
            )
            mine, sums = out[:, :, part.first : part.last], weight[:, :, part.first : part.last]
            # The first parts hold each query once: they initialise, the others are merged in.
            if done < query.shape[2]:
                mine.copy_(partial)
                sums.copy_(lse)
                done += part.last - part.first
                continue
            both = torch.logaddexp(sums, lse)
            mine.mul_((sums - both).exp_()[..., None]).addcmul_(partial, (lse - both).exp_()[..., None])
            sums.copy_(both)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, weight)
        ctx.parts, ctx.scale = parts, scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        query, key, value, out, weight = ctx.saved_tensors
        # The nodes' own parts, which come first, hold each query once, and over all tokens each key too.
        grads = [torch.empty_like(query), *(torch.zeros_like(x) for x in (key, value))]
        done = 0
        for part in ctx.parts:
            queries, keys = slice(part.first, part.last), slice(part.begin, part.end)
            shares = _attend_backward(
                gradient[:, :, queries],
                query[:, :, queries],
                key[:, :, keys],
                value[:, :, keys],
                out[:, :, queries],
                weight[:, :, queries],
                0.0,
                part.causal,
                attn_mask=None if part.mask is None else part.mask.to(query.dtype),
                scale=ctx.scale,
            )
            own = done < query.shape[2]
            done += part.last - part.first
            for grad, share, where in zip(grads, shares, (queries, keys, keys), strict=True):
                if own:
                    grad[:, :, where] = share
                else:
                    grad[:, :, where] += share
        return *grads, None, None


def attend_with_mask(query: Tensor, key: Tensor, value: Tensor, tree: TreePlan, scale: float) -> Tensor:
    """Compute attention with a mask of all pairs of tokens; see :func:`attend`."""
    mask = tree.mask(query.dtype)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale
    )


def unusual_arguments(arguments: Mapping[str, Any]) -> set[str]:
    """Return which arguments of a layer's attention change its result, beside query, key, value and scale."""
    given = {name for name, said in arguments.items() if said is not None and said is not False}
    return given - _HARMLESS - (set() if arguments.get("dropout") else {"dropout"})


def _tree_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    tree: TreePlan | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Attention as Hugging Face models call it; ``tree`` is passed through the decoder's arguments."""
    if tree is None:
        usual: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **arguments
        )
        return usual
    unusual = unusual_arguments(arguments) | ({"a mask"} if attention_mask is not None else set[str]())
    if unusual:
        names = ", ".join(sorted(unusual))
        raise UnsupportedModelError(f"attention with {names} cannot be computed over a tree of tokens")
    tree.users.add(id(module))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if has_kernels(query) and value.shape[-1] == query.shape[-1]:
        row = (x[0].transpose(0, 1) for x in (query, key, value))
        found: Tensor = _FlashTreeAttention.apply(*row, tree.own, tree.levels, scale)  # type: ignore[no-untyped-call]
        return found[None], None
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    asking = query if tree.queries is None else query.index_select(2, tree.queries)
    if query.device.type == "cpu":
        result = attend(asking, key, value, tree.parts, scale)
    else:
        result = attend_with_mask(asking, key, value, tree, scale)
    result = result.transpose(1, 2)
    if tree.queries is not None:
        # The model needs as many tokens as it came with; the results of the others are not used.
        everywhere = result.new_zeros(1, query.shape[2], *result.shape[2:])
        result = everywhere.index_copy(1, tree.queries, result)
    return result, None


AttentionInterface.register(NAME, _tree_attention_forward)


_LAYER = re.compile(
    r"""residual = hidden_states
hidden_states = self\.input_layernorm\(hidden_states\)
hidden_states, \w+ = self\.self_attn\(.*\)
hidden_states = residual \+ (hidden_states|self\.\w+_dropout\(hidden_states\))
residual = hidden_states
hidden_states = self\.post_attention_layernorm\(hidden_states\)
hidden_states(, \w+)? = self\.mlp\(hidden_states\)
hidden_states = residual \+ (hidden_states|self\.\w+_dropout\(hidden_states\))
return hidden_states"""
)
"""The statements of a layer's forward that :func:`pruned` computes, as Transformers writes them."""
_QUERIES = (("q_proj", "q_proj"), ("q_a_proj", "q_b_proj"))
"""Names of the first and the last projection that compute an attention's queries."""


def can_prune(decoder: Any) -> bool:
    """Whether the decoder's last layer is put together as a Llama layer, by the source of its forward.

    By its parts' names alone, or by comparing numbers, a layer with more norms or with factors could pass
    while its weights are small. Callers compare with the model's own forward too, for what the parts do. A
    layer whose forward was replaced, as libraries that offload weights do, is left alone.
    """
    layers = getattr(decoder, "layers", None)
    if layers is None or len(layers) == 0 or "forward" in vars(layers[-1]):
        return False
    return _LAYER.fullmatch(statements(type(layers[-1]).forward)) is not None


def statements(function: Any) -> str:
    """Return a function's statements without docstring and comments; empty if it has no source of its own."""
    try:
        (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    except (OSError, SyntaxError):  # made without a file, or a part of another statement
        return ""
    if not isinstance(parsed, ast.FunctionDef):
        return ""
    body = parsed.body
    return "\n".join(map(ast.unparse, body[1:] if ast.get_docstring(parsed) else body))


@contextmanager
def pruned(decoder: Any, positions_N: Tensor, tree: TreePlan | None = None) -> Iterator[None]:
    """Within, the decoder returns hidden states [1, N, H] of these positions alone.

    Other positions need only keys and values of the last layer. The feed-forward part is left out for them;
    with attention over a tree their query projections and scores are, too. This is exact.

    Args:
        decoder: One that :func:`can_prune` accepts.
        positions_N: Flat indices into [B, Q].
        tree: The plan of the last layer's attention over a tree; its queries are the positions.
    """
    layer = decoder.layers[-1]

    def forward(hidden_states: Tensor, **arguments: Any) -> Tensor:
        if tree is not None:
            arguments["tree"] = tree
        attended, *_ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **arguments)
        hidden = hidden_states.flatten(0, 1).index_select(0, positions_N)[None]
        if attended.shape[:2] != hidden.shape[:2]:
            attended = attended.flatten(0, 1).index_select(0, positions_N)[None]
        hidden = hidden + attended
        fed = layer.mlp(layer.post_attention_layernorm(hidden))
        # Experts may return their router's scores too.
        result: Tensor = hidden + (fed[0] if isinstance(fed, tuple) else fed)
        return result

    layer.forward = forward
    try:
        with ExitStack() as hooks:
            if tree is not None:
                _project_only(layer.self_attn, positions_N, hooks)
            yield
    finally:
        del layer.forward


def _project_only(attention: Any, positions_U: Tensor, hooks: ExitStack) -> None:
    """Compute queries and output projections of an attention over one row at these positions only."""
    tokens = 0

    def select(module: Any, given: tuple[Tensor]) -> tuple[Tensor]:
        nonlocal tokens
        tokens = given[0].shape[1]
        return (given[0].index_select(1, positions_U),)

    def spread(module: Any, given: tuple[Tensor], made: Tensor) -> Tensor:
        everywhere = made.new_zeros(1, tokens, made.shape[2])
        return everywhere.index_copy(1, positions_U, made)

    for names in _QUERIES:
        first, last = (getattr(attention, name, None) for name in names)
        if first is not None and last is not None:
            hooks.enter_context(first.register_forward_pre_hook(select))
            hooks.enter_context(last.register_forward_hook(spread))
            break
    if getattr(attention, "o_proj", None) is not None:
        hooks.enter_context(attention.o_proj.register_forward_pre_hook(select))
