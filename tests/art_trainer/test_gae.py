from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.advantages import STD_FLOOR, rewards_to_go
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Group
from art_trainer.estimators import batch_advantages, estimate
from art_trainer.gae import fill_gaps, generalized_advantages
from tests.art_trainer.made_episodes import made_episode

numbers = st.floats(-100, 100)
shares = st.floats(0, 1)
turns = st.lists(st.tuples(numbers, numbers), max_size=8)


def by_definition(
    rewards: list[float], values: list[float], gamma: float, lam: float, last: float
) -> list[float]:
    """Equation 16 as it is written, every turn's sum apart."""
    after = [*values[1:], last]
    errors = [r + gamma * v_next - v for r, v, v_next in zip(rewards, values, after, strict=False)]
    return [
        sum((gamma * lam) ** (k - t) * errors[k] for k in range(t, len(errors))) for t in range(len(errors))
    ]


@given(turns, shares, shares, numbers)
def test_it_is_the_sum_that_the_paper_defines(
    pairs: list[tuple[float, float]], gamma: float, lam: float, last: float
) -> None:
    rewards, values = [r for r, _ in pairs], [v for _, v in pairs]
    found = generalized_advantages(rewards, values, gamma=gamma, lam=lam, last_value=last)
    assert found.tolist() == pytest.approx(by_definition(rewards, values, gamma, lam, last), abs=1e-9)


@given(turns, shares)
def test_lambda_one_is_the_reward_to_go_minus_the_value(
    pairs: list[tuple[float, float]], gamma: float
) -> None:
    rewards, values = [r for r, _ in pairs], [v for _, v in pairs]
    wanted = rewards_to_go(rewards, gamma) - np.asarray(values)
    assert generalized_advantages(rewards, values, gamma=gamma, lam=1.0) == pytest.approx(wanted, abs=1e-9)


@given(turns, shares, numbers)
def test_lambda_zero_is_the_error_of_one_step(
    pairs: list[tuple[float, float]], gamma: float, last: float
) -> None:
    rewards, values = np.array([r for r, _ in pairs]), np.array([v for _, v in pairs])
    wanted = rewards + gamma * np.append(values[1:], last)[: len(values)] - values
    found = generalized_advantages(rewards, values, gamma=gamma, lam=0.0, last_value=last)
    assert found == pytest.approx(wanted, abs=1e-9)


@given(st.lists(numbers, max_size=8), shares, shares)
def test_a_value_function_that_knows_what_comes_leaves_no_advantage(
    rewards: list[float], gamma: float, lam: float
) -> None:
    values = rewards_to_go(rewards, gamma)
    assert generalized_advantages(rewards, values, gamma=gamma, lam=lam) == pytest.approx(0, abs=1e-9)


def test_a_surprise_is_credited_to_the_turns_before_it_ever_less() -> None:
    found = generalized_advantages([0.0, 0.0, 1.0], [0.0, 0.0, 0.0], gamma=1.0, lam=0.5)
    assert found.tolist() == [0.25, 0.5, 1.0]


def test_rewards_and_values_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="2 rewards need as many values, got 1"):
        generalized_advantages([0.0, 1.0], [0.0])


@given(turns, st.lists(st.booleans(), min_size=8, max_size=8), shares)
def test_a_filled_gap_is_no_surprise_and_known_values_stay(
    pairs: list[tuple[float, float]], gaps: list[bool], gamma: float
) -> None:
    rewards = [r for r, _ in pairs]
    values = [np.nan if gap else v for (_, v), gap in zip(pairs, gaps, strict=False)]
    filled = fill_gaps(values, rewards, gamma=gamma)
    errors = generalized_advantages(rewards, filled, gamma=gamma, lam=0.0)
    for value, found, error in zip(values, filled, errors, strict=True):
        if np.isnan(value):
            assert error == pytest.approx(0, abs=1e-9)
        else:
            assert found == value


def test_a_gap_at_the_end_takes_what_comes_after_the_end() -> None:
    assert fill_gaps([1.0, np.nan], [0.0, 2.0], gamma=0.5, last_value=4.0).tolist() == [1.0, 4.0]


def test_the_estimator_leaves_advantages_or_whitens_them_over_the_batch() -> None:
    rewards = [[[0.0, 1.0], [2.0]], [[0.0, 0.0, 3.0]]]
    values = [[np.array([0.5, 0.5]), np.array([1.0])], [np.array([0.1, 0.2, 0.3])]]
    raw = batch_advantages(rewards, estimator="gae", values=values, gamma=0.9, lam=0.8)
    wanted = generalized_advantages([0.0, 1.0], [0.5, 0.5], gamma=0.9, lam=0.8)
    assert raw[0][0].tolist() == wanted.tolist()
    whitened = batch_advantages(
        rewards, estimator="gae", values=values, gamma=0.9, lam=0.8, scale_rewards="batch"
    )
    before, after = (np.concatenate([x for g in found for x in g]) for found in (raw, whitened))
    assert after == pytest.approx((before - before.mean()) / (before.std(ddof=1) + STD_FLOOR))


def test_a_config_chooses_gamma_and_lambda() -> None:
    group = Group((made_episode(0, 1.0, []),))
    config = GRPOConfig(advantage_estimator="gae", gamma=0.5, lam=0.0, num_generations=1)
    assert estimate([group], config, [[np.array([0.25])]])[0][0].tolist() == [0.75]
    with pytest.raises(ValueError, match="pass values"):
        estimate([group], config)
