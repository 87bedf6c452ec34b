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

That is how a CPU computes it. Other devices use PyTorch's own attention with a mask of [T, T], the plain
method that the other one is tested against.

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
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from art_trainer.errors import UnsupportedModelError
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
class TreePlan:
    """Which token attends to which.

    Attributes:
        queries: Sorted places of the tokens that attend, [U]; ``None`` for all.
        parts: First the nodes' own parts, which hold each query once, then those of the nodes above; ``None``
            if a mask is used.
        mask: Which query sees which token, bool [U, T]; ``None`` for parts or a plain causal row.
        users: The modules (their ids) that have computed their attention by this plan.
    """

    queries: Tensor | None
    parts: tuple[Part, ...] | None
    mask: Tensor | None = None
    users: set[int] = field(default_factory=set)


def plan_attention(
    nodes: Sequence[Node],
    device: torch.device,
    queries: NDArray[np.int64] | None = None,
    *,
    by_parts: bool | None = None,
) -> TreePlan:
    """Plan the attention over a tree's nodes.

    Args:
        nodes: The nodes.
        device: The model's device.
        queries: Sorted places of the tokens whose result is wanted; by default all.
        by_parts: Whether to compute it part by part or with a mask; by default the device decides.
    """
    places = None if queries is None else torch.from_numpy(queries).to(device)
    if device.type == "cpu" if by_parts is None else by_parts:
        return TreePlan(places, _parts_for_all(nodes) if queries is None else _parts_for(nodes, queries))
    if places is None:
        return TreePlan(None, None, None if len(nodes) == 1 else tree_mask(nodes, device))
    return TreePlan(places, None, tree_mask(nodes, device)[places])


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
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **arguments
        )
        return found
    unusual = unusual_arguments(arguments) | ({"a mask"} if attention_mask is not None else set[str]())
    if unusual:
        names = ", ".join(sorted(unusual))
        raise UnsupportedModelError(f"attention with {names} cannot be computed over a tree of tokens")
    tree.users.add(id(module))
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    asking = query if tree.queries is None else query.index_select(2, tree.queries)
    if tree.parts is not None:
        result = attend(asking, key, value, tree.parts, scale)
    else:
        result = functional.scaled_dot_product_attention(
            asking, key, value, attn_mask=tree.mask, is_causal=tree.mask is None, scale=scale
        )
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
    return _LAYER.fullmatch(_statements(type(layers[-1]).forward)) is not None


def _statements(function: Any) -> str:
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
