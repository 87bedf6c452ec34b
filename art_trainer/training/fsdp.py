"""A model cut into pieces that lie on all processes: PyTorch's FSDP2.

Of the copy that is trained every process keeps its piece of weights, gradients and optimizer state; layer by
layer the whole weights are gathered for as long as they are computed with. The sampler, whose batches are its
own and differ between processes, plays with the plain model, which gets the new weights after each update. So
a process holds the plain weights once and 1/N of the rest. In float32, where weights, gradients and AdamW's
two moments take 16 bytes a parameter, that is 4 + 16/N bytes. Pieces of weights of 16 bits are float32 too
(PyTorch's ``MixedPrecisionPolicy``), 2 + 16/N bytes: layers are gathered and computed in the weights' own
type, gradients summed and weights stepped in float32. While it starts, and while a checkpoint is read or
written, a process holds more: the copy before it is cut, or the whole moments.

Gradients are summed over processes, not averaged: the losses' weights are those of the whole batch. As each
forward and backward is work of all processes, all of them must do equally many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from art_trainer.models.optim import master_weights, needs_master, trained_parameters

T = TypeVar("T")


class _ForwardScope(nn.Module):
    """Computes within the forward of one module, so that its hooks see whatever is done with its parts."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()


class ShardedModel:
    """Cuts a model in place.

    Args:
        model: A Hugging Face causal language model, the same in each process. Afterwards it is to be used
            only within :meth:`run`.
        processes: How many processes there are.

    Attributes:
        model: The model.
    """

    def __init__(self, model: nn.Module, processes: int) -> None:
        self.model = model
        low = next((p.dtype for p in trained_parameters(model).values() if needs_master(p)), None)
        precision = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low and torch.float32)
        hugging_face: Any = model
        device = next(model.parameters()).device
        mesh = init_device_mesh(device.type, (processes,))
        self._whole = _ForwardScope(model)
        for module in (*getattr(hugging_face.get_decoder(), "layers", ()), self._whole):
            for parameter in module.parameters():
                if parameter.requires_grad and needs_master(parameter):
                    parameter.data = parameter.data.float()
            # Also the outermost: what is left of the weights after an evaluation would be the old ones.
            fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=precision)
        for module in self._whole.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo knows no sum with a factor

    def run(self, compute: Callable[[], T]) -> T:
        """Call a function that computes with the model; each process has to, equally often."""
        result: T = self._whole(compute)
        return result

    def copy_to(self, model: nn.Module) -> None:
        """Give the plain model these weights; each process has to call it."""
        with torch.no_grad():
            for own, plain in self._pairs(model):
                plain.copy_(_full(own))

    def copy_from(self, model: nn.Module) -> None:
        """Take the weights of the plain model, which is the same in each process."""
        with torch.no_grad():
            for own, plain in self._pairs(model):
                own.copy_(_cut_like(plain, own))

    def gather_moments(self, own: torch.optim.Optimizer, plain: torch.optim.Optimizer) -> None:
        """Fill an optimizer of a plain model with the state of the one that trains the pieces."""
        plain.state.clear()
        for mine, theirs, copied in _counterparts(own, plain):
            if copied:
                theirs.data.copy_(_full(mine))
            plain.state[theirs] = {key: _full(value) for key, value in own.state[mine].items()}

    def scatter_moments(self, plain: torch.optim.Optimizer, own: torch.optim.Optimizer) -> None:
        """Do the reverse of :meth:`gather_moments`."""
        own.state.clear()
        for mine, theirs, copied in _counterparts(own, plain):
            if copied:
                mine.data.copy_(_cut_like(theirs.data, mine))
            state = plain.state.get(theirs, {})
            own.state[mine] = {key: _cut_like(value, mine) for key, value in state.items()}

    def _pairs(self, model: nn.Module) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Yield each trained weight with that of a plain model."""
        plain = trained_parameters(model)
        return ((own, plain[name]) for name, own in trained_parameters(self.model).items())


def _full(value: Any) -> Any:
    """Return a sharded tensor as a plain one; anything else as it is."""
    return value.full_tensor().detach() if isinstance(value, DTensor) else value


def _cut_like(value: Any, parameter: nn.Parameter) -> Any:
    """Cut a weight or moment as its parameter is cut; step counts stay whole."""
    if not (isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.shape == parameter.shape):
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _counterparts(
    own: torch.optim.Optimizer, plain: torch.optim.Optimizer
) -> Iterator[tuple[nn.Parameter, nn.Parameter, bool]]:
    """Yield what each optimizer steps for a weight, and whether that is a copy in the plain one."""
    whole = master_weights(plain).items()
    for mine, (weight, theirs) in zip(master_weights(own), whole, strict=True):
        yield mine, theirs, theirs is not weight
