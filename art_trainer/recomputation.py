"""Gradient checkpointing of decoder layers that also read and write a cache.

Between forward and backward a layer keeps only its inputs, and computes its insides again when its gradient
is wanted (Chen et al., arXiv:1604.06174): memory for activations falls from all layers' to about one layer's,
for about a third more computation.

Transformers' own way works in training mode only, and drops the cache, through which a group's shared prefix
reaches its members. Here the layer's cached keys and values are inputs and outputs of what is computed again,
so that their gradient flows and nothing is written to the cache twice.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from art_trainer.errors import UnsupportedModelError


def recompute_layers(model: nn.Module) -> int:
    """Let a model's decoder layers keep only their inputs wherever a gradient is wanted.

    The last layer is left as it is: its insides are needed at once when the backward pass begins. Where no
    gradient is wanted, as in sampling, nothing changes. Calling it again changes nothing either.

    Args:
        model: A Hugging Face causal language model, maybe with PEFT adapters inside its layers.

    Returns:
        How many layers are recomputed.

    Raises:
        UnsupportedModelError: Where the decoder has no list of layers.
    """
    base: Any = model
    if hasattr(base, "get_base_model"):
        base = base.get_base_model()
    layers = getattr(base.get_decoder(), "layers", ())
    if not layers or any(not hasattr(getattr(layer, "self_attn", None), "layer_idx") for layer in layers):
        raise UnsupportedModelError(
            f"gradient_checkpointing needs a decoder whose layers are attention (layers[i].self_attn); "
            f"{type(base).__name__} has others: switch it off"
        )
    for layer in layers[:-1]:
        own = vars(layer).get("forward")
        if own is not None and getattr(own, "__func__", None) is not _forward:
            raise UnsupportedModelError(
                "gradient_checkpointing cannot serve layers whose forward a library has replaced, as those "
                "that move weights do: switch one of the two off"
            )
        # A bound method, which a deep copy of the model binds to the copied layer.
        layer.forward = types.MethodType(_forward, layer)
    return len(layers) - 1


def _forward(layer: Any, hidden_states: Tensor, **arguments: Any) -> Any:
    plain = type(layer).forward
    if not torch.is_grad_enabled():
        return plain(layer, hidden_states, **arguments)
    cache = arguments.pop("past_key_values", None)
    if cache is None:

        def compute(hidden: Tensor) -> Any:
            return plain(layer, hidden, **arguments)

        return checkpoint(compute, hidden_states, use_reentrant=False, preserve_rng_state=False)
    if not isinstance(cache, DynamicCache) or any(type(one) is not DynamicLayer for one in cache.layers):
        raise UnsupportedModelError(
            "gradient_checkpointing serves plain caches of keys and values only, not a "
            f"{type(cache).__name__}: switch gradient_checkpointing or share_prefixes off"
        )
    return _with_cache(layer, hidden_states, cache, arguments)


def _with_cache(layer: Any, hidden_states: Tensor, cache: DynamicCache, arguments: dict[str, Any]) -> Any:
    """Compute a layer that extends its own part of the cache."""
    index = int(layer.self_attn.layer_idx)
    held: Any = cache.layers[index] if index < len(cache.layers) else None
    before = (held.keys, held.values) if held is not None and held.is_initialized else ()

    def compute(hidden: Tensor, *states: Tensor) -> tuple[Any, Tensor, Tensor]:
        own = DynamicCache()
        if states:
            _put(own, index, *states)
        output = type(layer).forward(layer, hidden, past_key_values=own, **arguments)
        after: Any = own.layers[index]
        return output, after.keys, after.values

    output, keys, values = checkpoint(
        compute, hidden_states, *before, use_reentrant=False, preserve_rng_state=False
    )
    _put(cache, index, keys, values)
    return output


def _put(cache: DynamicCache, index: int, keys: Tensor, values: Tensor) -> None:
    """Set what a cache holds of one layer."""
    while len(cache.layers) <= index:
        cache.layers.append(DynamicLayer())  # type: ignore[no-untyped-call]
    layer: Any = cache.layers[index]
    if not layer.is_initialized:
        layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
