"""Norms and gated feed-forward layers in fewer kernels and less memory, on GPUs.

Transformers writes a norm out (to float32, square, mean, ...): eight passes over memory, of which training
keeps three in float32. PyTorch has it as one kernel. For the feed-forward layer see
:mod:`art_trainer.models.fused_linear`.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from art_trainer.models.fused_linear import Adapter, fused_linear
from art_trainer.models.lora import LoraLinear
from art_trainer.models.tree_attention import statements

_UNFUSED = {"cpu"}
"""Devices where layers compute as Transformers has them."""


def use_fused_layers(model: nn.Module) -> None:
    """Let the norms and feed-forward layers that are written like Llama's be fused, except on a CPU.

    They round once, at the end, where the model's own round twice.
    """
    for module in model.modules():
        kind: Any = type(module)
        fused = None if "forward" in vars(module) else _fused(kind)
        if fused is not None:
            module.__class__ = fused


def has_fused_norms(model: nn.Module) -> bool:
    """Whether norms keep what they are given for the backward pass, and not float32 copies of it."""
    return any(getattr(module, "written_like", None) is LlamaRMSNorm for module in model.modules())


@functools.cache
def _fused(kind: Any) -> Any:
    """Return the class that replaces one; ``None`` if it computes something else."""
    for usual, forward in ((LlamaRMSNorm, _norm), (LlamaMLP, _feed_forward)):
        same_name = kind.__name__.endswith(usual.__name__.removeprefix("Llama"))
        if same_name and statements(kind.forward) == statements(usual.forward):
            content = {"forward": functools.partialmethod(forward, kind), "written_like": usual}
            return type(f"Fused{kind.__name__}", (kind,), content)
    return None


def _norm(self: Any, kind: Any, hidden_states: Tensor) -> Tensor:
    if hidden_states.device.type in _UNFUSED or hidden_states.dtype != self.weight.dtype:
        usual: Tensor = kind.forward(self, hidden_states)
        return usual
    return functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


def _feed_forward(self: Any, kind: Any, x: Tensor) -> Tensor:
    base, adapter = _plain_linear(self.down_proj, x)
    if x.device.type in _UNFUSED or base is None or not isinstance(self.act_fn, nn.SiLU | SiLUActivation):
        usual: Tensor = kind.forward(self, x)
        return usual
    return fused_linear(self.up_proj(x), base.weight, base.bias, adapter, gate=self.gate_proj(x))


def _plain_linear(module: Any, x: Tensor) -> tuple[nn.Linear | None, Adapter | None]:
    """Return a linear layer and the adapter on it; no layer if it computes anything else."""
    if "forward" in vars(module) or module._forward_pre_hooks or module._forward_hooks:
        return None, None
    if type(module) is nn.Linear:
        return module, None
    adapter = module.plain_adapter(x.dtype) if isinstance(module, LoraLinear) else None
    return (None if adapter is None else module.base_layer), adapter
