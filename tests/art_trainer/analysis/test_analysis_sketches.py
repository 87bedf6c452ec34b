import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.analysis.sketches import Covariance, KeySample, Moments, Timeline, TopCounts

NUMBERS = st.lists(st.floats(-1e6, 1e6), max_size=40)


def moments(values):
    found = Moments()
    for value in values:
        found.add(value)
    return found


@given(NUMBERS, NUMBERS)
def test_merged_moments_are_those_of_all_numbers(first, second):
    merged = moments(first)
    merged.merge(moments(second))
    both = first + second
    assert merged.count == len(both)
    if both:
        assert merged.mean == pytest.approx(np.mean(both), abs=1e-6, rel=1e-9)
        assert merged.highest == max(both)
    if len(both) > 1:
        assert merged.spread == pytest.approx(np.std(both, ddof=1), abs=1e-4, rel=1e-6)


def test_what_is_no_number_says_nothing():
    found = moments([1.0, math.nan, math.inf, 3.0])
    assert (found.count, found.mean) == (2, 2.0)


def test_a_correlation_within_classes_ignores_what_lies_between_them():
    # Between the classes x and y rise together, inside each they go against each other.
    found, other = Covariance(), Covariance()
    found.add_class([0.0, 1.0, 2.0], [2.0, 1.0, 0.0])
    other.add_class([10.0, 11.0], [21.0, 20.0])
    other.add_class([5.0], [99.0])
    found.merge(other)
    assert found.correlation == pytest.approx(-1.0)
    assert found.freedom == 3


def test_a_correlation_agrees_with_numpy():
    rng = np.random.default_rng(0)
    xs = rng.normal(size=50)
    ys = xs + rng.normal(size=50)
    found = Covariance()
    found.add_class(list(xs), list(ys))
    assert found.correlation == pytest.approx(np.corrcoef(xs, ys)[0, 1])


def test_there_is_no_correlation_with_what_never_varies():
    found = Covariance()
    found.add_class([0.1 + 0.2, 0.3, 0.3], [1.0, 2.0, 3.0])
    assert found.correlation is None


@given(st.lists(st.integers(0, 60), max_size=300), st.lists(st.integers(0, 60), max_size=300))
def test_frequent_keys_are_never_overcounted_and_never_lost(first, second):
    limit = 5
    found, other = TopCounts(limit), TopCounts(limit)
    for key in first:
        found.add(key)
    for key in second:
        other.add(key)
    found.merge(other)
    truth = Counter(first + second)
    total = len(first) + len(second)
    assert found.total == total
    assert len(found.counts) <= 2 * limit
    for key, count in truth.items():
        assert count - total / limit <= found.counts.get(key, 0) <= count


def test_few_keys_are_counted_exactly():
    found = TopCounts(10)
    for key in "abracadabra":
        found.add(key)
    assert found.most_common(2) == [("a", 5), ("b", 2)]


def test_a_key_sample_is_exact_for_the_keys_it_keeps():
    sample = KeySample(100, lambda: [0])
    for _ in range(3):
        for k in range(5_000):
            value = sample.get(f"key-{k}")
            if value is not None:
                value[0] += 1
    assert 20 <= len(sample.values) <= 100
    assert sample.share == pytest.approx(100 / 5_000, rel=0.8)
    assert {value[0] for value in sample.values.values()} == {3}


def test_a_key_sample_keeps_all_of_few_keys():
    sample = KeySample(10, lambda: 0)
    for k in range(10):
        sample.get(str(k))
    assert (len(sample.values), sample.share) == (10, 1.0)


def test_a_timeline_doubles_its_stretches_and_loses_nothing():
    line = Timeline(Moments, limit=8)
    for step in range(1, 101):
        line.at(step).add(step)
    assert line.width == 16
    items = line.items()
    assert [first for first, _ in items] == [0, 16, 32, 48, 64, 80, 96]
    assert sum(held.count for _, held in items) == 100
    assert all(first <= held.mean < first + 16 for first, held in items)


def test_a_timeline_takes_steps_far_apart():
    line = Timeline(Moments, limit=4)
    for step in (1, 10**9, 5, 10**6, 2, 10**3, 7):
        line.at(step).add(1.0)
    assert len(line.items()) <= 4
    assert sum(held.count for _, held in line.items()) == 7
