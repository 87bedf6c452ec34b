import math
from functools import partial
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.rollout.statistics import (
    holm,
    mean_interval,
    newcombe_paired,
    paired_difference,
    paired_p_value,
    pass_at_k,
    rate_interval,
    wilson_interval,
)


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


def test_newcombe_gives_the_published_interval():
    # Newcombe (1998), Statistics in Medicine 17, pp. 2635-2650, table II: a=36, b=12, c=2, d=0, method 10.
    second = [True] * 48 + [False] * 2
    first = [True] * 36 + [False] * 12 + [True] * 2
    interval = newcombe_paired(first, second)
    assert interval == paired_difference(first, second, range(50), np.random.default_rng(0))
    assert interval.value == pytest.approx(0.2)
    assert (interval.low, interval.high) == (pytest.approx(0.0569, abs=6e-5), pytest.approx(0.3404, abs=6e-5))


def test_the_same_difference_everywhere_is_as_uncertain_as_there_are_few_tasks():
    zeros, tasks = [0] * 12, ["a", "b", "c"] * 4
    nothing = paired_difference(zeros, zeros, tasks, np.random.default_rng(0))
    assert nothing == newcombe_paired([False] * 3, [False] * 3)
    assert nothing.low < -0.4
    assert nothing.high > 0.4
    most = paired_difference(zeros, [1] * 11 + [0], tasks, np.random.default_rng(0))
    assert 0.5 < most.low < most.high == 1


def test_episodes_of_one_task_count_as_one_draw():
    values = [0.0] * 50 + [1.0] * 50
    alone = mean_interval(values, range(100), np.random.default_rng(0))
    tasks = mean_interval(values, [k // 10 for k in range(100)], np.random.default_rng(0))
    assert alone.value == tasks.value == 0.5
    assert (alone.low, alone.high) == pytest.approx((0.402, 0.598), abs=0.01)  # the normal interval's
    assert tasks.high - tasks.low > 2.5 * (alone.high - alone.low)


def test_one_task_gives_no_interval():
    interval = mean_interval([1.0, 2.0], ["a", "a"], np.random.default_rng(0))
    assert interval.value == 1.5
    assert math.isnan(interval.low)
    assert not interval.excludes_zero


def test_pairing_removes_what_the_tasks_have_in_common():
    rng = np.random.default_rng(2)
    difficulty = rng.normal(0, 10, size=100)
    first, second = difficulty + rng.normal(0, 0.1, 100), difficulty + 0.2 + rng.normal(0, 0.1, 100)
    interval = paired_difference(first, second, range(100), np.random.default_rng(0))
    assert interval.excludes_zero
    assert interval.high - interval.low < 0.1


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_share_of_choices_of_k_with_a_success(attempts, data):
    k = data.draw(st.integers(1, len(attempts)))
    choices = list(combinations(attempts, k))
    share = sum(any(choice) for choice in choices) / len(choices)
    assert pass_at_k(len(attempts), sum(attempts), k) == pytest.approx(share, abs=1e-12)


def test_attempts_that_all_agree_are_as_certain_as_their_tasks_are_many():
    tasks = ["a", "b", "c", "d"] * 5
    interval = rate_interval([1.0] * 20, tasks, np.random.default_rng(0))
    assert (interval.value, interval.count) == (1.0, 20)
    assert interval.low == wilson_interval(4, 4).low
    fewer = rate_interval([1.0] * 19, tasks[:19], np.random.default_rng(0))  # a fault ended one
    assert (fewer.low, fewer.count) == (interval.low, 19)
    apart = rate_interval([1.0, 0.0, 1.0, 1.0], range(4), np.random.default_rng(0))
    assert apart == wilson_interval(3, 4)


@pytest.mark.parametrize(("tasks", "rate"), [(5, 0.1), (20, 0.9), (40, 0.03)])
def test_rates_of_several_attempts_a_task_hold_the_truth(tasks, rate):
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):  # tasks of unlike difficulty; a bootstrap of whole tasks held it in 49 to 80%
        chances = rng.beta(rate / 2, (1 - rate) / 2, size=tasks)
        members = np.repeat(np.arange(tasks), rng.integers(1, 5, size=tasks))
        won = (rng.random(len(members)) < chances[members]).astype(float)
        found = rate_interval(won.tolist(), members.tolist(), rng)
        held += found.low <= rate <= found.high
    assert held >= 0.92 * 200


def test_the_interval_of_few_clusters_is_students():
    # Mean 2, standard deviation 1, and 4.303 of it by the square root of 3; a cluster counts by its size.
    rng = np.random.default_rng(0)
    found = mean_interval([1.0, 2.0, 3.0], range(3), rng)
    assert (found.low, found.high) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    doubled = mean_interval([1.0, 1.0, 2.0, 2.0, 3.0, 3.0], "aabbcc", rng)
    assert (doubled.low, doubled.high) == pytest.approx((found.low, found.high))
    drawn = [mean_interval(rng.normal(size=4), range(4), rng) for _ in range(400)]
    missed = [not one.low <= 0 <= one.high for one in drawn]
    assert np.mean(missed) == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (5, 0), (9, 2), (3, 3), (1, 12), (1016, 4), (1100, 0)])
def test_the_exact_p_value_is_mcnemars(won, lost):
    first = [0.0] * won + [1.0] * lost + [1.0, 0.0]
    second = [1.0] * won + [0.0] * lost + [1.0, 0.0]
    count = won + lost
    tail = sum(math.comb(count, k) for k in range(min(won, lost) + 1)) / 2**count
    p = paired_p_value(first, second, range(len(first)), np.random.default_rng(0))
    assert p == pytest.approx(min(1.0, 2 * tail), rel=1e-9, abs=1e-300)
    assert p > 0


def test_the_exact_p_value_swaps_whole_tasks():
    first, second = [0, 0, 0, 1, 0, 0], [1, 1, 1, 0, 1, 1]
    tasks = ["a", "a", "b", "b", "c", "c"]
    sums = [2, 0, 2]
    swaps = [sum(s * d for s, d in zip(signs, sums, strict=True)) for signs in product((1, -1), repeat=3)]
    expected = sum(abs(swap) >= 4 for swap in swaps) / len(swaps)
    assert paired_p_value(first, second, tasks, np.random.default_rng(0)) == pytest.approx(expected)


def test_drawn_swaps_come_near_the_exact_p_value():
    rng = np.random.default_rng(3)
    whole = rng.integers(-3, 5, size=14).astype(float)
    zeros = [0.0] * len(whole)
    exact = paired_p_value(zeros, list(whole), range(14), np.random.default_rng(0))
    drawn = paired_p_value(zeros, list(whole * 0.1), range(14), np.random.default_rng(0))
    assert 0.01 < exact < 0.9
    assert drawn == pytest.approx(exact, abs=0.02)


def test_holm_gives_the_textbook_values():
    # Holm (1979): p-values 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1, and never falling.
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *((partial(wilson_interval, *given), "/4|/0") for given in [(0, 0), (-1, 4), (5, 4)]),
        *((partial(pass_at_k, *given), "pass@k") for given in [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)]),
        (partial(paired_difference, [0, 1], [0, 1, 1], range(2), RNG), "2 and 3"),
        (partial(mean_interval, [0, 1], ["a"], RNG), "one cluster"),
        (partial(mean_interval, [], [], RNG), "at least one"),
    ],
)
def test_what_cannot_be_measured_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
