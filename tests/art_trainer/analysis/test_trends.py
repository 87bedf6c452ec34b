import numpy as np
import pytest

from art_trainer.analysis.trends import change_of, student_quantile


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
