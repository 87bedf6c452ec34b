"""A second model for sampling, beside the one that is trained."""

from __future__ import annotations

import copy

import torch


def copied_model(model: torch.nn.Module) -> torch.nn.Module:
    """A model for sampling only, which shares the weights that are not trained."""
    frozen: dict[int, object] = {
        id(weight): weight for weight in model.parameters() if not weight.requires_grad
    }
    own: torch.nn.Module = copy.deepcopy(model, frozen)
    for weight in own.parameters():
        if id(weight) not in frozen:
            weight.requires_grad_(False)
            weight.grad = None
    return own.eval()


@torch.no_grad()
def copy_weights(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """Copy what two models do not share.

    Raises:
        RuntimeError: They are not made alike.
    """
    theirs = dict(source.named_parameters()) | dict(source.named_buffers())
    own = dict(target.named_parameters()) | dict(target.named_buffers())
    if {name: weight.shape for name, weight in theirs.items()} != {
        name: weight.shape for name, weight in own.items()
    }:
        raise RuntimeError("the policy's model has other weights than when its serving began: serve it anew")
    for name, weight in own.items():
        if weight is not theirs[name]:
            weight.copy_(theirs[name])
