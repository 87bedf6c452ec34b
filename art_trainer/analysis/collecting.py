"""Streams a run's records once, and keeps what the analysis needs of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art_trainer.analysis.error_patterns import ErrorCollector
from art_trainer.analysis.reading import Broken, iter_groups, iter_metrics
from art_trainer.analysis.results import Curve
from art_trainer.analysis.sketches import Moments, Timeline
from art_trainer.analysis.task_rates import TaskCollector
from art_trainer.analysis.windows import REWARD, Window, merged

TERM = "score/"
"""Prefix of the curves of the reward's parts."""

_FROM_EPISODES = {
    "turns": "turns",
    "invalid_actions": "invalid",
    "reply_length": "reply_length",
    "tokens": "tokens",
    "cut_off": "cut_off",
    "repeated_calls": "repeated_calls",
    "repeated_words": "repeated_words",
    "independent_reward": "independent_reward",
}
"""Curves that the episodes give, by their name in :class:`Window`."""
_FROM_GROUPS = ("reward", "success", "script_share", "frac_reward_zero_std", "reward_std")
"""Other curves that the records give."""


class MetricsWindow:
    """The means of the logged metrics over a stretch of steps."""

    def __init__(self) -> None:
        self.values: dict[str, Moments] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in one line; what is no number is left out."""
        for name, value in record.items():
            if isinstance(value, int | float):
                self.values.setdefault(name, Moments()).add(float(value))

    def merge(self, other: MetricsWindow) -> None:
        """Take in all lines of another."""
        for name, moments in other.values.items():
            self.values.setdefault(name, Moments()).merge(moments)


@dataclass(slots=True)
class Collected:
    """Everything that one pass over a run's records leaves."""

    windows: Timeline[Window] = field(default_factory=lambda: Timeline(Window))
    metrics: Timeline[MetricsWindow] = field(default_factory=lambda: Timeline(MetricsWindow))
    errors: ErrorCollector = field(default_factory=ErrorCollector)
    tasks: TaskCollector = field(default_factory=TaskCollector)
    broken: Broken = field(default_factory=Broken)
    sampled_tokens: float = 0.0
    last_step: int = 0
    last_recorded: int = 0

    def thirds(self) -> tuple[Window, Window]:
        """The first and the last third of the recorded training."""
        windows = [window for _, window in self.windows.items()]
        third = max(1, len(windows) // 3)
        return merged(windows[:third]), merged(windows[-third:])

    def whole(self) -> Window:
        """All recorded training."""
        return merged([window for _, window in self.windows.items()])

    def curve(self, name: str) -> Curve | None:
        """A quantity over the steps: as logged, of all episodes, else of those on record.

        Args:
            name: A metric's name, or one of ``reply_length``, ``tokens``, ``cut_off``, ``repeated_calls``,
                ``repeated_words`` and ``script_share``.
        """
        found = self._logged(name) or self._recorded(name)
        if not found:
            return None
        return Curve(name, tuple(float(step) for step, _ in found), tuple(value for _, value in found))

    def curves(self) -> list[Curve]:
        """All there are, those of the log first."""
        logged = {name: None for _, held in self.metrics.items() for name in held.values}
        parts = [TERM + name for name in self.term_names()]
        names = dict.fromkeys([*logged, *parts, *_FROM_EPISODES, *_FROM_GROUPS])
        names.pop("step", None)
        return [curve for name in names if (curve := self.curve(name)) is not None]

    def term_names(self) -> list[str]:
        """The names of the reward's parts, logged or on record."""
        logged = [name for _, held in self.metrics.items() for name in held.values if name.startswith(TERM)]
        return list(dict.fromkeys([*(name.removeprefix(TERM) for name in logged), *self.whole().terms]))

    def _logged(self, name: str) -> list[tuple[int, float]]:
        lines = self.metrics.items()
        found = [(step, held) for step, held in lines if name in held.values and held.values[name].count]
        if not found or not name.startswith(TERM):
            return [(step, held.values[name].mean) for step, held in found]
        # A step in which no episode named the part logs nothing of it: that is 0.
        points = []
        for step, held in lines:
            if REWARD in held.values:
                term, steps = held.values.get(name, Moments()), held.values[REWARD].count
                points.append((step, term.mean * term.count / max(1, steps)))
        return points

    def _recorded(self, name: str) -> list[tuple[int, float]]:
        points: list[tuple[int, float | None]] = []
        for step, window in self.windows.items():
            if not window.episodes:
                continue
            if name == "success":
                points.append((step, window.successes / window.episodes if window.told else None))
            elif name == "script_share":
                points.append((step, script_share(window)))
            elif name == "frac_reward_zero_std":
                points.append((step, window.flat_groups / window.groups if window.groups else None))
            elif name == "reward_std":
                points.append((step, window.group_spread.mean if window.groups else None))
            elif name.startswith(TERM):
                points.append((step, window.term_mean(name.removeprefix(TERM))))
            else:
                points.append((step, window.mean(_FROM_EPISODES.get(name, name))))
        return [(step, value) for step, value in points if value is not None]


def script_share(window: Window) -> float | None:
    """The share of groups whose attempts mostly are one and the same sequence of replies."""
    common = window.scripts.most_common(1)
    return common[0][1] / window.scripted if common and window.scripted > 1 else None


def collect(run: Path) -> Collected:
    """Read a run's training records and metrics once, in memory that does not grow with the run."""
    collected = Collected()
    for step, members in iter_groups(run, collected.broken):
        collected.windows.at(step).add_group(members)
        collected.tasks.add_group(members)
        for episode in members:
            collected.errors.add(step, episode)
        collected.last_recorded = max(collected.last_recorded, step)
    for place, record in enumerate(iter_metrics(run, collected.broken)):
        number = record.get("step")
        step = int(number) if isinstance(number, int | float) and 0 <= number < math.inf else place
        collected.metrics.at(step).add(record)
        collected.last_step = max(collected.last_step, step)
        tokens = record.get("num_tokens")
        if isinstance(tokens, int | float) and math.isfinite(tokens):
            collected.sampled_tokens += tokens
    collected.last_step = max(collected.last_step, collected.last_recorded)
    return collected
