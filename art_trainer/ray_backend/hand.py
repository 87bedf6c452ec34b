"""How the driver sees one actor, and how long it waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from art_trainer.errors import ConfigError, EngineError
from art_trainer.ray_backend.work import Report, Work

Loss = Literal["died", "silent", "stuck", "broken", "unplaced"]
"""How an actor was lost. ``died``: its process or node is gone. ``silent``: it answered no call in time.
``stuck``: it answers, but no episode ends. ``broken``: it cannot make its model or environment. ``unplaced``:
the cluster found no room for it."""


class ClusterError(EngineError):
    """A Ray cluster that cannot be used, or in which nothing can be played; says what would be right."""


class ActorLost(Exception):
    """An actor that is given up.

    Attributes:
        loss: In what way.
    """

    def __init__(self, loss: Loss, words: str) -> None:
        super().__init__(words)
        self.loss: Loss = loss


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the driver waits for what, all in seconds on its own clock.

    Raises:
        ConfigError: For a number that is not above 0, or a silence shorter than a lease.
    """

    pulse: float = 1.0
    """How often an actor is asked how it is getting on."""
    start: float = 120.0
    """For the cluster to find a place for an actor and to start its process."""
    lease: float = 30.0
    """For a sign of life, before an actor's episodes are given to others."""
    silence: float = 60.0
    """For a sign of life, before an actor is killed."""
    progress: float = 1800.0
    """For an episode to end, or the model to be loaded, before an actor that does answer is killed."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"patience: {name} is {getattr(self, name)}: set a finite number above 0")
        if self.silence < self.lease:
            raise ConfigError(
                f"patience: silence is {self.silence}, less than lease, {self.lease}: episodes are given to "
                "others first, and only then is their actor killed"
            )


class Hand(Protocol):
    """One actor."""

    async def exchange(self, work: Work | None, wait: float) -> Report:
        """Call :meth:`art_trainer.ray_backend.actor.RolloutActor.exchange`.

        Raises:
            ActorLost: Where the actor is gone.
        """

    async def stop(self, seconds: float) -> None:
        """Ask it to close its environments; return when it has, or when so many seconds are over."""

    def kill(self) -> None:
        """End its process, at once and whatever it does."""
