"""LoRA layers that add the adapter's part within its last matrix product.

PEFT computes ``W x``, ``B (A x)``, its product with the scale, and the sum: the last two read and write every
output again, forward and backward, which costs a GPU about as much time as the products with ``A`` and ``B``.
Here the product with ``B`` is scaled and added to ``W x`` as it is computed.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners import lora
from torch import Tensor, nn


class LoraLinear(lora.Linear):
    """PEFT's layer, with another forward pass for the plain case: one active adapter without dropout."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute ``W x + scale * B (A x)``; like PEFT in other cases (DoRA, merged, several adapters)."""
        active = [name for name in self.active_adapters if name in self.lora_A]
        if args or kwargs or self.disable_adapters or self.merged or self.lora_variant or len(active) != 1:
            return self._as_peft(x, *args, **kwargs)
        (name,) = active
        down, up = self.lora_A[name], self.lora_B[name]
        if not isinstance(self.lora_dropout[name], nn.Identity) or up.bias is not None:
            return self._as_peft(x)
        result: Tensor = self.base_layer(x)
        if not x.dtype == result.dtype == down.weight.dtype:
            return self._as_peft(x)
        low = down(x).flatten(0, -2)
        added = torch.addmm(result.flatten(0, -2), low, up.weight.mT, alpha=self.scaling[name])
        return added.view_as(result)

    def _as_peft(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = super().forward(x, *args, **kwargs)
        return result


def use_fast_layers(model: nn.Module) -> None:
    """Make a model's LoRA layers ones of this module; layers of other kinds stay."""
    for module in model.modules():
        if type(module) is lora.Linear:
            module.__class__ = LoraLinear
