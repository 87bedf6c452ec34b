"""Measures of how far two rankings agree, against their definitions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.wrappers.judging.agreement import (
    judged_tau,
    kendall_tau_b,
    success_above_failure,
    top_agreement,
    top_chance,
)

RANKINGS = st.integers(2, 7).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 3).map(float), min_size=n, max_size=n)] * 2)
)


def by_definition(first, second):
    """Kendall's 1945 formula, pair by pair: (C - D) / sqrt((C + D + T1) (C + D + T2))."""
    concordant = discordant = only_first = only_second = 0
    for (a, b), (c, d) in itertools.combinations(zip(first, second, strict=True), 2):
        if a != c and b != d:
            concordant += (a < c) == (b < d)
            discordant += (a < c) != (b < d)
        only_first += a != c and b == d
        only_second += a == c and b != d
    untied = (concordant + discordant + only_first) * (concordant + discordant + only_second)
    return (concordant - discordant) / math.sqrt(untied) if untied else None


@given(RANKINGS)
def test_tau_is_what_the_definition_says(lists):
    expected = by_definition(*lists)
    assert kendall_tau_b(*lists) == (None if expected is None else pytest.approx(expected))


def test_tau_of_tiny_differences_and_of_a_judge_that_says_nothing():
    assert kendall_tau_b([5e-324, 0.0], [1.0, 0.0]) == 1
    assert kendall_tau_b([0.5, 0.5], [1, 2]) is None
    assert judged_tau([0.5, 0.5], [1, 2]) == 0
    assert judged_tau([0.1, 0.9], [2, 2]) is None


def test_the_top_is_any_of_the_truly_best_and_ties_of_the_judge_are_split():
    assert top_agreement([0.1, 0.9, 0.2], [1, 0, 0]) == 0
    assert top_agreement([0.9, 0.9, 0.9], [1, 1, 0]) == pytest.approx(2 / 3)
    assert top_agreement([0.1, 0.9, 0.2], [3, 3, 0]) == 1
    assert top_agreement([0.1, 0.9], [1, 1]) is None


@given(st.lists(st.integers(0, 3).map(float), min_size=2, max_size=5))
def test_over_all_orders_any_judge_is_chance(trusted):
    found = [top_agreement(order, trusted) for order in itertools.permutations(range(len(trusted)))]
    expected = top_chance(trusted)
    if expected is None:
        assert set(found) == {None}
    else:
        assert np.mean(found) == pytest.approx(expected)


def test_success_above_failure_counts_pairs_and_draws_half():
    assert success_above_failure([0.9, 0.5, 0.1], [True, True, False]) == 1
    assert success_above_failure([0.9, 0.5, 0.5, 0.1], [False, True, False, True]) == pytest.approx(0.5 / 4)
    assert success_above_failure([0.1, 0.2], [True, True]) is None


@pytest.mark.parametrize("figure", [kendall_tau_b, top_agreement, success_above_failure])
def test_rankings_of_other_lengths_or_of_no_numbers_are_refused(figure):
    with pytest.raises(ValueError, match=r"equally long|shorter|longer"):
        figure([1.0, 0.0], [1.0, 0.0, 1.0])
    with pytest.raises(ValueError, match="finite numbers"):
        kendall_tau_b([1, math.nan], [1, 2])
