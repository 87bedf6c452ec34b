import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.advantages import (
    STD_FLOOR,
    batch_advantages,
    group_advantages,
    rewards_to_go,
    turn_advantages,
)
from art_trainer.config import AdvantageEstimator, ScaleRewards

rewards = st.lists(st.floats(-100, 100), min_size=1, max_size=10)
turn_rewards = st.lists(st.lists(st.floats(-10, 10), max_size=6), min_size=1, max_size=5)
SCALES: list[ScaleRewards] = ["none", "group", "batch"]
ESTIMATORS: list[AdvantageEstimator] = ["group", "reward_to_go"]


def of_single_turns(groups: list[list[float]], scale: ScaleRewards) -> list[list[float]]:
    """The advantages of attempts of one turn each, a number an attempt."""
    found = batch_advantages([[[reward] for reward in group] for group in groups], scale_rewards=scale)
    return [[float(value) for (value,) in group] for group in found]


def test_advantage_is_the_reward_minus_the_groups_mean() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 3.0]).tolist() == [0.0, -1.0, -1.0, 2.0]


@given(rewards)
def test_advantages_of_a_group_sum_to_zero(values: list[float]) -> None:
    assert group_advantages(values).sum() == pytest.approx(0, abs=1e-9)


@given(st.floats(-1e6, 1e6), st.integers(1, 20), st.sampled_from(SCALES))
def test_equal_rewards_have_advantages_of_exactly_zero(value: float, size: int, scale: ScaleRewards) -> None:
    # 0.1 * 3 / 3 is not 0.1 in floating point: the mean of equal numbers may differ from them.
    assert of_single_turns([[value] * size], scale) == [[0.0] * size]


def test_group_scaling_divides_each_group_by_its_own_deviation() -> None:
    small, large = of_single_turns([[0.0, 1.0], [0.0, 10.0]], "group")
    assert small == pytest.approx([-0.5 / (np.sqrt(0.5) + STD_FLOOR), 0.5 / (np.sqrt(0.5) + STD_FLOOR)])
    assert large == pytest.approx(small, rel=1e-3)


def test_batch_scaling_divides_all_groups_by_one_deviation() -> None:
    first, second = of_single_turns([[0.0, 1.0], [0.0, 10.0, 5.0]], "batch")
    deviation = np.std([0.0, 1.0, 0.0, 10.0, 5.0], ddof=1) + STD_FLOOR
    assert first == pytest.approx([-0.5 / deviation, 0.5 / deviation])
    assert second == pytest.approx([-5 / deviation, 5 / deviation, 0])


@given(rewards, st.floats(-50, 50))
def test_a_constant_added_to_all_rewards_changes_nothing(values: list[float], constant: float) -> None:
    shifted = [value + constant for value in values]
    assert group_advantages(shifted) == pytest.approx(group_advantages(values), abs=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("scale", SCALES)
def test_a_batch_without_groups_is_empty(estimator: AdvantageEstimator, scale: ScaleRewards) -> None:
    assert batch_advantages([], estimator=estimator, scale_rewards=scale) == []


def test_one_number_an_attempt_is_the_same_at_every_turn() -> None:
    ((first, second),) = batch_advantages([[[1.0, 2.0, 0.0], [1.0]]])
    assert (first.tolist(), second.tolist()) == ([1.0, 1.0, 1.0], [-1.0])


def test_rewards_to_go_are_what_comes_after_and_discounted() -> None:
    assert rewards_to_go([1.0, 0.0, 4.0]).tolist() == [5.0, 4.0, 4.0]
    assert rewards_to_go([1.0, 0.0, 4.0], 0.5).tolist() == [2.0, 2.0, 4.0]
    assert rewards_to_go([]).size == 0


def test_a_turn_is_compared_with_those_who_played_it() -> None:
    # To go: [3, 2], [1], [5, 4, 1]; at the first turn the mean is 3, at the second (2 + 4) / 2.
    first, second, third = turn_advantages([[1.0, 2.0], [1.0], [1.0, 3.0, 1.0]])
    assert first.tolist() == [0.0, -1.0]
    assert second.tolist() == [-2.0]
    assert third.tolist() == [2.0, 1.0, 0.0]  # nobody else reached the last turn


def test_what_was_earned_before_a_move_does_not_count_for_it() -> None:
    lucky, unlucky = turn_advantages([[10.0, 0.0], [0.0, 0.0]])
    assert (lucky[1], unlucky[1]) == (0.0, 0.0)


@given(turn_rewards, st.floats(0, 1))
def test_turn_advantages_sum_to_zero_at_every_turn(group: list[list[float]], gamma: float) -> None:
    advantages = turn_advantages(group, gamma)
    assert [len(values) for values in advantages] == [len(turns) for turns in group]
    for turn in range(max(map(len, group))):
        assert sum(values[turn] for values in advantages if len(values) > turn) == pytest.approx(0, abs=1e-9)


@given(st.lists(turn_rewards, min_size=1, max_size=3), st.sampled_from(ESTIMATORS), st.sampled_from(SCALES))
def test_every_turn_has_an_advantage(
    groups: list[list[list[float]]], estimator: AdvantageEstimator, scale: ScaleRewards
) -> None:
    found = batch_advantages(groups, estimator=estimator, scale_rewards=scale)
    assert [[len(values) for values in group] for group in found] == [
        [len(turns) for turns in group] for group in groups
    ]
    assert all(np.isfinite(values).all() for group in found for values in group)


@pytest.mark.parametrize("scale", SCALES)
def test_with_one_turn_an_attempt_the_estimators_agree(scale: ScaleRewards) -> None:
    groups = [[[1.0], [0.0], [4.0]], [[2.0], [2.5]]]
    plain = batch_advantages(groups, scale_rewards=scale)
    to_go = batch_advantages(groups, estimator="reward_to_go", scale_rewards=scale)
    if scale != "batch":  # there the spread of the rewards includes that between groups
        assert np.allclose(np.concatenate(plain[0] + plain[1]), np.concatenate(to_go[0] + to_go[1]))
