r"""Generalized advantage estimation: how much better a turn went than a value function expected.

A step is a turn: an agent decides once a turn, and how many tokens the reply took says nothing about time.
Shape letter: T turns of an attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from art_trainer.advantages import Array


def generalized_advantages(
    rewards_T: Sequence[float] | Array,
    values_T: Sequence[float] | Array,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    last_value: float = 0.0,
) -> Array:
    r"""Return the advantage of each turn.

    .. math:: A_t = \sum_{l \ge 0} (\gamma \lambda)^l \delta_{t+l},\quad
        \delta_t = r_t + \gamma V(s_{t+1}) - V(s_t)

    GAE (arXiv:1506.02438, eq. 16). ``lam`` 1 gives the reward-to-go minus the value, which no error of the
    value function biases; 0 gives the one-step error :math:`\delta_t` alone, of the lowest variance.
    Advantages plus values are the λ-returns that the value function learns.

    Args:
        rewards_T: The rewards of an attempt's T turns.
        values_T: The value of the state each turn was played in.
        gamma: How much a reward one turn later is worth.
        lam: λ, how much an error one turn later counts.
        last_value: The value of the state after the last turn; 0 where an attempt is over.

    Raises:
        ValueError: Where there are not as many values as rewards.
    """
    if len(rewards_T) != len(values_T):
        raise ValueError(f"{len(rewards_T)} rewards need as many values, got {len(values_T)}")
    advantages = np.zeros(len(rewards_T))
    after, value_after = 0.0, last_value
    for turn in range(len(rewards_T) - 1, -1, -1):
        error = rewards_T[turn] + gamma * value_after - values_T[turn]
        after = advantages[turn] = error + gamma * lam * after
        value_after = values_T[turn]
    return advantages


def fill_gaps(
    values_T: Sequence[float] | Array,
    rewards_T: Sequence[float] | Array,
    *,
    gamma: float = 1.0,
    last_value: float = 0.0,
) -> Array:
    r"""Return the values with those that are not a number replaced by what the next turn says.

    .. math:: V(s_t) = r_t + \gamma V(s_{t+1})

    A turn without a sampled token has no place to read a value at. So filled it has an error of zero, and
    its reward counts for the turns before it.

    Args:
        values_T: Values, ``nan`` where there is none.
        rewards_T: The rewards of the same turns.
        gamma: As in :func:`generalized_advantages`.
        last_value: As in :func:`generalized_advantages`.
    """
    filled = np.array(values_T, dtype=np.float64)
    after = last_value
    for turn in range(len(filled) - 1, -1, -1):
        if np.isnan(filled[turn]):
            filled[turn] = rewards_T[turn] + gamma * after
        after = float(filled[turn])
    return filled
