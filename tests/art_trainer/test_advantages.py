import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.advantages import STD_FLOOR, batch_advantages, group_advantages

rewards = st.lists(st.floats(-100, 100), min_size=1, max_size=10)


def test_advantage_is_the_reward_minus_the_groups_mean() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 3.0]).tolist() == [0.0, -1.0, -1.0, 2.0]


@given(rewards)
def test_advantages_of_a_group_sum_to_zero(values: list[float]) -> None:
    assert group_advantages(values).sum() == pytest.approx(0, abs=1e-9)


@given(st.floats(-1e6, 1e6), st.integers(1, 20), st.sampled_from(["none", "group", "batch"]))
def test_equal_rewards_have_advantages_of_exactly_zero(value: float, size: int, scale: str) -> None:
    # 0.1 * 3 / 3 is not 0.1 in floating point: the mean of equal numbers may differ from them.
    assert not batch_advantages([[value] * size], scale).pop().any()  # type: ignore[arg-type]


def test_group_scaling_divides_each_group_by_its_own_deviation() -> None:
    small, large = batch_advantages([[0.0, 1.0], [0.0, 10.0]], "group")
    assert small == pytest.approx([-0.5 / (np.sqrt(0.5) + STD_FLOOR), 0.5 / (np.sqrt(0.5) + STD_FLOOR)])
    assert large == pytest.approx(small, rel=1e-3)


def test_batch_scaling_divides_all_groups_by_one_deviation() -> None:
    first, second = batch_advantages([[0.0, 1.0], [0.0, 10.0, 5.0]], "batch")
    deviation = np.std([0.0, 1.0, 0.0, 10.0, 5.0], ddof=1) + STD_FLOOR
    assert first == pytest.approx([-0.5 / deviation, 0.5 / deviation])
    assert second == pytest.approx([-5 / deviation, 5 / deviation, 0])


@given(rewards, st.floats(-50, 50))
def test_a_constant_added_to_all_rewards_changes_nothing(values: list[float], constant: float) -> None:
    shifted = [value + constant for value in values]
    assert group_advantages(shifted) == pytest.approx(group_advantages(values), abs=1e-9)


def test_a_batch_without_groups_is_empty() -> None:
    assert batch_advantages([], "batch") == []
