"""Callbacks of the trainer; all are called from the thread that trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from art_trainer.types import Episode, Group

if TYPE_CHECKING:
    from art_trainer.tracking.health import RunWarning

Outcome = Literal["finished", "interrupted", "failed"]
"""How a run ended: after its last step, by Ctrl-C, or by an error."""


@runtime_checkable
class TrainerCallback(Protocol):
    """Called for each step and episode.

    A callback that also has the methods of :class:`WarningCallback` or :class:`RunCallback` gets those calls
    too.
    """

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """A step is done; ``metrics["step"]`` counts from 1."""

    def on_episode(self, episode: Episode) -> None:
        """A training episode ended."""


@runtime_checkable
class WarningCallback(Protocol):
    """A callback for health warnings."""

    def on_warning(self, warning: RunWarning) -> None:
        """A metric is beyond its threshold."""


@runtime_checkable
class RunCallback(Protocol):
    """A callback for what has been written to the run folder; only the main process calls it."""

    def on_begin(self, step: int) -> None:
        """The run begins, or resumes after ``step`` steps."""

    def on_logged(self, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """A step's metrics and episodes are written.

        Args:
            metrics: The step's line of ``metrics.jsonl``; step 0 is the evaluation before the first update.
            groups: The groups that the step learned from.
        """

    def on_checkpoint(self, step: int, folder: Path, aliases: tuple[str, ...]) -> None:
        """A checkpoint is written; its folder may be deleted after this call.

        Args:
            step: Its step.
            folder: Its folder.
            aliases: ``latest``, and ``best`` or ``final`` if it is.
        """

    def on_end(self, outcome: Outcome) -> None:
        """The run is over."""
