"""What training curves of several seeds say: levels, when one was reached, and what is luck."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from art_trainer.statistics import Interval

WINDOW = 3
"""Training steps whose mean counts as the level reached: one step's batch is luck to a part."""
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Two-sided 95% quantiles of Student's t, by the number of seeds."""


def smoothed(curve: Sequence[float]) -> list[float]:
    """The mean of each step and those just before it, ``WINDOW`` in all."""
    return [statistics.fmean(curve[max(i + 1 - WINDOW, 0) : i + 1]) for i in range(len(curve))]


def steps_to(curve: Sequence[float], threshold: float) -> int | None:
    """The first training step, from 1, at which the level reached the threshold; ``None`` where none did."""
    levels = smoothed(curve)[WINDOW - 1 :]
    return next((i + WINDOW for i, level in enumerate(levels) if level >= threshold), None)


def fell_back(curve: Sequence[float]) -> bool:
    """Whether a training lost half of what it had gained, where that was a tenth of its start or more."""
    levels = smoothed(curve)
    gained, kept = max(levels) - levels[0], levels[-1] - levels[0]
    return gained > 0.1 * abs(levels[0]) and kept < gained / 2


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean with Student's 95% interval; of more than ten seeds the normal one.

    One seed says nothing of the spread: both ends are NaN.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, math.nan, math.nan, len(values))
    half = STUDENT.get(len(values), 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))
