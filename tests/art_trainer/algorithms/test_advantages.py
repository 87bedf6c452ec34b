from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.algorithms.advantages import (
    STD_FLOOR,
    estimate,
    fill_gaps,
    generalized_advantages,
    gigpo_advantages,
    group_advantages,
    leave_one_out_advantages,
    rewards_to_go,
    state_advantages,
    turn_advantages,
)
from art_trainer.config import AdvantageEstimator, GRPOConfig, ScaleRewards
from art_trainer.types import Group
from tests.art_trainer.made_episodes import made_episode

rewards = st.lists(st.floats(-100, 100), min_size=1, max_size=10)
turn_rewards = st.lists(st.lists(st.floats(-10, 10), max_size=6), min_size=1, max_size=5)
shares = st.floats(0, 1)


def test_advantage_is_the_reward_minus_the_groups_mean() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 3.0]).tolist() == [0.0, -1.0, -1.0, 2.0]
    assert leave_one_out_advantages([3.0]).tolist() == [0.0]


@given(rewards.filter(lambda values: len(values) > 1))
def test_advantages_sum_to_zero_and_leave_one_out_compares_with_the_others(values: list[float]) -> None:
    assert group_advantages(values).sum() == pytest.approx(0, abs=1e-9)
    others = [np.mean(values[:i] + values[i + 1 :]) for i in range(len(values))]
    assert leave_one_out_advantages(values) == pytest.approx(np.subtract(values, others), abs=1e-9)


def test_rewards_to_go_are_discounted_sums_of_what_comes_after() -> None:
    assert rewards_to_go([1.0, 0.0, 4.0]).tolist() == [5.0, 4.0, 4.0]
    assert rewards_to_go([1.0, 0.0, 4.0], 0.5).tolist() == [2.0, 2.0, 4.0]
    assert rewards_to_go([]).size == 0


def test_a_turn_is_compared_with_the_attempts_that_played_it() -> None:
    # To go: [3, 2], [1], [5, 4, 1]; at the first turn the mean is 3, at the second (2 + 4) / 2.
    first, second, third = turn_advantages([[1.0, 2.0], [1.0], [1.0, 3.0, 1.0]])
    assert first.tolist() == [0.0, -1.0]
    assert second.tolist() == [-2.0]
    assert third.tolist() == [2.0, 1.0, 0.0]  # no other attempt reached the last turn


def test_turns_of_equal_states_are_compared() -> None:
    # To go: hall 1, hall 1, 1 and hall 0, cellar 0; the hall is met three times, the mean there is 2/3.
    first, second = state_advantages(
        [[0.0, 0.0, 1.0], [0.0, 0.0]], [["hall", "hall", "attic"], ["hall", "cellar"]]
    )
    assert first.tolist() == pytest.approx([1 / 3, 1 / 3, 0.0])
    assert second.tolist() == pytest.approx([-2 / 3, 0.0])
    with pytest.raises(ValueError, match="zip"):
        state_advantages([[1.0, 2.0]], [["only one"]])


@given(turn_rewards, shares, st.data())
def test_step_advantages_sum_to_zero_over_every_state(
    group: list[list[float]], gamma: float, data: st.DataObject
) -> None:
    states = [[data.draw(st.sampled_from("abc")) for _ in turns] for turns in group]
    found = np.concatenate([*state_advantages(group, states, gamma), np.zeros(0)])
    flat = np.array([name for met in states for name in met])
    for state in "abc":
        assert found[flat == state].sum() == pytest.approx(0, abs=1e-8)


def test_gigpo_adds_the_steps_part_to_the_attempts() -> None:
    group, states = [[0.0, 1.0], [0.0, 0.0]], [["start", "left"], ["start", "right"]]
    first, second = gigpo_advantages(group, states, gamma=0.5, step_weight=2.0)
    # The attempts: +-0.5. The start: to go 0.5 and 0, so +-0.25. Left and right were met once each.
    assert first.tolist() == pytest.approx([0.5 + 2 * 0.25, 0.5])
    assert second.tolist() == pytest.approx([-0.5 - 2 * 0.25, -0.5])


def test_gigpo_scales_both_parts_by_what_they_are_compared_with() -> None:
    found = gigpo_advantages([[1.0, 2.0], [4.0]], [["a", "b"], ["a"]], scale=True)
    unit = 0.5 / (np.sqrt(0.5) + STD_FLOOR)  # of 3 and 4, both the attempts' totals and the returns in "a"
    assert found[0].tolist() == pytest.approx([-2 * unit, -unit])
    assert found[1].tolist() == pytest.approx([2 * unit])


# --- GAE ------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), max_size=8), shares, shares)
def test_gae_is_the_sum_that_the_paper_defines(
    pairs: list[tuple[float, float]], gamma: float, lam: float
) -> None:
    rewards, values = [r for r, _ in pairs], [v for _, v in pairs]
    after = [*values[1:], 0.0]
    errors = [r + gamma * v_next - v for r, v, v_next in zip(rewards, values, after, strict=False)]
    wanted = [
        sum((gamma * lam) ** (k - t) * errors[k] for k in range(t, len(errors))) for t in range(len(errors))
    ]
    found = generalized_advantages(rewards, values, gamma=gamma, lam=lam)
    assert found.tolist() == pytest.approx(wanted, abs=1e-9)


def test_a_gap_in_the_values_is_filled_so_that_its_error_is_zero() -> None:
    filled = fill_gaps([1.0, np.nan, 3.0, np.nan], [0.0, 2.0, 0.0, 1.0], gamma=0.5)
    assert filled.tolist() == [1.0, 3.5, 3.0, 1.0]
    with pytest.raises(ValueError, match="2 rewards need as many values, got 1"):
        generalized_advantages([0.0, 1.0], [0.0])


# --- a batch, by a config's settings ------------------------------------------------------------------------


def group_of(*attempts: Sequence[float]) -> Group:
    """Attempts with these rewards; after a turn they see its number, at the start a door."""
    made = made_episode(0, 0.0, [])
    turn = made.turns[0]
    return Group(
        tuple(
            replace(
                made,
                observation="door",
                turns=tuple(replace(turn, reward=r, observation=f"room {i}") for i, r in enumerate(rewards)),
            )
            for rewards in attempts
        )
    )


def of_single_turns(groups: list[list[float]], **settings: Any) -> list[list[float]]:
    """The advantages of attempts of one turn each, a number an attempt."""
    settings = {"scale_rewards": "none", **settings}
    found = estimate([group_of(*([r] for r in group)) for group in groups], GRPOConfig(**settings))
    return [[float(value) for (value,) in group] for group in found]


def spread(*values: float) -> float:
    return float(np.std(values, ddof=1)) + STD_FLOOR


@pytest.mark.parametrize(
    ("settings", "groups", "wanted"),
    [
        ({"scale_rewards": "group"}, [[0, 1], [0, 10]],
         [[-0.5 / spread(0, 1), 0.5 / spread(0, 1)], [-5 / spread(0, 10), 5 / spread(0, 10)]]),
        ({"scale_rewards": "batch"}, [[0, 1], [0, 10, 5]],
         [[-0.5 / spread(0, 1, 0, 10, 5), 0.5 / spread(0, 1, 0, 10, 5)],
          [-5 / spread(0, 1, 0, 10, 5), 5 / spread(0, 1, 0, 10, 5), 0]]),
    ],
)  # fmt: skip
def test_what_a_batchs_advantages_are_divided_by(
    settings: dict[str, Any], groups: list[list[float]], wanted: list[list[float]]
) -> None:
    for found, expected in zip(of_single_turns(groups, **settings), wanted, strict=True):
        assert found == pytest.approx(expected)


BY_GROUP = [name for name in get_args(AdvantageEstimator) if name != "gae"]


@pytest.mark.parametrize("estimator", BY_GROUP)
@given(st.floats(-1e6, 1e6), st.integers(1, 20), st.sampled_from(get_args(ScaleRewards)))
def test_equal_rewards_have_advantages_of_exactly_zero(
    estimator: str, value: float, size: int, scale: str
) -> None:
    if (scale, estimator) == ("batch", "gigpo"):
        return  # such a config is refused
    settings = {"advantage_estimator": estimator, "scale_rewards": scale}
    assert of_single_turns([[value] * size, [0.0, 1.0]], **settings)[0] == [0.0] * size


def test_gae_needs_values_and_is_whitened_over_the_batch_if_scaled() -> None:
    groups = [group_of([0.0, 1.0], [2.0]), group_of([0.0, 0.0, 3.0])]
    values = [[np.array([0.5, 0.5]), np.array([1.0])], [np.array([0.1, 0.2, 0.3])]]
    settings: dict[str, Any] = {"advantage_estimator": "gae", "gamma": 0.9, "lam": 0.8}
    raw = estimate(groups, GRPOConfig(**settings, scale_rewards="none"), values)
    wanted = generalized_advantages([0.0, 1.0], [0.5, 0.5], gamma=0.9, lam=0.8)
    assert raw[0][0].tolist() == wanted.tolist()
    whitened = estimate(groups, GRPOConfig(**settings, scale_rewards="batch"), values)
    before, after = (np.concatenate([x for g in found for x in g]) for found in (raw, whitened))
    assert after == pytest.approx((before - before.mean()) / (before.std(ddof=1) + STD_FLOOR))
    with pytest.raises(ValueError, match="pass values"):
        estimate(groups, GRPOConfig(**settings))
