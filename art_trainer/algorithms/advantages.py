r"""Advantage estimators: how much better an attempt, or one of its turns, was than what it is compared with.

Each estimator is a function of one group; :func:`estimate` chooses one for a batch. Shape letters: G attempts
of a group, T turns of an attempt.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from art_trainer.config import GRPOConfig, ScaleRewards
from art_trainer.types import Group

Array = NDArray[np.float64]

STD_FLOOR = 1e-4
"""Added to a standard deviation, as TRL does, so that equal rewards do not divide by zero."""


def group_advantages(rewards_G: Sequence[float] | Array) -> Array:
    r"""Return each attempt's reward minus the group's mean, :math:`A_i = r_i - \bar r` (Dr. GRPO, eq. 3).

    Returns:
        Advantages, shape [G], which sum to zero; exactly zero if all rewards are equal.
    """
    rewards = np.asarray(rewards_G, dtype=np.float64)
    if rewards.size and np.ptp(rewards) == 0:  # the mean of equal numbers may differ from them by rounding
        return np.zeros_like(rewards)
    centred: Array = rewards - rewards.mean()
    return centred


def leave_one_out_advantages(rewards_G: Sequence[float] | Array) -> Array:
    r"""Return each attempt's reward minus the mean of the others.

    .. math:: A_i = r_i - \frac{1}{G-1} \sum_{j \ne i} r_j = \frac{G}{G-1} (r_i - \bar r)

    RLOO (Kool et al., 2019; Ahmadian et al., arXiv:2402.14740). The baseline does not contain the
    attempt itself, so the policy gradient is unbiased; the group's mean makes it G / (G - 1) times too small.
    """
    size = len(rewards_G)
    return group_advantages(rewards_G) * (size / max(size - 1, 1))


def rewards_to_go(rewards_T: Sequence[float], gamma: float = 1.0) -> Array:
    r"""Return the discounted rewards from each turn on, :math:`G_t = \sum_{k \ge t} \gamma^{k-t} r_k`."""
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


# Generalized advantage estimation: how much better a turn went than a value function expected.
#
# A step is a turn: an agent decides once a turn, and the number of tokens of a reply is no measure of time.
# Shape letter: T turns of an attempt.


def generalized_advantages(
    rewards_T: Sequence[float] | Array,
    values_T: Sequence[float] | Array,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
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

    Raises:
        ValueError: If there are not as many values as rewards.
    """
    if len(rewards_T) != len(values_T):
        raise ValueError(f"{len(rewards_T)} rewards need as many values, got {len(values_T)}")
    advantages = np.zeros(len(rewards_T))
    after = value_after = 0.0  # an attempt that is over is worth nothing more
    for turn in range(len(rewards_T) - 1, -1, -1):
        error = rewards_T[turn] + gamma * value_after - values_T[turn]
        after = advantages[turn] = error + gamma * lam * after
        value_after = values_T[turn]
    return advantages


def fill_gaps(
    values_T: Sequence[float] | Array, rewards_T: Sequence[float] | Array, *, gamma: float = 1.0
) -> Array:
    r"""Return the values with those that are not a number computed from the next turn.

    .. math:: V(s_t) = r_t + \gamma V(s_{t+1})

    A turn without a sampled token has no place to read a value at. So filled it has an error of zero, and
    its reward counts for the turns before it.
    """
    filled = np.array(values_T, dtype=np.float64)
    after = 0.0
    for turn in range(len(filled) - 1, -1, -1):
        if np.isnan(filled[turn]):
            filled[turn] = rewards_T[turn] + gamma * after
        after = float(filled[turn])
    return filled


Advantages = list[list[Array]]
"""By group and attempt an array with one number a turn; groups may differ in size, attempts in length."""


def estimate(groups: Sequence[Group], config: GRPOConfig, values: Advantages | None = None) -> Advantages:
    r"""Return the advantage of every turn of a batch by ``config.advantage_estimator``.

    ``config.scale_rewards`` ``"none"`` leaves them as they are (Dr. GRPO, arXiv:2503.20783); ``"group"``
    divides by the standard deviation of the group's rewards, :math:`A_i = (r_i - \bar r) /
    (\operatorname{std} r + 10^{-4})` (GRPO, arXiv:2402.03300, section 4.1.2); ``"batch"`` by that of the
    batch's (arXiv:2508.08221). Standard deviations have Bessel's correction, as in TRL. Those of
    ``"reward_to_go"`` are of the advantages, since rewards-to-go fall towards an attempt's end whatever was
    played. Those of ``"gae"``, which compares with a value function and not with a group, are also centred on
    the batch's mean, as PPO's usually are.

    Args:
        groups: The groups.
        config: ``advantage_estimator``, ``scale_rewards``, ``gamma``, ``lam`` and ``step_advantage_weight``.
        values: The values of the turns; only ``"gae"`` needs them.

    Raises:
        ValueError: For ``"gae"`` without values.
    """
    name, gamma, scaling = config.advantage_estimator, config.gamma, config.scale_rewards
    rewards = [[[turn.reward for turn in episode.turns] for episode in group.episodes] for group in groups]
    if name == "gae":
        if values is None:
            raise ValueError("estimator 'gae' compares with what a value function expected: pass values")
        raw = [
            [
                generalized_advantages(*pair, gamma=gamma, lam=config.lam)
                for pair in zip(group, known, strict=True)
            ]
            for group, known in zip(rewards, values, strict=True)
        ]
        return raw if scaling == "none" else _scaled(_centred(raw), raw, scaling)
    if name == "gigpo":
        scale, weight = scaling == "group", config.step_advantage_weight
        states = [[episode.states for episode in group.episodes] for group in groups]
        return [
            gigpo_advantages(group, met, gamma=gamma, step_weight=weight, scale=scale)
            for group, met in zip(rewards, states, strict=True)
        ]
    if name == "reward_to_go":
        found = [turn_advantages(group, gamma) for group in rewards]
        return _scaled(found, found, scaling)
    totals = [np.array([float(sum(turns)) for turns in group]) for group in rewards]
    by_group = group_advantages if name == "group" else leave_one_out_advantages
    # Scaled by the spread of the rewards, as TRL does.
    scaled = _scaled([[by_group(group)] for group in totals], [[group] for group in totals], scaling)
    return [
        [np.full(len(turns), value) for value, turns in zip(values_G, group, strict=True)]
        for (values_G,), group in zip(scaled, rewards, strict=True)
    ]


def _flat(advantages: Advantages) -> Array:
    return np.concatenate([*(values for group in advantages for values in group), np.zeros(0)])


def _centred(advantages: Advantages) -> Advantages:
    """Subtract the mean over all turns of the batch."""
    flat = _flat(advantages)
    mean = float(flat.mean()) if flat.size else 0.0
    return [[values - mean for values in group] for group in advantages]


def _scaled(advantages: Advantages, spread: Advantages, scaling: ScaleRewards) -> Advantages:
    """Divide by the standard deviation of ``spread``'s numbers, of each group or of all."""
    if scaling == "none":
        return advantages
    divisors = [deviation(_flat([group] if scaling == "group" else spread)) for group in spread]
    return [
        [values / divisor for values in group] for group, divisor in zip(advantages, divisors, strict=True)
    ]
