"""AdamW, learning-rate schedules, and gradient steps that are skipped if not finite.

Weights of 16 bits are trained in float32 (mixed precision, arXiv:1710.03740): a step of less than 1/256 of a
bfloat16 weight would be rounded away. The optimizer steps float32 copies of them; its moments, and gradients
summed over micro-batches, are float32 too. After each step the weights are their copies, rounded.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from art_trainer.config import Optim, Schedule
from art_trainer.errors import DivergedError, UnsupportedModelError
from art_trainer.models.loading import require_bitsandbytes

_BLOCK = 256
"""Number of 8-bit moments that share a float32 scale."""
_SMALLEST_8BIT = 4096
"""Smaller tensors keep float32 moments, bitsandbytes' default."""
_BATCH = 2**26
"""Most weights that are handed over or rounded in one call."""


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name; an UnsupportedModelError if there is none, or in float16."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise UnsupportedModelError("no weight of the model has requires_grad=True: nothing to train")
    half = next((name for name, p in parameters.items() if p.dtype == torch.float16), None)
    if half is not None:
        raise UnsupportedModelError(f"{half} is float16, whose gradients over- and underflow: use bfloat16")
    return parameters


def make_optimizer(
    model: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    optim: Optim = "adamw",
) -> torch.optim.Optimizer:
    """Return AdamW over the trainable parameters; vectors (norms, biases) are not decayed.

    It steps float32 copies of parameters of 16 bits, see :func:`master_weights`.

    Raises:
        ConfigError: For 8-bit moments if bitsandbytes is not installed.
    """
    parameters = list(trained_parameters(model).values())
    matrices, vectors = [p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2]
    groups = [
        {"params": list(map(_master, weights)), "weights": weights, "weight_decay": decay}
        for weights, decay in ((matrices, weight_decay), (vectors, 0.0))
        if weights
    ]
    # Fused: one call for all weights. For a tiny model on a CPU the loop over weights is most of a step.
    make: Any = functools.partial(torch.optim.AdamW, fused=True)
    if optim == "adamw_8bit":
        require_bitsandbytes("optim='adamw_8bit'")
        make = importlib.import_module("bitsandbytes.optim").AdamW8bit
    optimizer: torch.optim.Optimizer = make(groups, lr=learning_rate, betas=betas, eps=epsilon)
    if any(weight is not master for weight, master in master_weights(optimizer).items()):
        optimizer.register_step_pre_hook(_hand_over)
        optimizer.register_step_post_hook(_round)
    return optimizer


def master_weights(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, nn.Parameter]:
    """Return what an optimizer steps for each trained weight: its float32 copy, or the weight itself."""
    return {
        weight: master
        for group in optimizer.param_groups
        for weight, master in zip(group.get("weights", group["params"]), group["params"], strict=True)
    }


def needs_master(weight: Tensor) -> bool:
    """Whether a weight has too few bits to be stepped itself."""
    return weight.dtype.itemsize < torch.float32.itemsize


def _master(weight: nn.Parameter) -> nn.Parameter:
    if not needs_master(weight):
        return weight
    weight.grad = None
    weight.grad_dtype = torch.float32  # autograd then sums in float32
    return nn.Parameter(weight.detach().float())


@torch.no_grad()
def _hand_over(optimizer: torch.optim.Optimizer, *call: Any) -> None:
    """Give the copies their weights' gradients; weights that somebody else has changed become the copies."""
    for weights, masters in _batches(optimizer):
        here = [_local(weight) for weight in weights]
        changes = [torch.empty_like(weight) for weight in here]
        torch._foreach_copy_(changes, [_local(master) for master in masters])
        torch._foreach_sub_(changes, here)
        changed = torch.stack(torch._foreach_norm(changes, 1)).tolist()
        for weight, master, change in zip(weights, masters, changed, strict=True):
            master.grad = weight.grad
            if change:
                master.copy_(torch.where(master.to(weight.dtype) == weight, master, weight))


@torch.no_grad()
def _round(optimizer: torch.optim.Optimizer, *call: Any) -> None:
    """Set the weights to their copies, rounded to the nearest number of 16 bits."""
    for weights, masters in _batches(optimizer):
        torch._foreach_copy_(list(map(_local, weights)), list(map(_local, masters)))
        for master in masters:
            master.grad = None


def _batches(optimizer: torch.optim.Optimizer) -> Iterator[tuple[list[nn.Parameter], list[nn.Parameter]]]:
    """Yield the weights that have copies, with these, so many at a time as their temporaries may take.

    An adapter has hundreds of small matrices: on a GPU a call for each would take longer than the step.
    """
    pairs = [pair for pair in master_weights(optimizer).items() if pair[0] is not pair[1]]
    while pairs:
        sizes = itertools.accumulate(weight.numel() for weight, _ in pairs)
        count = max(1, sum(size <= _BATCH for size in sizes))
        yield [weight for weight, _ in pairs[:count]], [master for _, master in pairs[:count]]
        pairs = pairs[count:]


def _local(weight: Tensor) -> Tensor:
    """Return this process's part of a sharded weight, or the weight."""
    local: Tensor = weight.to_local() if isinstance(weight, DTensor) else weight
    return local


def optimizer_bytes(model: nn.Module, optim: Optim = "adamw") -> int:
    """Return the bytes of optimizer state of :func:`make_optimizer` after a step.

    PyTorch's AdamW: two float32 moments and a float32 count of steps for each tensor. With 8 bits: two bytes
    a weight and two float32 scales a block of 256; 8 bytes a weight in tensors below 4,096. And 4 bytes for
    the copy of each weight of 16 bits.
    """
    total = 0
    for parameter in trained_parameters(model).values():
        count = parameter.numel()
        total += 4 * count * needs_master(parameter)
        if optim == "adamw":
            total += 2 * count * max(parameter.dtype.itemsize, 4) + 4
        elif count < _SMALLEST_8BIT:
            total += 8 * count
        else:
            total += 2 * (count + 4 * -(-count // _BLOCK))
    return total


def schedule_factor(
    step: int, max_steps: int, schedule: Schedule, *, warmup_steps: int = 0, final_ratio: float = 0.0
) -> float:
    """Return the factor of the peak learning rate in a step, from 0.

    It rises linearly from ``1 / warmup_steps`` and then falls, as a line or half a cosine, to ``final_ratio``
    at ``max_steps``, where it stays; ``"constant"`` does not fall.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    progress = min((step - warmup_steps) / max(max_steps - warmup_steps, 1), 1.0)
    fall = progress if schedule == "linear" else (1 - math.cos(math.pi * progress)) / 2
    return 1 - (1 - final_ratio) * fall


class UpdateGuard:
    """Clips gradients and steps an optimizer, unless the loss or the gradient is not finite.

    Attributes:
        skipped: Steps skipped in a row.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> None:
        self.skipped = 0
        self._optimizer = optimizer
        self._max_grad_norm = max_grad_norm or math.inf
        self._parameters = list(master_weights(optimizer))

    def step(self, loss: float, learning_rate: float) -> float | None:
        """Clip the gradients, step, and clear the gradients.

        Returns:
            The gradient's L2 norm before clipping, or ``None`` if the step was skipped.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        norm: Tensor = torch.nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        # With sharded gradients (FSDP): the norm of the whole.
        length = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        finite = math.isfinite(loss) and math.isfinite(length)
        if finite:
            self._optimizer.step()
        self.clear_gradients()
        self.skipped = 0 if finite else self.skipped + 1
        return length if finite else None

    def clear_gradients(self) -> None:
        """Drop the gradients that there are."""
        for parameter in self._parameters:
            parameter.grad = None

    def check(self, max_skipped: int) -> None:
        """Raise a DivergedError after so many skipped steps in a row; the count starts again then."""
        if self.skipped >= max_skipped:
            skipped, self.skipped = self.skipped, 0
            raise DivergedError(
                f"the loss or its gradient was not finite in {skipped} optimizer steps in a row: the weights "
                "are those of the last finite step. Resume from them, or from an earlier checkpoint, with a "
                "lower learning_rate"
            )
