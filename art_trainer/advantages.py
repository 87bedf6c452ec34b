r"""How much better an attempt, or one of its turns, was than what it is compared with.

Each estimator is a function of one group; :mod:`art_trainer.estimators` chooses one for a batch. Shape
letters: G attempts of a group, T turns of an attempt.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

STD_FLOOR = 1e-4
"""Added to a standard deviation, as TRL does, so that equal rewards do not divide by zero."""


def group_advantages(rewards_G: Sequence[float]) -> Array:
    r"""Return each attempt's reward minus the group's mean, :math:`A_i = r_i - \bar r` (Dr. GRPO, eq. 3).

    Args:
        rewards_G: The rewards of the G attempts of one group.

    Returns:
        Advantages, shape [G], which sum to zero; exactly zero where all rewards are equal.
    """
    rewards = np.asarray(rewards_G, dtype=np.float64)
    if rewards.size and np.ptp(rewards) == 0:  # the mean of equal numbers may differ from them by rounding
        return np.zeros_like(rewards)
    centred: Array = rewards - rewards.mean()
    return centred


def leave_one_out_advantages(rewards_G: Sequence[float]) -> Array:
    r"""Return each attempt's reward minus the mean of the others.

    .. math:: A_i = r_i - \frac{1}{G-1} \sum_{j \ne i} r_j = \frac{G}{G-1} (r_i - \bar r)

    RLOO (Kool et al., 2019; Ahmadian et al., arXiv:2402.14740). The baseline does not contain the
    attempt itself, so the policy gradient is unbiased; the group's mean makes it G / (G - 1) times too small.

    Args:
        rewards_G: The rewards of the G attempts of one group; one alone has an advantage of zero.
    """
    size = len(rewards_G)
    return group_advantages(rewards_G) * (size / max(size - 1, 1))


def rewards_to_go(rewards_T: Sequence[float], gamma: float = 1.0) -> Array:
    r"""Return the discounted rewards from each turn on, :math:`G_t = \sum_{k \ge t} \gamma^{k-t} r_k`.

    Args:
        rewards_T: The rewards of an attempt's T turns.
        gamma: How much a reward one turn later is worth.
    """
    returns = np.zeros(len(rewards_T))
    after = 0.0
    for turn in range(len(rewards_T) - 1, -1, -1):
        after = returns[turn] = rewards_T[turn] + gamma * after
    return returns


def turn_advantages(rewards_GT: Sequence[Sequence[float]], gamma: float = 1.0) -> list[Array]:
    r"""Return each turn's reward-to-go minus the mean of the attempts that played that turn.

    .. math:: A_{i,t} = G_{i,t} - \frac{1}{|\{j : T_j > t\}|} \sum_{j : T_j > t} G_{j,t}

    REINFORCE's reward-to-go with a baseline that depends on the turn alone (Williams, 1992; Greensmith et
    al., 2004). A move is credited with what came after it and not with what was earned before, which one
    number an attempt cannot do. A turn that a single attempt reached has an advantage of zero.

    Args:
        rewards_GT: The rewards of each attempt's turns; attempts may differ in length.
        gamma: How much a reward one turn later is worth.

    Returns:
        One array of advantages an attempt, as long as its turns.
    """
    turns = [range(len(rewards)) for rewards in rewards_GT]
    return state_advantages(rewards_GT, turns, gamma)


def state_advantages(
    rewards_GT: Sequence[Sequence[float]],
    states_GT: Sequence[Sequence[Hashable]],
    gamma: float = 1.0,
    *,
    scale: bool = False,
) -> list[Array]:
    r"""Return each turn's reward-to-go minus the mean over the group's turns that met the same state.

    .. math:: A^S_{i,t} = \frac{G_{i,t} - \operatorname{mean} \{G_{j,k} : s_{j,k} = s_{i,t}\}}{F}

    The step-relative advantage of GiGPO (arXiv:2505.10978, eq. 7). An attempt may meet a state several
    times. A turn whose state nobody else met has an advantage of zero.

    Args:
        rewards_GT: The rewards of each attempt's turns.
        states_GT: The state each turn was played in, as anything that is equal for equal states.
        gamma: How much a reward one turn later is worth.
        scale: Whether F is the standard deviation over those turns, or 1.

    Returns:
        One array of advantages an attempt, as long as its turns.
    """
    returns = [rewards_to_go(rewards, gamma) for rewards in rewards_GT]
    advantages = [np.zeros_like(values) for values in returns]
    places: dict[Hashable, list[tuple[int, int]]] = {}
    for attempt, (values, states) in enumerate(zip(returns, states_GT, strict=True)):
        for turn, state in zip(range(len(values)), states, strict=True):
            places.setdefault(state, []).append((attempt, turn))
    for met in places.values():
        there = [float(returns[attempt][turn]) for attempt, turn in met]
        centred = group_advantages(there)
        if scale:
            centred = centred / deviation(there)
        for (attempt, turn), value in zip(met, centred, strict=True):
            advantages[attempt][turn] = value
    return advantages


def gigpo_advantages(
    rewards_GT: Sequence[Sequence[float]],
    states_GT: Sequence[Sequence[Hashable]],
    *,
    gamma: float = 1.0,
    step_weight: float = 1.0,
    scale: bool = False,
) -> list[Array]:
    r"""Return for each turn the advantage of its attempt plus that of its step.

    .. math:: A_{i,t} = A^E_i + \omega A^S_{i,t}

    GiGPO (arXiv:2505.10978, eq. 8), with :math:`A^E` that of :func:`group_advantages` and :math:`A^S` that of
    :func:`state_advantages`.

    Args:
        rewards_GT: The rewards of each attempt's turns.
        states_GT: The state each turn was played in.
        gamma: Discount of the steps' returns; 0.95 in the paper.
        step_weight: ω, 1 in the paper.
        scale: Whether both parts are divided by the standard deviation of what they are compared with; the
            paper has it with and without.
    """
    totals = [float(sum(rewards)) for rewards in rewards_GT]
    attempts = group_advantages(totals)
    if scale:
        attempts = attempts / deviation(totals)
    steps = state_advantages(rewards_GT, states_GT, gamma, scale=scale)
    return [whole + step_weight * part for whole, part in zip(attempts, steps, strict=True)]


def deviation(values: Sequence[float] | Array) -> float:
    """Return the standard deviation with Bessel's correction, as TRL takes it, plus :data:`STD_FLOOR`."""
    return (float(np.std(values, ddof=1)) if len(values) > 1 else 0.0) + STD_FLOOR
