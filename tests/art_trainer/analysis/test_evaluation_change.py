import pytest

from art_trainer.analysis.evaluation_change import change_between, unpaired_difference
from art_trainer.rollout.statistics import wilson_interval
from tests.art_trainer.analysis.drifting_runs import write_evaluation


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
