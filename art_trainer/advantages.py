"""How much better an attempt, or one of its moves, was than the other attempts at the task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from art_trainer.config import AdvantageEstimator, ScaleRewards

STD_FLOOR = 1e-4
"""Added to the standard deviation, as TRL does, so that equal rewards do not divide by zero."""


def group_advantages(rewards_G: Sequence[float]) -> NDArray[np.float64]:
    r"""Return each attempt's reward minus the group's mean, :math:`A_i = r_i - \bar r` (Dr. GRPO, eq. 3).

    Args:
        rewards_G: The rewards of the G attempts of one group.

    Returns:
        Advantages, shape [G], which sum to zero; exactly zero where all rewards are equal.
    """
    rewards = np.asarray(rewards_G, dtype=np.float64)
    if rewards.size and np.ptp(rewards) == 0:  # the mean of equal numbers may differ from them by rounding
        return np.zeros_like(rewards)
    centred: NDArray[np.float64] = rewards - rewards.mean()
    return centred


def rewards_to_go(rewards_T: Sequence[float], gamma: float = 1.0) -> NDArray[np.float64]:
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


def turn_advantages(rewards_GT: Sequence[Sequence[float]], gamma: float = 1.0) -> list[NDArray[np.float64]]:
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
    returns = [rewards_to_go(rewards, gamma) for rewards in rewards_GT]
    advantages = [np.zeros_like(values) for values in returns]
    for turn in range(max(map(len, returns), default=0)):
        playing = [attempt for attempt, values in enumerate(returns) if len(values) > turn]
        centred = group_advantages([float(returns[attempt][turn]) for attempt in playing])
        for attempt, value in zip(playing, centred, strict=True):
            advantages[attempt][turn] = value
    return advantages


def batch_advantages(
    rewards: Sequence[Sequence[Sequence[float]]],
    *,
    estimator: AdvantageEstimator = "group",
    gamma: float = 1.0,
    scale_rewards: ScaleRewards = "none",
) -> list[list[NDArray[np.float64]]]:
    r"""Return the advantage of every turn of a batch.

    ``"group"`` gives all turns of an attempt :func:`group_advantages` of its summed reward (GRPO);
    ``"reward_to_go"`` gives each turn its own, :func:`turn_advantages`.

    Scaling ``"none"`` leaves them as they are (Dr. GRPO, arXiv:2503.20783). ``"group"`` divides by the
    standard deviation of the group's own, :math:`A_i = (r_i - \bar r) / (\operatorname{std} r + 10^{-4})`
    (GRPO, arXiv:2402.03300, section 4.1.2). ``"batch"`` divides by that over the batch (REINFORCE++,
    arXiv:2501.03262). Standard deviations have Bessel's correction, as in TRL; those of ``"reward_to_go"``
    are of the advantages, since rewards-to-go fall towards an attempt's end whatever was played.

    Args:
        rewards: By group, attempt and turn; groups may differ in size, attempts in length.
        estimator: What an advantage is measured for.
        gamma: The discount of ``"reward_to_go"``.
        scale_rewards: What the advantages are divided by.

    Returns:
        By group and attempt an array with one advantage a turn.
    """
    if estimator == "group":
        # As one number an attempt; the spread is that of the rewards themselves, as TRL takes it.
        spreads = [[np.asarray([sum(turns)], dtype=np.float64) for turns in group] for group in rewards]
        estimates = [
            [np.asarray([value]) for value in group_advantages([float(total[0]) for total in totals])]
            for totals in spreads
        ]
    else:
        spreads = estimates = [turn_advantages(group, gamma) for group in rewards]
    if scale_rewards == "group":
        estimates = [
            [values / _deviation(spread) for values in group]
            for group, spread in zip(estimates, spreads, strict=True)
        ]
    elif scale_rewards == "batch":
        deviation = _deviation([values for group in spreads for values in group])
        estimates = [[values / deviation for values in group] for group in estimates]
    return [
        [np.resize(values, len(turns)) for values, turns in zip(found, group, strict=True)]
        for found, group in zip(estimates, rewards, strict=True)
    ]


def _deviation(values: Sequence[NDArray[np.float64]]) -> float:
    """The standard deviation of all numbers of the arrays, with the floor."""
    flat = np.concatenate([*values, np.zeros(0)])
    return (float(flat.std(ddof=1)) if flat.size > 1 else 0.0) + STD_FLOOR
