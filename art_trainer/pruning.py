"""The last decoder layer computed only where its result is looked at.

What a position leaves behind for others are its keys and values; what the last layer computes beside them is
for that position alone. So where few positions are asked for logits, most of the layer's work can be left out
for the others: the feed-forward part, and where the attention can be told which queries are wanted (that over
a tree of tokens can) their projections and scores too. Exact, since no other position sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from art_trainer.tree_attention import TreePlan

_PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
_QUERIES = (("q_proj", "q_proj"), ("q_a_proj", "q_b_proj"))
"""What makes an attention's queries, by the names of the first and the last projection."""


def can_prune(decoder: Any) -> bool:
    """Whether the decoder's last layer has the parts of a Llama layer, by their names.

    That they are put together in the same way is for a comparison with the model's own forward to show. A
    layer whose forward somebody has replaced, as libraries that move weights do, is left alone.
    """
    layers = getattr(decoder, "layers", None)
    if layers is None or len(layers) == 0 or "forward" in vars(layers[-1]):
        return False
    return all(hasattr(layers[-1], part) for part in _PARTS)


@contextmanager
def pruned(decoder: Any, positions_N: Tensor, tree: TreePlan | None = None) -> Iterator[None]:
    """Within, the decoder returns hidden states [1, N, H] of these positions alone.

    Args:
        decoder: One that :func:`can_prune`.
        positions_N: Flat indices into [B, Q].
        tree: The plan of the last layer's attention, where it is one over a tree; its queries are the
            positions.
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
        result: Tensor = hidden + fed
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
    """Let an attention over one row make its queries, and project its results, at these positions only."""
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
