import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.rank_agreement import (
    judged_tau,
    kendall_tau_b,
    misranked,
    place_slope,
    success_above_failure,
    top_agreement,
    top_chance,
)

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)
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


class TestTau:
    def test_known_values(self):
        assert kendall_tau_b([1, 2, 3], [10, 20, 30]) == 1
        assert kendall_tau_b([1, 2, 3], [3, 2, 1]) == -1
        # One of six pairs is swapped.
        assert kendall_tau_b([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
        # C = 4, D = 0, one pair tied in each list: 4 / sqrt(5 * 5).
        assert kendall_tau_b([1, 1, 2, 3], [1, 2, 3, 3]) == pytest.approx(0.8)

    @given(RANKINGS)
    def test_is_what_the_definition_says(self, lists):
        first, second = lists
        expected = by_definition(first, second)
        assert kendall_tau_b(first, second) == (None if expected is None else pytest.approx(expected))

    @given(RANKINGS)
    def test_is_symmetric_and_turns_with_the_order(self, lists):
        first, second = lists
        tau = kendall_tau_b(first, second)
        assert kendall_tau_b(second, first) == tau
        turned = kendall_tau_b([-x for x in first], second)
        assert turned == (None if tau is None else -tau)

    def test_tiny_differences_count(self):
        assert kendall_tau_b([5e-324, 0.0], [1.0, 0.0]) == 1

    def test_a_judge_that_says_nothing_gets_0_and_a_group_without_an_order_nothing(self):
        assert kendall_tau_b([0.5, 0.5], [1, 2]) is None
        assert judged_tau([0.5, 0.5], [1, 2]) == 0
        assert judged_tau([0.1, 0.9], [2, 2]) is None
        assert judged_tau([0.1, 0.9], [1, 2]) == 1

    def test_refuses_what_is_no_pair_of_rankings(self):
        with pytest.raises(ValueError, match="equally long, got 2 and 3"):
            kendall_tau_b([1, 2], [1, 2, 3])
        with pytest.raises(ValueError, match="finite numbers"):
            kendall_tau_b([1, math.nan], [1, 2])


class TestTop:
    def test_ties_of_the_judge_are_split(self):
        assert top_agreement([0.9, 0.1, 0.2], [1, 0, 0]) == 1
        assert top_agreement([0.1, 0.9, 0.2], [1, 0, 0]) == 0
        assert top_agreement([0.9, 0.9, 0.2], [1, 0, 0]) == 0.5
        assert top_agreement([0.9, 0.9, 0.9], [1, 1, 0]) == pytest.approx(2 / 3)

    def test_any_of_the_truly_best_will_do(self):
        assert top_agreement([0.1, 0.9, 0.2], [3, 3, 0]) == 1

    def test_chance_is_the_share_of_the_best(self):
        assert top_chance([1, 0, 0, 1]) == 0.5
        assert top_chance([1, 1]) is None
        assert top_agreement([0.1, 0.9], [1, 1]) is None

    @given(st.lists(st.integers(0, 3).map(float), min_size=2, max_size=5))
    def test_over_all_orders_any_judge_is_chance(self, trusted):
        found = [top_agreement(order, trusted) for order in itertools.permutations(range(len(trusted)))]
        expected = top_chance(trusted)
        if expected is None:
            assert set(found) == {None}
        else:
            assert np.mean(found) == pytest.approx(expected)


def test_success_above_failure_counts_pairs_and_draws_half():
    assert success_above_failure([0.9, 0.5, 0.1], [True, True, False]) == 1
    assert success_above_failure([0.9, 0.5, 0.5, 0.1], [False, True, False, True]) == pytest.approx(0.5 / 4)
    assert success_above_failure([0.5] * 4, [True, False, False, True]) == 0.5
    assert success_above_failure([0.1, 0.2], [True, True]) is None
    with pytest.raises(ValueError, match="equally long, got 1 and 2"):
        success_above_failure([0.1], [True, False])


def test_misranked_pairs_are_those_that_both_rank_and_rank_differently():
    assert misranked([0.5, 0.9, 0.5], [2, 1, 1]) == [(0, 1)]
    assert misranked([3, 2, 1], [3, 2, 1]) == []


class TestSlope:
    def test_is_the_change_from_the_first_place_to_the_last(self):
        assert place_slope([-0.1, 0.1]) == pytest.approx(0.2)
        assert place_slope([0.3, 0.0, -0.3]) == pytest.approx(-0.6)
        assert place_slope([0.0] * 5) == 0

    @given(st.lists(NUMBERS, min_size=2, max_size=8))
    def test_is_least_squares(self, values):
        places = np.linspace(0, 1, len(values))
        slope = np.polyfit(places, values, 1)[0]
        assert place_slope(values) == pytest.approx(slope, abs=1e-6, rel=1e-6)

    def test_needs_two_places(self):
        with pytest.raises(ValueError, match="at least two"):
            place_slope([0.1])
