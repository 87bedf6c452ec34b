"""What the signs are read from: changes over training, and how success fared, each measured once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from art_trainer.analysis.collecting import Collected
from art_trainer.analysis.results import Change, EvaluationChange, TermGain
from art_trainer.analysis.trends import change_of, ends_of
from art_trainer.analysis.windows import REWARD, Window

SOLVED = 0.9
"""From this success rate on, attempts that are all alike are no standstill."""
_RARE = 0.02


@dataclass(frozen=True, slots=True)
class SuccessChange:
    """How the success rate changed.

    Attributes:
        where: Which episodes tell, in words.
        first: The rate before.
        second: The rate after.
        low: The lower end of the difference's interval; ``high`` the upper.
    """

    where: str
    first: float
    second: float
    low: float
    high: float

    @property
    def rises(self) -> bool:
        """Whether it rose by more than luck."""
        return self.low > 0

    @property
    def telling(self) -> bool:
        """Whether success both happens and fails to happen: a rate of 0 or 1 stays, whatever is learned."""
        return not (max(self.first, self.second) < _RARE or min(self.first, self.second) > 1 - _RARE)

    @property
    def words(self) -> str:
        """As in ``held-out success went from 20% to 22% (95%: -4 to +8 points)``."""
        return (
            f"{self.where} went from {100 * self.first:.0f}% to {100 * self.second:.0f}% "
            f"(95%: {100 * self.low:+.0f} to {100 * self.high:+.0f} points)"
        )


@dataclass
class Evidence:
    """A run's records, and what follows from them.

    Attributes:
        collected: The records.
        gains: The reward, then its parts.
        evaluated: The change between two evaluations, where there are two.
    """

    collected: Collected
    gains: Sequence[TermGain]
    evaluated: EvaluationChange | None
    _changes: dict[str, Change | None] = field(default_factory=dict)

    def change(self, curve: str) -> Change | None:
        """How a curve changed over training; ``None`` where it is not there or too short."""
        if curve not in self._changes:
            found = self.collected.curve(curve)
            self._changes[curve] = None if found is None else change_of(found.values)
        return self._changes[curve]

    @cached_property
    def thirds(self) -> tuple[Window, Window]:
        """The first and the last third of the records."""
        return self.collected.thirds()

    @cached_property
    def spread(self) -> float:
        """How far rewards of one group lie apart at the beginning: the scale of a change of the reward."""
        early, _ = self.thirds
        if early.groups and early.group_spread.mean > 0:
            return early.group_spread.mean
        held = early.values.get(REWARD)
        return held.spread if held is not None else 0.0

    @cached_property
    def success(self) -> SuccessChange | None:
        """How success changed, as independently of training as the run allows; ``None`` where nothing says.

        That is by the evaluations, else by the evaluations during training, else in training.
        """
        found = self.evaluated
        if found is not None and found.success is not None and found.first_success and found.second_success:
            return SuccessChange(
                "held-out success",
                found.first_success.value,
                found.second_success.value,
                found.success.low,
                found.success.high,
            )
        for curve, where in (("eval_success", "held-out success"), ("success", "success in training")):
            change = self.change(curve)
            if change is not None:
                return SuccessChange(
                    where, change.early, change.late, change.difference.low, change.difference.high
                )
        return None

    @property
    def late_success(self) -> float | None:
        """The success rate of the last third of training, as logged, else of the records."""
        curve = self.collected.curve("success")
        ends = None if curve is None else ends_of(curve.values)
        return None if ends is None else ends[1]

    @property
    def solved(self) -> bool:
        """Whether nearly every late attempt succeeds."""
        return self.late_success is not None and self.late_success >= SOLVED

    @property
    def reward_rises(self) -> bool:
        """Whether the training reward rose, by more than luck and by enough to speak of."""
        change = self.change(REWARD)
        return change is not None and change.rises and change.difference.value >= 0.25 * self.spread

    @property
    def unexplained_share(self) -> float | None:
        """The share of the reward's gain that neither success nor fading penalties explain."""
        if not self.gains or self.gains[0].change <= 0:
            return None
        total, *parts = self.gains
        faded = sum(max(0.0, part.unexplained) for part in parts if part.penalty)
        return max(0.0, min(1.0, (total.unexplained - faded) / total.change))

    @property
    def main_part(self) -> TermGain | None:
        """The part of the reward that gained most beyond what success explains; penalties do not count."""
        paying = [part for part in self.gains[1:] if not part.penalty]
        return max(paying, key=lambda part: part.unexplained, default=None)
