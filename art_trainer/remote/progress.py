"""How far a run is, for whoever asks its server."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from art_trainer.episodes import Episode, Group
from art_trainer.remote.status import State
from art_trainer.timings import EpisodeTiming

_STEPS = 10


class RunProgress:
    """Watches a trainer, as one of its callbacks.

    Args:
        run: The run's name.
        max_steps: How many steps it has.
        clock: Seconds, from any beginning.

    Attributes:
        state: What the run does now.
        step: Training steps done.
    """

    def __init__(self, run: str, max_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self.max_steps = max_steps
        self.state: State = "starting"
        self.step = 0
        self._clock = clock
        self._began = clock()
        self._ends: deque[float] = deque(maxlen=_STEPS + 1)

    @property
    def uptime(self) -> float:
        """Seconds since it began to watch."""
        return self._clock() - self._began

    @property
    def seconds_left(self) -> float | None:
        """Until the last step, at the speed of the last few; ``None`` where none is done."""
        ends = tuple(self._ends)
        if len(ends) < 2:
            return None
        return (ends[-1] - ends[0]) / (len(ends) - 1) * (self.max_steps - self.step)

    def evaluating(self) -> None:
        """The policy is being evaluated."""
        self.state = "evaluating"

    def draining(self) -> None:
        """No more work is given out."""
        if self.state not in ("finished", "failed"):
            self.state = "draining"

    def on_begin(self, step: int) -> None:
        """Training begins."""
        self.step = step
        self.state = "training"
        self._ends.clear()
        self._ends.append(self._clock())

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        self.step = int(metrics.get("step", self.step + 1))
        self._ends.append(self._clock())

    def on_episode(self, episode: Episode) -> None:
        """Too small a thing."""

    def on_logged(
        self,
        metrics: Mapping[str, float],
        groups: Sequence[Group] = (),
        timings: Sequence[EpisodeTiming | None] | None = None,
    ) -> None:
        """Nothing that :meth:`on_step` does not tell."""

    def on_checkpoint(self, step: int, folder: Path, aliases: tuple[str, ...]) -> None:
        """Nothing to be told of."""

    def on_end(self, outcome: Literal["finished", "interrupted", "failed"]) -> None:
        """Training is over."""
        self.state = "draining" if outcome == "interrupted" else outcome
