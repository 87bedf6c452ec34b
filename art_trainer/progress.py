"""Shows a training run as it goes: a live panel in a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from art_trainer.charts import short
from art_trainer.display import duration, sparkline
from art_trainer.episodes import Episode

_SHOWN = (
    ("reward", "reward"),
    ("success", "success"),
    ("kl", "KL"),
    ("entropy", "entropy"),
    ("invalid_actions", "invalid"),
    ("tokens_per_second", "tokens/s"),
)


class TrainingProgress(Protocol):
    """What a training run tells whoever watches it; a context manager around the run."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing; what was shown last stays."""

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """A step is done."""

    def on_episode(self, episode: Episode) -> None:
        """An episode ended."""


class Pace:
    """How many steps are done and how long the rest will take, by the pace of this session's steps.

    Args:
        total: How many steps the run has.
        done: How many were done before, by a run that is resumed.
        clock: Seconds, from any beginning.
    """

    def __init__(self, total: int, done: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.done = done
        self._first = done
        self._clock = clock
        self._began = clock()

    def advance(self, step: int) -> None:
        """Step ``step``, counted from 1, is done."""
        self.done = step

    @property
    def remaining(self) -> float | None:
        """Seconds to the end; ``None`` before the first step."""
        if self.done <= self._first:
            return None
        return (self._clock() - self._began) / (self.done - self._first) * (self.total - self.done)

    def __str__(self) -> str:
        left = self.remaining
        return f"step {self.done}/{self.total}" + (f", {duration(left)} left" if left is not None else "")


class LiveProgress:
    """A panel that is drawn over itself: bar, time left, the latest numbers, the reward's curve.

    Args:
        console: Where to draw; a terminal.
        pace: The run's length and how far it is.
        episodes_per_step: How many episodes a step plays.
    """

    def __init__(self, console: Console, pace: Pace, episodes_per_step: int) -> None:
        self._pace = pace
        self._per_step = episodes_per_step
        self._played = 0
        self._rewards: list[float] = []
        self._latest: Mapping[str, float] = {}
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=4)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Draw once more and leave it there."""
        self._live.stop()

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        self._pace.advance(int(metrics.get("step", self._pace.done + 1)))
        self._latest = metrics
        self._played = 0
        if "reward" in metrics:
            self._rewards.append(float(metrics["reward"]))

    def on_episode(self, episode: Episode) -> None:
        """An episode ended."""
        self._played += 1

    def render(self) -> Group:
        """The panel as it stands now."""
        part = min(self._played / self._per_step, 1.0) if self._per_step else 0.0
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, self._pace.total), completed=self._pace.done + part, width=30)
        head.add_row(bar, Text(str(self._pace)))
        numbers = Table.grid(padding=(0, 3))
        shown = [(label, self._latest[name]) for name, label in _SHOWN if name in self._latest]
        numbers.add_row(*(Text.assemble((f"{label} ", "dim"), short(value)) for label, value in shown))
        curve = Text.assemble(("reward ", "dim"), (sparkline(self._rewards, 40), "green"))
        return Group(head, numbers, curve) if self._rewards else Group(head)


class PlainProgress:
    """One line every so often, for logs and pipes.

    Args:
        console: Where to write.
        pace: The run's length and how far it is.
        lines: About how many lines to write in all.
    """

    def __init__(self, console: Console, pace: Pace, lines: int = 25) -> None:
        self._console = console
        self._pace = pace
        self._every = max(1, pace.total // lines)

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to clean up."""

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        step = int(metrics.get("step", self._pace.done + 1))
        first = self._pace.remaining is None
        self._pace.advance(step)
        if first or step % self._every == 0 or step == self._pace.total:
            shown = [f"{label} {short(metrics[name])}" for name, label in _SHOWN if name in metrics]
            self._console.print("  ".join([str(self._pace), *shown]), highlight=False, soft_wrap=True)

    def on_episode(self, episode: Episode) -> None:
        """Too small a thing for a line."""


def training_progress(
    console: Console, total: int, *, done: int = 0, episodes_per_step: int = 0
) -> TrainingProgress:
    """The way of showing that fits the console: live in a terminal, lines elsewhere."""
    pace = Pace(total, done)
    if console.is_terminal:
        return LiveProgress(console, pace, episodes_per_step)
    return PlainProgress(console, pace)


class ProgressWatcher:
    """A trainer's callback that passes on what it is told to the progress that is being shown."""

    progress: TrainingProgress

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        self.progress.on_step(metrics)

    def on_episode(self, episode: Episode) -> None:
        """A training episode ended."""
        self.progress.on_episode(episode)
