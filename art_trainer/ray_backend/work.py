"""What the driver and its actors say to each other: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from art_trainer.episodes import Episode
from art_trainer.remote.messages import Lease
from art_trainer.timings import EpisodeTiming


@dataclass(frozen=True, slots=True)
class Work:
    """Episodes to play one beside the other, with the weights of one version."""

    version: int
    weights: Any
    """For :meth:`~art_trainer.ray_backend.actor.Player.update`; ``None`` where the actor has this version."""
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Played:
    """An episode that was leased, played."""

    lease: Lease
    episode: Episode
    timing: EpisodeTiming | None


@dataclass(slots=True)
class Report:
    """What happened in an actor since its last report."""

    ready: bool = False
    """Whether it can play by now; told once."""
    broken: str | None = None
    """Why it will never play; told once."""
    played: list[Played] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Leases of episodes that will not come, since playing them broke off."""
    error: str = ""
    """Why it did."""
    out_of_memory: bool = False
    """Whether it was for want of memory, so that fewer episodes at a time may do."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.ready or self.broken or self.played or self.failed)
