"""How much better an attempt was than the other attempts at its task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from art_trainer.config import ScaleRewards

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


def batch_advantages(
    rewards: Sequence[Sequence[float]], scale_rewards: ScaleRewards = "none"
) -> list[NDArray[np.float64]]:
    r"""Return the advantages of every group of a batch.

    ``"none"`` is :func:`group_advantages` (Dr. GRPO, arXiv:2503.20783). ``"group"`` divides by the group's
    own standard deviation, :math:`A_i = (r_i - \bar r) / (\operatorname{std} r + 10^{-4})` (GRPO,
    arXiv:2402.03300, section 4.1.2). ``"batch"`` divides by the standard deviation over all rewards of the
    batch (REINFORCE++, arXiv:2501.03262). Standard deviations have Bessel's correction, as in TRL.

    Args:
        rewards: One sequence of rewards a group; groups may differ in size.
        scale_rewards: What the centred rewards are divided by.

    Returns:
        One array of advantages a group, in order.
    """
    centred = [group_advantages(group) for group in rewards]
    if scale_rewards == "none" or not centred:
        return centred
    if scale_rewards == "group":
        return [
            values / (_std(np.asarray(group, dtype=np.float64)) + STD_FLOOR)
            for values, group in zip(centred, rewards, strict=True)
        ]
    scale = _std(np.concatenate([np.asarray(group, dtype=np.float64) for group in rewards])) + STD_FLOOR
    return [values / scale for values in centred]


def _std(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1)) if values.size > 1 else 0.0
