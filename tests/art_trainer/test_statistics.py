import math

import numpy as np
import pytest

from art_trainer.statistics import mean_interval, newcombe_paired, paired_difference, wilson_interval


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [  # Newcombe (1998), Statistics in Medicine 17, pp. 857-872, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(successes, count, low, high):
    interval = wilson_interval(successes, count)
    assert interval.value == successes / count
    assert (interval.low, interval.high) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


def test_wilson_stays_inside_zero_and_one_and_is_symmetric():
    for count in (1, 2, 7, 50):
        for successes in range(count + 1):
            here, mirrored = wilson_interval(successes, count), wilson_interval(count - successes, count)
            assert 0 <= here.low <= here.value <= here.high <= 1
            assert here.low == pytest.approx(1 - mirrored.high)


@pytest.mark.parametrize(("successes", "count"), [(0, 0), (-1, 4), (5, 4)])
def test_wilson_refuses_what_is_no_proportion(successes, count):
    with pytest.raises(ValueError, match=f"{successes}/{count}"):
        wilson_interval(successes, count)


def test_a_level_that_is_no_probability_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        wilson_interval(1, 2, level=95)


def test_newcombe_gives_the_published_interval():
    # Newcombe (1998), Statistics in Medicine 17, pp. 2635-2650, table II: a=36, b=12, c=2, d=0, method 10.
    second = [True] * 48 + [False] * 2
    first = [True] * 36 + [False] * 12 + [True] * 2
    interval = newcombe_paired(first, second)
    assert interval.value == pytest.approx(0.2)
    assert (interval.low, interval.high) == (pytest.approx(0.0569, abs=6e-5), pytest.approx(0.3404, abs=6e-5))


def test_four_wins_of_four_are_not_called_certain():
    interval = paired_difference([0, 0, 0, 0], [1, 1, 1, 1], np.random.default_rng(0))
    assert interval.value == 1
    assert interval.low < 0.6


def test_the_same_difference_everywhere_is_as_uncertain_as_there_are_few_tasks():
    zeros, tasks = [0] * 12, ["a", "b", "c"] * 4
    nothing = paired_difference(zeros, zeros, np.random.default_rng(0), clusters=tasks)
    assert nothing == newcombe_paired([False] * 3, [False] * 3)
    assert nothing.low < -0.4
    assert nothing.high > 0.4


def test_the_bootstrap_agrees_with_the_normal_interval_where_both_hold():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    interval = mean_interval(values, np.random.default_rng(0))
    half = 1.96 * values.std() / math.sqrt(400)
    assert interval.value == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.02)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.02)


def test_episodes_of_one_task_count_as_one_draw():
    values = [0.0] * 50 + [1.0] * 50
    alone = mean_interval(values, np.random.default_rng(0))
    tasks = mean_interval(values, np.random.default_rng(0), clusters=[k // 10 for k in range(100)])
    assert alone.value == tasks.value == 0.5
    assert tasks.high - tasks.low > 2.5 * (alone.high - alone.low)


def test_one_task_gives_no_interval():
    interval = mean_interval([1.0, 2.0], np.random.default_rng(0), clusters=["a", "a"])
    assert interval.value == 1.5
    assert math.isnan(interval.low)
    assert not interval.excludes_zero


def test_pairing_removes_what_the_tasks_have_in_common():
    rng = np.random.default_rng(2)
    difficulty = rng.normal(0, 10, size=100)
    first, second = difficulty + rng.normal(0, 0.1, 100), difficulty + 0.2 + rng.normal(0, 0.1, 100)
    interval = paired_difference(first, second, np.random.default_rng(0))
    assert interval.excludes_zero
    assert interval.high - interval.low < 0.1


def test_the_same_generator_gives_the_same_interval():
    values = [0.1, 0.5, 0.9, 0.2]
    assert mean_interval(values, np.random.default_rng(7)) == mean_interval(values, np.random.default_rng(7))


def test_repeated_tasks_are_bootstrapped_by_task():
    interval = paired_difference(
        [0, 0, 0, 0], [1, 1, 0, 0], np.random.default_rng(0), clusters=["a", "a", "b", "b"]
    )
    assert (interval.low, interval.value, interval.high) == (0.0, 0.5, 1.0)


def test_pairs_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="2 and 3"):
        paired_difference([0, 1], [0, 1, 1], np.random.default_rng(0))
    with pytest.raises(ValueError, match="one cluster"):
        mean_interval([0, 1], np.random.default_rng(0), clusters=["a"])
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([], np.random.default_rng(0))
