r"""What a state is worth, read off a language model's last hidden state.

The head predicts returns in units of their own spread: :math:`V(s) = \mu + \sigma\, (w \cdot h(s) + b)`, with
:math:`\mu` and :math:`\sigma` the running mean and standard deviation of the returns. So a linear head that
starts at zero begins by predicting the mean return, and a learning rate or a clip means the same for rewards
of 1 and of 1000. When the running numbers move, the head is rescaled so that what it predicts stays (PopArt,
arXiv:1602.07714, eq. 9; without it every update would also be a jump of the targets).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from art_trainer.advantages import Array

MEMORY = 0.9
"""What is left of the running numbers after a batch; the rest is the batch's."""
SPREAD_FLOOR = 1e-3
"""Least standard deviation, so that equal returns do not divide by zero."""


class ValueHead(nn.Module):
    """A linear map from hidden states to values, with the returns' running mean and spread.

    Args:
        hidden_size: Length of a hidden state.
        device: Where the weights live. They are float32 whatever the model's precision.
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
    def spread(self) -> float:
        """The returns' running standard deviation; 1 before any return was seen."""
        if not self.batches:
            return 1.0
        variance = float(self.square) - float(self.mean) ** 2
        return math.sqrt(max(variance, SPREAD_FLOOR**2))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return scaled values, float32.

        Args:
            hidden: Hidden states [..., H] of any floating dtype.
        """
        return hidden.float() @ self.weight + self.bias

    def unscaled(self, values: Array) -> Array:
        """Return scaled values in the rewards' own units."""
        return float(self.mean) + self.spread * values

    def scaled(self, returns: Array) -> Array:
        """Return returns in the head's units."""
        scaled: Array = (returns - float(self.mean)) / self.spread
        return scaled

    @torch.no_grad()
    def observe(self, returns: Array) -> None:
        """Take a batch of returns into the running numbers; what the head predicts does not change.

        Only the first batch changes it: a head that never saw a return predicts their mean from then on.
        """
        if not returns.size:
            return
        old_mean, old_spread, first = float(self.mean), self.spread, not self.batches
        share = 1.0 if first else 1 - MEMORY
        self.mean += share * (float(returns.mean()) - self.mean)
        self.square += share * (float(np.mean(returns**2)) - self.square)
        self.batches += 1
        if not first:
            self.weight.mul_(old_spread / self.spread)
            self.bias.copy_((old_spread * self.bias + old_mean - float(self.mean)) / self.spread)


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

    1 for a perfect value function, 0 for one that is no better than a constant, below 0 for a worse one; 0
    too where all returns are equal and there is nothing to explain.
    """
    variance = float(np.var(returns)) if returns.size else 0.0
    return 1 - float(np.var(returns - values)) / variance if variance > 0 else 0.0
