"""Who listens to a training run, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from art_trainer.episodes import Episode, Group
from art_trainer.timings import EpisodeTiming


class TrainerCallback(Protocol):
    """Who is told how a run goes; calls come from the thread that trains.

    One that has ``on_warning`` too is told of warnings, see :class:`~art_trainer.guards.HearsWarnings`; one
    that is a :class:`HearsRun`, of beginning, log, checkpoints and end.
    """

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """A step is done; ``metrics["step"]`` counts from 1."""

    def on_episode(self, episode: Episode) -> None:
        """A training episode ended."""


@runtime_checkable
class HearsRun(Protocol):
    """A callback that is also told what is in the run's folder by then, by the main process."""

    def on_begin(self, step: int) -> None:
        """The run begins, or goes on after ``step`` steps."""

    def on_logged(
        self,
        metrics: Mapping[str, float],
        groups: Sequence[Group] = (),
        timings: Sequence[EpisodeTiming | None] | None = None,
    ) -> None:
        """A step's metrics are written; the groups it learned from, and when their episodes were played."""

    def on_checkpoint(self, step: int, folder: Path, aliases: tuple[str, ...]) -> None:
        """A checkpoint is written."""

    def on_end(self, outcome: Literal["finished", "interrupted", "failed"]) -> None:
        """The run is over, whatever ended it."""
