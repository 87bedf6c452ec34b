"""What a trainer asks of whoever plays its groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NotRequired, Protocol, TypedDict, runtime_checkable

from art_trainer.episodes import Episode, Group
from art_trainer.evaluation import Evaluation
from art_trainer.starts import GroupTask
from art_trainer.timings import Timings


class Told(TypedDict):
    """Who is told while groups are played: keywords of :meth:`RolloutBackend.collect`, to be passed on."""

    on_episode: Callable[[Episode], None]
    on_group: NotRequired[Callable[[int, Group], None] | None]
    timings: NotRequired[Timings | None]


class RolloutBackend(Protocol):
    """Tasks in, finished groups out, each exactly once.

    A trainer calls it from one thread, in this order, again and again: :meth:`publish`, :meth:`prefetch`,
    :meth:`collect`; and :meth:`saved` when it has written a checkpoint.

    Attributes:
        per_process: Whether each of several training processes has a backend of its own that plays its
            share; otherwise the main process has the only one.
    """

    per_process: bool

    def publish(self, version: int) -> None:
        """Play what begins from now on with the policy's present weights.

        Args:
            version: Theirs; nothing happens where it is the one published last.
        """

    def prefetch(self, tasks: Sequence[GroupTask]) -> None:
        """Tasks that will be asked for after the next update, and may be played before it already."""

    def collect(
        self,
        tasks: Sequence[GroupTask],
        *,
        on_episode: Callable[[Episode], None],
        on_group: Callable[[int, Group], None] | None = None,
        timings: Timings | None = None,
    ) -> list[Group]:
        """Have groups played, and wait until all of them are.

        Args:
            tasks: The groups, prefetched or not.
            on_episode: Called with each episode as it ends.
            on_group: Called with each group when it is whole, and with its place among the tasks.
            timings: Where given, is told how long each episode's turns took.

        Returns:
            The groups, in the order of their tasks. A member that could not be played is an episode that says
            so in its ending, never missing.
        """

    def saved(self, batch: int) -> None:
        """Batches before this one will never be asked for again: a checkpoint holds what they taught."""

    def close(self) -> None:
        """Release what is held; workers are told to stop."""


class PlaysEvaluations(Protocol):
    """Who plays a trainer's evaluations."""

    def evaluate(self, *, episodes: int, seed: int) -> Evaluation:
        """Have held-out tasks played with the policy's present weights and sampling.

        Args:
            episodes: How many; where there are fewer tasks, some are played again.
            seed: Equal seeds get equal tasks and randomness.

        Raises:
            ConfigError: Where there is nothing to evaluate on.
        """


@runtime_checkable
class EnvlessBackend(RolloutBackend, PlaysEvaluations, Protocol):
    """A backend that needs no environment: its trainer has none, so it plays the evaluations too."""
