"""Difference between two evaluations: which episodes were won, which lost, and whether by chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

from art_gym.terminal import visible
from art_trainer.formatting import number, percent, points
from art_trainer.rollout.evaluate import Evaluation, compare
from art_trainer.types import Interval

_LISTED = 12


@dataclass(frozen=True, slots=True)
class EvaluationChange:
    """Difference between two evaluations.

    Attributes:
        first: Name of the first.
        second: Name of the second.
        success: Difference of the success rates, second minus first; ``None`` if there are none.
        reward: Difference of the mean rewards; ``None`` if the evaluations are not paired.
        first_success: Success rate of the first.
        second_success: Success rate of the second.
        paired: Whether both played the same episodes; if not, the counts of pairs are 0.
        won: Episodes that only the second solved; ``lost`` only the first, ``both`` and ``neither``.
        won_tasks: Some of the tasks won; ``lost_tasks`` some of those lost.
        p_value: How likely so uneven a split is by chance; McNemar's exact test if each task was played once.
        note: What a reader has to know.
    """

    first: str
    second: str
    success: Interval | None
    reward: Interval | None
    first_success: Interval | None
    second_success: Interval | None
    paired: bool = False
    won: int = 0
    lost: int = 0
    both: int = 0
    neither: int = 0
    won_tasks: tuple[str, ...] = ()
    lost_tasks: tuple[str, ...] = ()
    p_value: float | None = None
    note: str = ""

    def lines(self) -> list[str]:
        """The difference as text."""
        lines = []
        pair = f"{self.first} → {self.second}"
        if self.success is not None:
            luck = "" if self.success.excludes_zero else ", could be chance"
            rates = f"{percent(self.first_success)} → {percent(self.second_success)}"
            lines.append(f"{pair}: success {rates}, {points(self.success)}{luck}.")
        lines += self.pair_lines()
        if self.reward is not None:
            lines.append(f"{pair}: mean reward {number(self.reward, signed=True)}.")
        return [*lines, *([visible(self.note)] if self.note else [])]

    def pair_lines(self) -> list[str]:
        """Which episodes were won and which lost, as text; none if the evaluations are not paired."""
        if not self.paired or self.success is None:
            return []
        test = "" if self.p_value is None else f" (p = {self.p_value:.2g})"
        counts = f"won {self.won}, lost {self.lost}, solved by both {self.both}, by neither {self.neither}"
        lines = [f"Episodes {counts}{test}."]
        for name, tasks, count in (("Won", self.won_tasks, self.won), ("Lost", self.lost_tasks, self.lost)):
            if tasks:
                more = f" and {count - len(tasks)} more" if count > len(tasks) else ""
                lines.append(visible(f"{name}: {', '.join(tasks)}{more}."))
        return lines


def change_between(
    first: Evaluation, second: Evaluation, names: tuple[str, str] | None = None
) -> EvaluationChange:
    """Compare two evaluations episode by episode if they played the same ones, else their rates.

    Args:
        first: The earlier one.
        second: The later one.
        names: What to call them; by default their policies' names.
    """
    called = names or (first.policy, second.policy)
    rates = first.success, second.success
    try:
        difference = compare(first, second)
    except ValueError:
        success, note = _unpaired(first, second)
        return EvaluationChange(*called, success, None, *rates, note=note)
    pairs = [(a, b) for a, b in zip(first.results, second.results, strict=True) if not (a.fault or b.fault)]
    won = [b.task_id for a, b in pairs if b.success and not a.success]
    lost = [a.task_id for a, b in pairs if a.success and not b.success]
    both = sum(bool(a.success and b.success) for a, b in pairs)
    return EvaluationChange(
        *called,
        difference.success,
        difference.reward,
        *rates,
        paired=True,
        won=len(won),
        lost=len(lost),
        both=both,
        neither=len(pairs) - len(won) - len(lost) - both,
        won_tasks=tuple(dict.fromkeys(won))[:_LISTED],
        lost_tasks=tuple(dict.fromkeys(lost))[:_LISTED],
        p_value=difference.success_p,
    )


def _unpaired(first: Evaluation, second: Evaluation) -> tuple[Interval | None, str]:
    """The difference of the success rates of evaluations that played other episodes, and why it is that."""
    if first.env_id != second.env_id:
        return None, f"Different environments, {first.env_id} and {second.env_id}: nothing to compare."
    if not (first.counted and second.counted):
        return None, "A fault ended every episode of one of them: nothing to compare."
    old, new = first.success, second.success
    difference = None if old is None or new is None else unpaired_difference(old, new)
    return difference, (
        "They did not play the same episodes (split, seed or number of episodes differ), so the rates "
        "are compared as those of independent episodes."
    )


def unpaired_difference(first: Interval, second: Interval) -> Interval:
    """Difference of two independent proportions, second minus first, from their Wilson intervals.

    Source: R. G. Newcombe, "Interval estimation for the difference between independent proportions",
    Statistics in Medicine 17 (1998), pp. 873-890, method 10.
    """
    value = second.value - first.value
    below = math.hypot(second.value - second.low, first.high - first.value)
    above = math.hypot(second.high - second.value, first.value - first.low)
    return Interval(value, value - below, value + above, min(first.count, second.count))
