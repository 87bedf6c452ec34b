"""LoRA layers that add the adapter's part within its last matrix product.

PEFT computes ``W x``, ``B (A x)``, its product with the scale, and the sum: the last two read and write every
output again, forward and backward, which costs a GPU about as much time as the products with ``A`` and ``B``.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners import lora
from torch import Tensor, nn

from art_trainer.models.fused_linear import Adapter, fused_linear


class LoraLinear(lora.Linear):
    """PEFT's layer, with another forward pass for the plain case: see :meth:`plain_adapter`."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute ``W x + scale * B (A x)``; like PEFT if that is not all."""
        adapter = None if args or kwargs else self.plain_adapter(x.dtype)
        if adapter is None:
            return self._as_peft(x, *args, **kwargs)
        base: Any = self.base_layer
        return fused_linear(x, base.weight, base.bias, adapter)

    def plain_adapter(self, dtype: torch.dtype) -> Adapter | None:
        """Return the one active adapter, if it is plain, on a frozen linear layer, and all are of this dtype.

        ``None`` for DoRA, dropout, merged weights, several adapters, quantized layers.
        """
        active = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or self.lora_variant or len(active) != 1:
            return None
        (name,), base = active, self.base_layer
        down, up = self.lora_A[name], self.lora_B[name]
        if not isinstance(self.lora_dropout[name], nn.Identity) or up.bias is not None:
            return None
        if type(base) is not nn.Linear or any(p.requires_grad for p in base.parameters()):
            return None
        if not dtype == base.weight.dtype == down.weight.dtype:
            return None
        return down.weight, up.weight, self.scaling[name]

    def _as_peft(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = super().forward(x, *args, **kwargs)
        return result


def base_model(model: nn.Module) -> Any:
    """Return the model below an adapter, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def use_fast_layers(model: nn.Module) -> None:
    """Make a model's LoRA layers ones of this module; layers of other kinds stay."""
    for module in model.modules():
        if type(module) is lora.Linear:
            module.__class__ = LoraLinear
