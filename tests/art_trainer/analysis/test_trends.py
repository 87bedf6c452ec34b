"""Changes of curves and between evaluations."""

import numpy as np
import pytest

from art_trainer.analysis.evaluation_change import change_between, unpaired_difference
from art_trainer.analysis.trends import change_of, student_quantile
from art_trainer.rollout.statistics import wilson_interval
from tests.art_trainer.analysis.drifting_runs import write_evaluation


def test_noise_is_called_a_trend_as_rarely_as_the_level_says():
    rng = np.random.default_rng(0)
    for steps in (6, 12, 40):
        changes = [change_of(rng.normal(size=steps)) for _ in range(1500)]
        false = sum(change.rises or change.falls for change in changes) / len(changes)
        # The estimate of the noise from few steps has heavier tails than Student's: at 6 steps 3%.
        assert false <= (0.04 if steps == 6 else 0.025)


def test_a_trend_is_seen_however_it_is_bent():
    rng = np.random.default_rng(1)
    x = np.linspace(0, 1, 30)
    for curve in (x, x**3, 1 / (1 + np.exp(-20 * (x - 0.5)))):
        change = change_of(list(curve + 0.1 * rng.normal(size=30)))
        assert change.rises
        assert change.difference.value == pytest.approx(curve[-10:].mean() - curve[:10].mean(), abs=0.12)
        assert change_of(list(-curve)).falls


def test_a_steady_curve_has_not_changed():
    change = change_of([0.5] * 10)
    assert (change.rises, change.falls, change.early, change.late) == (False, False, 0.5, 0.5)


def test_few_values_show_no_trend():
    assert change_of([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert change_of([1.0, 2.0, float("nan"), 4.0, 5.0, 6.0]) is None


@pytest.mark.parametrize(
    ("level", "freedom", "quantile"),
    [(0.95, 4, 2.776), (0.95, 10, 2.228), (0.99, 4, 4.604), (0.99, 10, 3.169), (0.99, 30, 2.750)],
)
def test_students_quantile_is_that_of_the_tables(level, freedom, quantile):
    assert student_quantile(level, freedom) == pytest.approx(quantile, rel=0.03)


def test_tasks_won_and_lost_are_named(tmp_path):
    first = write_evaluation(tmp_path, "before", [True, False, False, True, False, False, False])
    second = write_evaluation(tmp_path, "after", [True, True, True, False, True, True, False])
    change = change_between(first, second)
    assert change.paired
    assert (change.won, change.lost, change.both, change.neither) == (4, 1, 1, 1)
    assert change.won_tasks == ("test-1", "test-2", "test-4", "test-5")
    assert change.lost_tasks == ("test-3",)
    assert change.p_value == pytest.approx(2 * 6 / 32)  # McNemar's exact test
    assert change.success.value == pytest.approx(3 / 7)


def test_other_episodes_are_compared_by_their_rates(tmp_path):
    first = write_evaluation(tmp_path, "before", [True] * 10 + [False] * 30)
    second = write_evaluation(tmp_path, "after", [True] * 40 + [False] * 10)
    change = change_between(first, second, ("a", "b"))
    assert (change.first, change.second, change.paired, change.p_value) == ("a", "b", False, None)
    assert change.success.value == pytest.approx(0.55)
    assert 0.3 < change.success.low < 0.55 < change.success.high < 0.75
    assert "did not play the same episodes" in change.note
    other = write_evaluation(tmp_path, "other", [True] * 9, env="toy/Other-v0")
    assert change_between(first, other).success is None


def test_an_unpaired_difference_is_newcombes():
    # The worked example of Newcombe (1998), method 10: 56/70 against 48/80.
    found = unpaired_difference(wilson_interval(48, 80), wilson_interval(56, 70))
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)
