"""Players without a model, for actors in Ray and for actors in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from art_trainer.episodes import Ending, Episode, Span, TokenHistory
from art_trainer.ray_backend.actor import OnPlayed
from art_trainer.remote.messages import Lease
from art_trainer.starts import GroupTask


def tasks(count: int, size: int = 4, batch: int = 0, first_seed: int = 100) -> list[GroupTask]:
    return [GroupTask(first_seed + n, size, (0, batch, n), batch=batch) for n in range(count)]


def played(lease: Lease, version: int) -> Episode:
    """What any player makes of a lease; its words tell the randomness it was played with."""
    span = Span((1, 2), 0, (-0.5, -0.25), version)
    return Episode(
        env_id="made/Up-v0",
        task_id=f"task-{lease.seed}",
        seed=lease.seed,
        observation=str(lease.rng_seed),
        turns=(),
        histories=(TokenHistory((span,)),),
        ending=Ending.TERMINATED,
    )


@dataclass
class MadeUpPlayer:
    """Plays by making episodes up."""

    seconds: float = 0.0
    """For each."""
    before: Callable[[Lease], None] = lambda lease: None
    version: int = -1
    updates: list[int] = field(default_factory=list)

    def update(self, weights: int) -> None:
        self.version = weights
        self.updates.append(weights)

    def play(self, leases: tuple[Lease, ...], on_played: OnPlayed, stop: threading.Event) -> None:
        for lease in leases:
            self.before(lease)
            if stop.wait(self.seconds):
                raise InterruptedError
            on_played(lease, played(lease, self.version), None)

    def close(self) -> None:
        self.updates.append(-1)
