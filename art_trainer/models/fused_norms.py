"""RMS norms in one kernel instead of eight, on GPUs.

Transformers writes the norm out (to float32, square, mean, ...): eight passes over memory, of which training
keeps three in float32. PyTorch has it as one kernel.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from art_trainer.models.tree_attention import statements


def use_fused_norms(model: nn.Module) -> None:
    """Let the norms that are written like Llama's compute in one kernel while they are on a GPU.

    They round once, at the end, where the model's own round twice.
    """
    for module in model.modules():
        kind: Any = type(module)
        if "forward" not in vars(module) and _is_plain(kind):
            module.__class__ = _fused(kind)


@functools.cache
def _is_plain(kind: Any) -> bool:
    return kind.__name__.endswith("RMSNorm") and statements(kind.forward) == statements(LlamaRMSNorm.forward)


@functools.cache
def _fused(kind: Any) -> Any:
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        if hidden_states.device.type != "cuda" or hidden_states.dtype != self.weight.dtype:
            usual: Tensor = kind.forward(self, hidden_states)
            return usual
        return functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)

    return type(f"Fused{kind.__name__}", (kind,), {"forward": forward})
