"""Whether a curve rose or fell over training by more than chance, and which reward terms did it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

from art_trainer.analysis.run_records import REWARD, TERM, RunRecords, Sums
from art_trainer.formatting import between
from art_trainer.types import Interval

LEVEL = 0.99
"""Many quantities are tested, so each change needs more than the usual 95%."""
FEWEST = 6
"""Fewer values than this show no trend."""

_NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True)
class Change:
    """A number at the beginning and at the end of training, or in two evaluations.

    Attributes:
        early: Mean over the first third of the steps.
        late: Mean over the last third.
        difference: Late minus early with its interval; ``count`` is the number of values.
        level: Of the interval, in percent.
    """

    early: float
    late: float
    difference: Interval
    level: int = 99

    @property
    def rises(self) -> bool:
        """Whether it rose by more than chance."""
        return self.difference.low > 0

    @property
    def falls(self) -> bool:
        """Whether it fell by more than chance."""
        return self.difference.high < 0

    def __str__(self) -> str:
        """As in ``from 0.1 to 0.7 (99%: +0.4 to +0.8)``."""
        low, high = self.difference.low, self.difference.high
        return f"from {self.early:.3g} to {self.late:.3g} ({self.level}%: {low:+.3g} to {high:+.3g})"

    def in_percent(self) -> str:
        """As in ``from 20% to 22% (95%: -4 to +8 points)``."""
        found = between(100 * self.difference.low, 100 * self.difference.high, "+.0f")
        return f"from {100 * self.early:.0f}% to {100 * self.late:.0f}% ({self.level}%: {found} points)"


@dataclass(frozen=True, slots=True)
class TermGain:
    """Change of one reward term from the first to the last third of training.

    Attributes:
        name: The term's name.
        early: Its mean at the beginning.
        late: Its mean at the end.
        explained: The part of the change that the change of the success rate explains.
        share: The change as a share of the reward's; ``None`` if the reward did not change.
        penalty: Whether the term is never positive: a penalty that fades is not income.
    """

    name: str
    early: float
    late: float
    explained: float
    share: float | None
    penalty: bool

    @property
    def change(self) -> float:
        """Late minus early."""
        return self.late - self.early

    @property
    def unexplained(self) -> float:
        """The change that success does not explain."""
        return self.change - self.explained


def change_of(values: Sequence[float]) -> Change | None:
    """Compare the last third of a curve with its first third; ``None`` if there are too few values.

    The noise of a value is estimated from its difference to the next one, so that a trend of any shape does
    not count as noise: half the mean squared successive difference. Source: J. von Neumann et al., "The mean
    square successive difference", Annals of Mathematical Statistics 12 (1941).

    Args:
        values: One value per step or range of steps, in order; those that are not finite are left out.
    """
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < FEWEST:
        return None
    early, late = _thirds(finite)
    steps = [b - a for a, b in pairwise(finite)]
    noise = math.sqrt(sum(step * step for step in steps) / (2 * len(steps)))
    # The pairs overlap: the estimate varies as a sample variance of two thirds as many values.
    quantile = student_quantile(LEVEL, round(2 * len(steps) / 3))
    half = quantile * noise * math.sqrt(2 / (len(finite) // 3))
    value = late - early
    return Change(early, late, Interval(value, value - half, value + half, len(finite)))


def ends_of(records: RunRecords, name: str) -> tuple[float, float] | None:
    """Means of the first and the last third of a curve; ``None`` for fewer than two values."""
    curve = records.curve(name)
    finite = [] if curve is None else [value for value in curve.values if math.isfinite(value)]
    return _thirds(finite) if len(finite) > 1 else None


def _thirds(values: Sequence[float]) -> tuple[float, float]:
    third = max(1, len(values) // 3)
    return sum(values[:third]) / third, sum(values[-third:]) / third


def student_quantile(level: float, freedom: int) -> float:
    """Two-sided quantile of Student's t distribution.

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


def term_gains(records: RunRecords) -> tuple[TermGain, ...]:
    """The reward and each of its terms at the beginning and at the end of training, the reward first.

    Success explains of a term's change: the change of the success rate times what the term pays more in
    successful episodes than in failed ones of the same range of steps. Without recorded episodes that is
    unknown: a rise of success then explains everything, and anything else nothing.
    """
    windows = [sums for _, sums in records.windows.ranges() if sums.episodes]
    reward, success = ends_of(records, REWARD), ends_of(records, "success")
    if reward is None:
        return ()
    rise = 0.0 if success is None else success[1] - success[0]

    def gain(name: str, key: str, early: float, late: float) -> TermGain:
        unknown = late - early if rise > 0 else 0.0
        total = reward[1] - reward[0]
        return TermGain(
            name=name,
            early=early,
            late=late,
            explained=rise * _success_premium(windows, key) if windows else unknown,
            share=(late - early) / total if abs(total) > _NEGLIGIBLE else None,
            penalty=key != REWARD and _never_pays(records, key),
        )

    keys = {name: TERM + name for name in records.names(TERM)}
    parts = [gain(name, key, *ends) for name, key in keys.items() if (ends := ends_of(records, key))]
    return (gain(REWARD, REWARD, *reward), *sorted(parts, key=lambda part: -part.change))


def _success_premium(windows: Sequence[Sums], key: str) -> float:
    """What the reward or a term pays more in successful episodes, within each range of steps."""
    weights = total = 0.0
    for sums in windows:
        won = sums["success", "sum"]
        lost = sums.episodes - won
        if won and lost:
            # Weighted as in a regression on success with an intercept for each range.
            weight = won * lost / sums.episodes
            paid = sums.get((key, "won"), 0.0)
            total += weight * (paid / won - (sums.get((key, "sum"), 0.0) - paid) / lost)
            weights += weight
    return total / weights if weights else 0.0


def _never_pays(records: RunRecords, key: str) -> bool:
    if (key, "positive") in records.whole:
        return records.whole[key, "positive"] == 0
    curve = records.curve(key)
    return curve is not None and max(curve.values) <= 0
