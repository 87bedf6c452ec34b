from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.advantages import STD_FLOOR, gigpo_advantages
from art_trainer.config import AdvantageEstimator, GRPOConfig, ScaleRewards
from art_trainer.episodes import Episode, Group
from art_trainer.estimators import batch_advantages, estimate, reinforce_plus_plus
from tests.art_trainer.made_episodes import made_episode

turn_rewards = st.lists(st.lists(st.floats(-10, 10), max_size=6), min_size=1, max_size=5)
SCALES: list[ScaleRewards] = ["none", "group", "batch"]
ESTIMATORS: tuple[AdvantageEstimator, ...] = get_args(AdvantageEstimator)
BY_GROUP = [name for name in ESTIMATORS if name not in ("reinforce_plus_plus", "gae")]


def states_of(rewards: Sequence[Sequence[Sequence[float]]]) -> list[list[list[int]]]:
    """States that recur: even and odd turns."""
    return [[[turn % 2 for turn in range(len(turns))] for turns in group] for group in rewards]


def values_of(rewards: Sequence[Sequence[Sequence[float]]]) -> list[list[np.ndarray]]:
    """A value function that expects one half of every turn."""
    return [[np.full(len(turns), 0.5) for turns in group] for group in rewards]


def of_single_turns(
    groups: list[list[float]], scale: ScaleRewards, estimator: AdvantageEstimator = "group"
) -> list[list[float]]:
    """The advantages of attempts of one turn each, a number an attempt."""
    rewards = [[[reward] for reward in group] for group in groups]
    found = batch_advantages(rewards, estimator=estimator, scale_rewards=scale, states=states_of(rewards))
    return [[float(value) for (value,) in group] for group in found]


@pytest.mark.parametrize("estimator", BY_GROUP)
@given(st.floats(-1e6, 1e6), st.integers(1, 20), st.sampled_from(SCALES))
def test_equal_rewards_have_advantages_of_exactly_zero(
    estimator: AdvantageEstimator, value: float, size: int, scale: ScaleRewards
) -> None:
    others = [0.0, 1.0]
    assert of_single_turns([[value] * size, others], scale, estimator)[0] == [0.0] * size


def test_group_scaling_divides_each_group_by_its_own_deviation() -> None:
    small, large = of_single_turns([[0.0, 1.0], [0.0, 10.0]], "group")
    assert small == pytest.approx([-0.5 / (np.sqrt(0.5) + STD_FLOOR), 0.5 / (np.sqrt(0.5) + STD_FLOOR)])
    assert large == pytest.approx(small, rel=1e-3)


def test_batch_scaling_divides_all_groups_by_one_deviation() -> None:
    first, second = of_single_turns([[0.0, 1.0], [0.0, 10.0, 5.0]], "batch")
    deviation = np.std([0.0, 1.0, 0.0, 10.0, 5.0], ddof=1) + STD_FLOOR
    assert first == pytest.approx([-0.5 / deviation, 0.5 / deviation])
    assert second == pytest.approx([-5 / deviation, 5 / deviation, 0])


@pytest.mark.parametrize("scale", SCALES)
def test_leave_one_out_is_scaled_as_the_group_estimator_is(scale: ScaleRewards) -> None:
    groups = [[0.0, 1.0, 3.0], [2.0, -2.0]]
    plain = of_single_turns(groups, scale)
    found = of_single_turns(groups, scale, "leave_one_out")
    assert found[0] == pytest.approx([value * 3 / 2 for value in plain[0]])
    assert found[1] == pytest.approx([value * 2 for value in plain[1]])


def test_reinforce_plus_plus_compares_with_the_whole_batch() -> None:
    batch = [[0.0, 0.0], [1.0, 3.0]]
    first, second = of_single_turns(batch, "none", "reinforce_plus_plus")
    deviation = np.std([0.0, 0.0, 1.0, 3.0], ddof=1) + STD_FLOOR
    assert first == pytest.approx([-1 / deviation, -1 / deviation])  # a group of failures teaches here
    assert second == pytest.approx([0.0, 2 / deviation])


def test_with_a_baseline_it_compares_with_the_group_and_normalises_over_the_batch() -> None:
    batch = [[5.0, 5.0], [1.0, 3.0]]
    first, second = of_single_turns(batch, "none", "reinforce_plus_plus_baseline")
    deviation = np.std([0.0, 0.0, -1.0, 1.0], ddof=1) + STD_FLOOR
    assert first == [0.0, 0.0]
    assert second == pytest.approx([-1 / deviation, 1 / deviation])


@given(st.lists(st.lists(st.floats(-50, 50), min_size=2, max_size=5), min_size=1, max_size=4), st.booleans())
def test_reinforce_plus_plus_has_mean_zero_and_at_most_unit_deviation(
    totals: list[list[float]], baseline: bool
) -> None:
    flat = np.concatenate(reinforce_plus_plus(totals, baseline=baseline))
    assert flat.mean() == pytest.approx(0, abs=1e-6)
    assert flat.std(ddof=1) <= 1 + 1e-9


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("scale", SCALES)
def test_a_batch_without_groups_is_empty(estimator: AdvantageEstimator, scale: ScaleRewards) -> None:
    assert batch_advantages([], estimator=estimator, scale_rewards=scale, states=[], values=[]) == []


@pytest.mark.parametrize(
    "estimator", ["group", "leave_one_out", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
)
def test_one_number_an_attempt_is_the_same_at_every_turn(estimator: AdvantageEstimator) -> None:
    ((first, second),) = batch_advantages([[[1.0, 2.0, 0.0], [1.0]]], estimator=estimator)
    assert (len(set(first)), len(first), len(second)) == (1, 3, 1)
    assert first[0] == pytest.approx(-second[0])
    assert first[0] > 0


@given(st.lists(turn_rewards, min_size=1, max_size=3), st.sampled_from(ESTIMATORS), st.sampled_from(SCALES))
def test_every_turn_has_an_advantage(
    groups: list[list[list[float]]], estimator: AdvantageEstimator, scale: ScaleRewards
) -> None:
    found = batch_advantages(
        groups,
        estimator=estimator,
        scale_rewards=scale,
        states=states_of(groups),
        values=values_of(groups),
        gamma=0.9,
    )
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


def test_gigpo_needs_states() -> None:
    with pytest.raises(ValueError, match="pass states"):
        batch_advantages([[[1.0], [0.0]]], estimator="gigpo")


def episode(rewards: Sequence[float], **changes: Any) -> Episode:
    made = made_episode(0, 0.0, [])
    turn = made.turns[0]
    turns = [
        replace(turn, reward=reward, observation=f"room {i}", **changes) for i, reward in enumerate(rewards)
    ]
    return replace(made, observation="door", turns=tuple(turns))


def test_a_config_chooses_the_estimator_and_all_its_settings() -> None:
    group = Group((episode([0.0, 1.0]), episode([0.0, 0.0])))
    settings = GRPOConfig(
        advantage_estimator="gigpo", gamma=0.5, step_advantage_weight=3.0, scale_rewards="group"
    )
    (found,) = estimate([group], settings)
    states = [["door", "room 0"]] * 2
    wanted = gigpo_advantages([[0.0, 1.0], [0.0, 0.0]], states, gamma=0.5, step_weight=3.0, scale=True)
    assert [values.tolist() for values in found] == [values.tolist() for values in wanted]


def test_states_that_were_noted_count_before_what_was_shown() -> None:
    group = Group((episode([0.0, 1.0], state="x"), episode([0.0, 0.0], state="y")))
    (found,) = estimate([group], GRPOConfig(advantage_estimator="gigpo"))
    # Each attempt met a state of its own, twice, with the same reward to go each time.
    assert [values.tolist() for values in found] == [[0.5, 0.5], [-0.5, -0.5]]
