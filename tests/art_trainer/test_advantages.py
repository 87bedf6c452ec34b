from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.advantages import (
    STD_FLOOR,
    gigpo_advantages,
    group_advantages,
    leave_one_out_advantages,
    rewards_to_go,
    state_advantages,
    turn_advantages,
)

rewards = st.lists(st.floats(-100, 100), min_size=1, max_size=10)
turn_rewards = st.lists(st.lists(st.floats(-10, 10), max_size=6), min_size=1, max_size=5)


def test_advantage_is_the_reward_minus_the_groups_mean() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 3.0]).tolist() == [0.0, -1.0, -1.0, 2.0]


@given(rewards)
def test_advantages_of_a_group_sum_to_zero(values: list[float]) -> None:
    assert group_advantages(values).sum() == pytest.approx(0, abs=1e-9)


@given(rewards, st.floats(-50, 50))
def test_a_constant_added_to_all_rewards_changes_nothing(values: list[float], constant: float) -> None:
    shifted = [value + constant for value in values]
    assert group_advantages(shifted) == pytest.approx(group_advantages(values), abs=1e-9)


@given(st.floats(-1e6, 1e6), st.integers(1, 20))
def test_equal_rewards_have_advantages_of_exactly_zero(value: float, size: int) -> None:
    # 0.1 * 3 / 3 is not 0.1 in floating point: the mean of equal numbers may differ from them.
    assert not group_advantages([value] * size).any()
    assert not leave_one_out_advantages([value] * size).any()


@given(rewards.filter(lambda values: len(values) > 1))
def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others(values: list[float]) -> None:
    others = [np.mean(values[:i] + values[i + 1 :]) for i in range(len(values))]
    assert leave_one_out_advantages(values) == pytest.approx(np.subtract(values, others), abs=1e-9)


def test_an_attempt_without_others_has_no_advantage_over_them() -> None:
    assert leave_one_out_advantages([3.0]).tolist() == [0.0]


def test_rewards_to_go_are_what_comes_after_and_discounted() -> None:
    assert rewards_to_go([1.0, 0.0, 4.0]).tolist() == [5.0, 4.0, 4.0]
    assert rewards_to_go([1.0, 0.0, 4.0], 0.5).tolist() == [2.0, 2.0, 4.0]
    assert rewards_to_go([]).size == 0


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8), st.floats(0, 1))
def test_rewards_to_go_obey_bellmans_equation(values: list[float], gamma: float) -> None:
    returns = rewards_to_go(values, gamma)
    for reward, (now, later) in zip(values, pairwise(returns), strict=False):
        assert now == pytest.approx(reward + gamma * later)


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


def test_turns_are_compared_where_their_states_are_equal_whenever_they_were_met() -> None:
    # To go: hall 1, hall 1, 1 and hall 0, cellar 0; the hall is met three times, the mean there is 2/3.
    first, second = state_advantages(
        [[0.0, 0.0, 1.0], [0.0, 0.0]], [["hall", "hall", "attic"], ["hall", "cellar"]]
    )
    assert first.tolist() == pytest.approx([1 / 3, 1 / 3, 0.0])
    assert second.tolist() == pytest.approx([-2 / 3, 0.0])


def test_with_a_discount_the_step_nearer_to_the_reward_is_better() -> None:
    # Back in the hall after a detour: the second time there is one turn, not three, to the reward.
    (found,) = state_advantages([[0.0, 0.0, 1.0]], [["hall", "yard", "hall"]], gamma=0.5)
    assert found.tolist() == pytest.approx([0.25 - 0.625, 0.0, 1.0 - 0.625])


def test_step_advantages_can_be_divided_by_the_deviation_of_those_who_met_the_state() -> None:
    first, second, third = state_advantages([[3.0], [1.0], [7.0]], [["a"], ["a"], ["b"]], scale=True)
    deviation = np.sqrt(2) + STD_FLOOR
    assert (first[0], second[0], third[0]) == pytest.approx((1 / deviation, -1 / deviation, 0.0))


@given(turn_rewards, st.floats(0, 1), st.data())
def test_step_advantages_sum_to_zero_over_every_state(
    group: list[list[float]], gamma: float, data: st.DataObject
) -> None:
    states = [[data.draw(st.sampled_from("abc")) for _ in turns] for turns in group]
    found = state_advantages(group, states, gamma)
    for state in "abc":
        there = [
            value
            for values, met in zip(found, states, strict=True)
            for value, name in zip(values, met, strict=True)
            if name == state
        ]
        assert sum(there) == pytest.approx(0, abs=1e-8)


def test_states_that_are_the_turns_numbers_give_turn_advantages() -> None:
    group = [[1.0, 2.0], [1.0], [1.0, 3.0, 1.0]]
    numbers = [list(range(len(turns))) for turns in group]
    for found, wanted in zip(state_advantages(group, numbers, 0.9), turn_advantages(group, 0.9), strict=True):
        assert found.tolist() == wanted.tolist()


def test_gigpo_adds_the_steps_part_to_the_attempts() -> None:
    group, states = [[0.0, 1.0], [0.0, 0.0]], [["start", "left"], ["start", "right"]]
    first, second = gigpo_advantages(group, states, gamma=0.5, step_weight=2.0)
    # The attempts: +-0.5. The start: to go 0.5 and 0, so +-0.25. Left and right were met once each.
    assert first.tolist() == pytest.approx([0.5 + 2 * 0.25, 0.5])
    assert second.tolist() == pytest.approx([-0.5 - 2 * 0.25, -0.5])


def test_gigpo_without_the_steps_part_is_the_group_relative_advantage() -> None:
    found = gigpo_advantages([[1.0, 2.0], [4.0]], [["a", "b"], ["a"]], step_weight=0.0)
    assert [values.tolist() for values in found] == [[-0.5, -0.5], [0.5]]


def test_gigpo_scales_both_parts_by_what_they_are_compared_with() -> None:
    found = gigpo_advantages([[1.0, 2.0], [4.0]], [["a", "b"], ["a"]], scale=True)
    unit = 0.5 / (np.sqrt(0.5) + STD_FLOOR)  # of 3 and 4, both the attempts' totals and the returns in "a"
    assert found[0].tolist() == pytest.approx([-2 * unit, -unit])
    assert found[1].tolist() == pytest.approx([2 * unit])


def test_as_many_states_as_turns_are_wanted() -> None:
    with pytest.raises(ValueError, match="zip"):
        state_advantages([[1.0, 2.0]], [["only one"]])
