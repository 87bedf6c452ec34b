r"""The advantages of a whole batch, by the estimator and the scaling that a config names.

An estimator maps the rewards of all groups to advantages, one a turn. Scaling ``"none"`` leaves them as they
are (Dr. GRPO, arXiv:2503.20783); ``"group"`` divides by the standard deviation of the group's rewards,
:math:`A_i = (r_i - \bar r) / (\operatorname{std} r + 10^{-4})` (GRPO, arXiv:2402.03300, section 4.1.2);
``"batch"`` by that of the batch's (arXiv:2508.08221). Standard deviations have Bessel's correction, as in
TRL; those of ``"reward_to_go"`` are of the advantages, since rewards-to-go fall towards an attempt's end
whatever was played. Those of ``"gae"``, which compares with a value function and not with a group, are also
centred on the batch's mean, as PPO's usually are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from art_trainer.advantages import (
    Array,
    deviation,
    gigpo_advantages,
    group_advantages,
    leave_one_out_advantages,
    turn_advantages,
)
from art_trainer.config import AdvantageEstimator, GRPOConfig, ScaleRewards
from art_trainer.episodes import Group
from art_trainer.gae import generalized_advantages

Rewards = Sequence[Sequence[Sequence[float]]]
"""By group, attempt and turn; groups may differ in size, attempts in length."""
States = Sequence[Sequence[Sequence[Hashable]]]
"""In the same shape, the state each turn was played in."""
Advantages = list[list[Array]]
"""By group and attempt an array with one number a turn."""


def estimate(groups: Sequence[Group], config: GRPOConfig, values: Advantages | None = None) -> Advantages:
    """Return the advantage of every turn of these groups by a config's settings; ``"gae"`` needs values."""
    return batch_advantages(
        [[[turn.reward for turn in attempt.turns] for attempt in group.episodes] for group in groups],
        estimator=config.advantage_estimator,
        gamma=config.gamma,
        scale_rewards=config.scale_rewards,
        states=[[attempt.states for attempt in group.episodes] for group in groups],
        step_weight=config.step_advantage_weight,
        values=values,
        lam=config.lam,
    )


def batch_advantages(
    rewards: Rewards,
    *,
    estimator: AdvantageEstimator = "group",
    gamma: float = 1.0,
    scale_rewards: ScaleRewards = "none",
    states: States | None = None,
    step_weight: float = 1.0,
    values: Advantages | None = None,
    lam: float = 0.95,
) -> Advantages:
    """Return the advantage of every turn of a batch.

    Args:
        rewards: By group, attempt and turn.
        estimator: What is compared with what.
        gamma: The discount of ``"reward_to_go"``, ``"gigpo"`` and ``"gae"``.
        scale_rewards: What the advantages are divided by; without effect on the two of REINFORCE++, which
            divide by the batch's standard deviation themselves.
        states: The states of the turns; only ``"gigpo"`` looks at them, and needs them.
        step_weight: ω of ``"gigpo"``.
        values: The values of the turns; only ``"gae"`` looks at them, and needs them.
        lam: λ of ``"gae"``.

    Raises:
        ValueError: For ``"gigpo"`` without states, and for ``"gae"`` without values.
    """
    if estimator == "gae":
        if values is None:
            raise ValueError("estimator 'gae' compares with what a value function expected: pass values")
        raw = [
            [generalized_advantages(*pair, gamma=gamma, lam=lam) for pair in zip(group, known, strict=True)]
            for group, known in zip(rewards, values, strict=True)
        ]
        return raw if scale_rewards == "none" else _scaled(_centred(raw), raw, scale_rewards)
    if estimator == "gigpo":
        if states is None:
            raise ValueError("estimator 'gigpo' compares turns of equal states: pass states")
        scale = scale_rewards == "group"
        return [
            gigpo_advantages(group, met, gamma=gamma, step_weight=step_weight, scale=scale)
            for group, met in zip(rewards, states, strict=True)
        ]
    if estimator == "reward_to_go":
        found = [turn_advantages(group, gamma) for group in rewards]
        return _scaled(found, found, scale_rewards)
    totals = [[float(sum(turns)) for turns in group] for group in rewards]
    numbers = _OF_TOTALS[estimator](totals, scale_rewards)
    return [
        [np.full(len(turns), value) for value, turns in zip(values, group, strict=True)]
        for values, group in zip(numbers, rewards, strict=True)
    ]


def reinforce_plus_plus(totals: Sequence[Sequence[float]], *, baseline: bool) -> list[Array]:
    r"""Return each attempt's advantage, normalised over the whole batch.

    .. math:: A_i = \frac{a_i - \operatorname{mean}_{batch} a}{\operatorname{std}_{batch} a},\quad
        a_i = r_i \ \text{or, with a baseline,}\ r_i - \bar r_{group}

    REINFORCE++ and REINFORCE++-baseline (arXiv:2501.03262, section 3). Every attempt counts once, however
    long it is; the divergence to a reference is part of the loss here, not of the reward.

    Args:
        totals: By group, the summed reward of each attempt.
        baseline: Whether the group's mean is taken off first.
    """
    raw = [group_advantages(group) if baseline else np.asarray(group, dtype=np.float64) for group in totals]
    flat = np.concatenate([*raw, np.zeros(0)])
    if not flat.size or np.ptp(flat) == 0:
        return [np.zeros_like(values) for values in raw]
    mean, spread = (0.0 if baseline else float(flat.mean())), deviation(flat)
    return [(values - mean) / spread for values in raw]


def _per_group(
    estimator: Callable[[Sequence[float]], Array], totals: Sequence[Sequence[float]], scaling: ScaleRewards
) -> list[Array]:
    """Estimate each group alone, then scale by the spread of the rewards, as TRL does."""
    found = [[estimator(group)] for group in totals]
    spread = [[np.asarray(group, dtype=np.float64)] for group in totals]
    return [values for (values,) in _scaled(found, spread, scaling)]


def _centred(advantages: Advantages) -> Advantages:
    """Take off the mean over all turns of the batch."""
    flat = np.concatenate([*(values for group in advantages for values in group), np.zeros(0)])
    mean = float(flat.mean()) if flat.size else 0.0
    return [[values - mean for values in group] for group in advantages]


def _scaled(advantages: Advantages, spread: Advantages, scaling: ScaleRewards) -> Advantages:
    """Divide by the standard deviation of ``spread``'s numbers, of each group or of all."""
    if scaling == "none":
        return advantages
    if scaling == "group":
        divisors = [deviation(np.concatenate([*group, np.zeros(0)])) for group in spread]
    else:
        every = deviation(np.concatenate([*(values for group in spread for values in group), np.zeros(0)]))
        divisors = [every] * len(advantages)
    return [
        [values / divisor for values in group] for group, divisor in zip(advantages, divisors, strict=True)
    ]


_OF_TOTALS: dict[str, Callable[[Sequence[Sequence[float]], ScaleRewards], list[Array]]] = {
    "group": lambda totals, scaling: _per_group(group_advantages, totals, scaling),
    "leave_one_out": lambda totals, scaling: _per_group(leave_one_out_advantages, totals, scaling),
    "reinforce_plus_plus": lambda totals, scaling: reinforce_plus_plus(totals, baseline=False),
    "reinforce_plus_plus_baseline": lambda totals, scaling: reinforce_plus_plus(totals, baseline=True),
}
"""Estimators that see an attempt as one number."""
