"""A linear layer's product with an adapter's part and a gated activation fused into it.

Autograd keeps the input of each product: of a gated feed-forward layer the gate, what the activation made of
it, the other half and their product, four tensors of the largest size in the model. Here only the two halves
are kept, and the product is computed again where the backward pass needs it: an update of Qwen2.5-7B with an
adapter then keeps a third less. An adapter's part is added to the output, and in backward to the gradient of
the input, within the matrix product that computes it.

Shape letters: T rows, I inputs, O outputs, R the adapter's rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

Adapter = tuple[Tensor, Tensor, float]
"""The matrices A [R, I] and B [O, R] of an adapter, and its scale."""

_GATED = """
template <typename T> T gated(T gate, T x) {
    return gate / (T(1) + ::exp(-gate)) * x;
}"""
_GATED_BACKWARD = """
template <typename T> void gated_backward(T gate, T x, T gradient, T& of_gate, T& of_x, T& product) {
    T sigmoid = T(1) / (T(1) + ::exp(-gate));
    T activated = gate * sigmoid;
    of_gate = gradient * x * sigmoid * (T(1) + gate - activated);
    of_x = gradient * activated;
    product = activated * x;
}"""


def fused_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, adapter: Adapter | None, *, gate: Tensor | None = None
) -> Tensor:
    r"""Return :math:`W h + b + s\,B A h` of :math:`h = x`, or of :math:`h = \operatorname{silu}(gate)\, x`.

    Args:
        x: [..., I].
        weight: W, [O, I]; it gets a gradient only if there is no adapter.
        bias: b, [O].
        adapter: A, B and s, of the dtype of the weight.
        gate: Like ``x``.

    Returns:
        [..., O].
    """
    down, up, scale = (None, None, 0.0) if adapter is None else adapter
    rows = None if gate is None else gate.flatten(0, -2)
    parts = x.flatten(0, -2), rows, weight, bias, down, up, scale
    result: Tensor = _FusedLinear.apply(*parts)  # type: ignore[no-untyped-call]
    return result.view(*x.shape[:-1], -1)


class _FusedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gate: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor | None,
        up: Tensor | None,
        scale: float,
    ) -> Tensor:
        hidden = x if gate is None else _gated(gate, x)
        result = functional.linear(hidden, weight, bias)
        low = None
        if down is not None and up is not None:
            low = hidden @ down.mT
            result.addmm_(low, up.mT, alpha=scale)
        ctx.save_for_backward(x, gate, weight, down, up, low)
        ctx.scale = scale
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, weight, down, up, low = ctx.saved_tensors
        of_x, _, of_weight, of_bias, *_ = ctx.needs_input_grad
        inner = None if up is None else (gradient @ up).mul_(ctx.scale)
        of_gate, hidden = None, x
        # In the first layer x may need none where its gate does, or the adapter the product.
        of_hidden = gradient @ weight if of_x or gate is not None else None
        if inner is not None and of_hidden is not None:
            of_hidden.addmm_(inner, down)
        if gate is not None:
            assert of_hidden is not None
            of_gate, of_hidden, hidden = _gated_backward(gate, x, of_hidden)
        return (
            of_hidden,
            of_gate,
            gradient.mT @ hidden if of_weight else None,
            gradient.sum(0) if of_bias else None,
            None if inner is None else inner.mT @ hidden,
            None if low is None else (gradient.mT @ low).mul_(ctx.scale),
            None,
        )


def _gated(gate: Tensor, x: Tensor) -> Tensor:
    result: Tensor = _kernel(_GATED, 1)(gate, x) if gate.is_cuda else functional.silu(gate) * x
    return result


def _gated_backward(gate: Tensor, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the gate and of the other half, and their product."""
    if gate.is_cuda:
        found: tuple[Tensor, Tensor, Tensor] = _kernel(_GATED_BACKWARD, 3)(gate, x, gradient)
        return found
    activated = functional.silu(gate)
    of_gate = torch.ops.aten.silu_backward(gradient * x, gate)
    return of_gate, gradient * activated, activated * x


@functools.cache
def _kernel(code: str, outputs: int) -> Callable[..., Any]:
    """Compile an elementwise kernel, which computes in float32 for 16 bits and reads each number once."""
    made: Callable[..., Any] = torch.cuda.jiterator._create_multi_output_jit_fn(code, outputs)
    if outputs == 1:
        made = torch.cuda.jiterator._create_jit_fn(code)
    return made
