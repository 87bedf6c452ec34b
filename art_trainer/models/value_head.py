r"""Value head: predicts returns from a language model's last hidden state.

The head predicts returns in units of their own std: :math:`V(s) = \mu + \sigma\, (w \cdot h(s) + b)`, with
:math:`\mu` and :math:`\sigma` the running mean and standard deviation of the returns. So a linear head that
starts at zero begins by predicting the mean return, and a learning rate or a clip means the same for rewards
of 1 and of 1000. When the running statistics change, the head is rescaled so that its predictions stay
(PopArt, arXiv:1602.07714, eq. 9); otherwise every update would also be a jump of the targets.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from art_trainer.algorithms.advantages import Array

DECAY = 0.9
"""Decay of the running statistics per batch."""
MIN_STD = 1e-3
"""Smallest standard deviation, so that equal returns do not divide by zero."""


class ValueHead(nn.Module):
    """A linear map from hidden states to values, float32 whatever the model's precision.

    It keeps the returns' running mean and mean square.
    """

    mean: Tensor
    square: Tensor
    batches: Tensor

    def __init__(self, hidden_size: int, device: torch.device | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size, device=device))
        self.bias = nn.Parameter(torch.zeros((), device=device))
        for name in ("mean", "square", "batches"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @property
    def std(self) -> float:
        """The returns' running standard deviation; 1 before any return was seen."""
        if not self.batches:
            return 1.0
        variance = float(self.square) - float(self.mean) ** 2
        return math.sqrt(max(variance, MIN_STD**2))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the scaled values, float32, of hidden states [..., H] of any floating dtype."""
        return hidden.float() @ self.weight + self.bias

    def unscaled(self, values: Array) -> Array:
        """Convert scaled values to the rewards' units."""
        return float(self.mean) + self.std * values

    def scaled(self, returns: Array) -> Array:
        """Convert returns to the head's units."""
        scaled: Array = (returns - float(self.mean)) / self.std
        return scaled

    @torch.no_grad()
    def observe(self, returns: Array) -> None:
        """Update the running statistics with a batch of returns; the head's predictions do not change.

        Only the first batch changes them: a new head predicts the mean return from then on.
        """
        if not returns.size:
            return
        old_mean, old_std, first = float(self.mean), self.std, not self.batches
        share = 1.0 if first else 1 - DECAY
        self.mean += share * (float(returns.mean()) - self.mean)
        self.square += share * (float(np.mean(returns**2)) - self.square)
        self.batches += 1
        if not first:
            self.weight.mul_(old_std / self.std)
            self.bias.copy_((old_std * self.bias + old_mean - float(self.mean)) / self.std)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip_range: float | None = None
) -> tuple[Tensor, Tensor]:
    r"""Return each turn's squared error, and whether the clip took its gradient.

    .. math:: \tfrac12 \max\left((V - R)^2,\
        (\operatorname{clip}(V, V_{old} - \epsilon_V, V_{old} + \epsilon_V) - R)^2\right)

    The clipped value loss of PPO's authors' code (openai/baselines; not in the paper), as TRL has it: a
    value already moved by more than the range in this update is not moved on.

    Args:
        values: Values under the weights being trained, any shape.
        old_values: Values before the update.
        returns: What they should be.
        clip_range: :math:`\epsilon_V`; ``None`` for no clip.
    """
    plain = (values - returns) ** 2
    if clip_range is None:
        return 0.5 * plain, torch.zeros_like(values, dtype=torch.bool)
    moved = (values - old_values).clamp(-clip_range, clip_range)
    clipped = (old_values + moved - returns) ** 2
    return 0.5 * torch.maximum(plain, clipped), clipped > plain


def explained_variance(values: Array, returns: Array) -> float:
    r"""Return :math:`1 - \operatorname{Var}(R - V) / \operatorname{Var} R`.

    1 for a perfect value function, 0 for one that is no better than a constant, below 0 for a worse one; also
    0 if all returns are equal.
    """
    variance = float(np.var(returns)) if returns.size else 0.0
    return 1 - float(np.var(returns - values)) / variance if variance > 0 else 0.0
