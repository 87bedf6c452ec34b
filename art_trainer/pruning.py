"""The last decoder layer computed only where its result is looked at.

What a position leaves behind for others are its keys and values; what the last layer computes after its
attention is for that position alone. So where few positions are asked for logits, most of the layer's
work, the feed-forward part, can be left out for the others. Exact, since no other position sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

_PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


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
def pruned(decoder: Any, positions_N: Tensor) -> Iterator[None]:
    """Within, the decoder returns hidden states [1, N, H] of these positions alone.

    Args:
        decoder: One that :func:`can_prune`.
        positions_N: Flat indices into [B, Q].
    """
    layer = decoder.layers[-1]

    def forward(hidden_states: Tensor, **arguments: Any) -> Tensor:
        attended, *_ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **arguments)
        hidden = (hidden_states + attended).flatten(0, 1).index_select(0, positions_N)[None]
        fed = layer.mlp(layer.post_attention_layernorm(hidden))
        result: Tensor = hidden + fed
        return result

    layer.forward = forward
    try:
        yield
    finally:
        del layer.forward
