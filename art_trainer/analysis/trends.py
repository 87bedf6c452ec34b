"""Whether a curve rose or fell over training by more than luck."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist

from art_trainer.analysis.results import Change
from art_trainer.statistics import Interval

LEVEL = 0.99
"""Many quantities are looked at, so each change is held to more than the usual 95%."""
FEWEST = 6
"""Fewer values than this tell no trend."""


def change_of(values: Sequence[float]) -> Change | None:
    """Compare the last third of a curve with its first; ``None`` where there are too few values.

    The noise of a value is taken from its difference to the next one, so that a trend, however it is bent,
    does not count as noise: half the mean squared successive difference. Source: J. von Neumann et al., "The
    mean square successive difference", Annals of Mathematical Statistics 12 (1941).

    Args:
        values: One value per step or stretch of steps, in order; those not finite are left out.
    """
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < FEWEST:
        return None
    third = len(finite) // 3
    early, late = _thirds(finite)
    steps = [b - a for a, b in pairwise(finite)]
    noise = math.sqrt(sum(step * step for step in steps) / (2 * len(steps)))
    # The estimate rests on overlapping pairs: it varies as a sample variance of two thirds as many values.
    half = student_quantile(LEVEL, round(2 * len(steps) / 3)) * noise * math.sqrt(2 / third)
    value = late - early
    return Change(early, late, Interval(value, value - half, value + half, len(finite)))


def ends_of(values: Sequence[float]) -> tuple[float, float] | None:
    """The means of the first and of the last third of a curve; ``None`` for fewer than two values."""
    finite = [value for value in values if math.isfinite(value)]
    return _thirds(finite) if len(finite) > 1 else None


def _thirds(values: Sequence[float]) -> tuple[float, float]:
    third = max(1, len(values) // 3)
    return sum(values[:third]) / third, sum(values[-third:]) / third


def student_quantile(level: float, freedom: int) -> float:
    """The two-sided quantile of Student's t distribution.

    Source: the expansion of Cornish and Fisher, Abramowitz and Stegun 26.7.5; off by less than 3% from 4
    degrees of freedom on for a level of 0.99.

    Args:
        level: The share between the two quantiles, in (0, 1).
        freedom: Degrees of freedom, at least 1.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    n = float(freedom)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3
