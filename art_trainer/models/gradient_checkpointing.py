"""Gradient checkpointing of decoder layers that works outside training mode and over a tree of tokens.

Between forward and backward a layer keeps only its inputs, and computes its insides again when its gradient
is wanted (Chen et al., arXiv:1604.06174): memory for activations falls from all layers' to about one layer's,
for about a third more computation.

Transformers' own gradient checkpointing works in training mode only, with dropout on. And by the time of the
backward pass the attention over a tree (:mod:`art_trainer.models.tree_attention`), which a layer looks up by
name, is no longer the model's; here it is set again while the layer is computed again.
"""

from __future__ import annotations

import types
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from art_trainer.errors import UnsupportedModelError
from art_trainer.models.cache_name import CACHE_NAME
from art_trainer.models.lora import base_model
from art_trainer.models.tree_attention import tree_attention


def enable_gradient_checkpointing(model: nn.Module) -> int:
    """Make a model's decoder layers keep only their inputs for the backward pass.

    The last layer is left as it is: its insides are needed at once when the backward pass begins. Without
    gradients (as in sampling) or with a cache nothing changes. Calling it again changes nothing either.

    Args:
        model: A Hugging Face causal language model, maybe with PEFT adapters inside its layers.

    Returns:
        How many layers are recomputed.

    Raises:
        UnsupportedModelError: If the decoder has no list of attention layers.
    """
    base = base_model(model)
    layers = getattr(base.get_decoder(), "layers", ())
    if not layers or any(not hasattr(layer, "self_attn") for layer in layers):
        raise UnsupportedModelError(
            f"gradient_checkpointing needs a decoder whose layers are attention (layers[i].self_attn); "
            f"{type(base).__name__} has others: switch it off"
        )
    for layer in layers[:-1]:
        own = vars(layer).get("forward")
        if own is not None and getattr(own, "__func__", None) is not _forward:
            raise UnsupportedModelError(
                "gradient_checkpointing does not work with layers whose forward a library has replaced, such "
                "as those that offload weights: switch one of the two off"
            )
        # As a bound method, so that a deep copy of the model binds it to the copied layer.
        layer.forward = types.MethodType(_forward, layer)
    return len(layers) - 1


def _forward(layer: Any, hidden_states: Tensor, **arguments: Any) -> Any:
    plain = type(layer).forward
    # A cache must be written once, not again in the backward pass.
    if not torch.is_grad_enabled() or arguments.get(CACHE_NAME) is not None:
        return plain(layer, hidden_states, **arguments)
    over_a_tree = arguments.get("tree") is not None

    def compute(hidden: Tensor) -> Any:
        with tree_attention(layer.self_attn.config) if over_a_tree else nullcontext():
            return plain(layer, hidden, **arguments)

    return checkpoint(compute, hidden_states, use_reentrant=False, preserve_rng_state=False)
