"""A backend for training processes that have none of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from art_trainer.episodes import Episode, Group
from art_trainer.starts import GroupTask
from art_trainer.timings import Timings


class PlayedElsewhere:
    """The backend of a training process that is not the main one, whose backend plays everything."""

    per_process = False

    def publish(self, version: int) -> None:
        """Do nothing: the main process does."""

    def prefetch(self, tasks: Sequence[GroupTask]) -> None:
        """Do nothing: the main process does."""

    def collect(
        self,
        tasks: Sequence[GroupTask],
        *,
        on_episode: Callable[[Episode], None],
        on_group: Callable[[int, Group], None] | None = None,
        timings: Timings | None = None,
    ) -> list[Group]:
        """Refuse: only the main process may ask.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("groups are played through the main process")

    def saved(self, batch: int) -> None:
        """Do nothing: the main process does."""

    def close(self) -> None:
        """Do nothing: nothing is held."""
