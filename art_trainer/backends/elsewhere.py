"""A backend for training processes that have none of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from art_trainer.backends.backend import Told
from art_trainer.episodes import Group
from art_trainer.starts import GroupTask


class PlayedElsewhere:
    """The backend of a training process that is not the main one, whose backend plays everything."""

    per_process = False

    def publish(self, version: int) -> None:
        """Do nothing: the main process does."""

    def prefetch(self, tasks: Sequence[GroupTask]) -> None:
        """Do nothing: the main process does."""

    def collect(self, tasks: Sequence[GroupTask], **told: Unpack[Told]) -> list[Group]:
        """Refuse: only the main process may ask.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("groups are played through the main process")

    def saved(self, batch: int) -> None:
        """Do nothing: the main process does."""

    def close(self) -> None:
        """Do nothing: nothing is held."""
