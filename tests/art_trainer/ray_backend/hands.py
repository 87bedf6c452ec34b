"""Actors in this process, with faults on demand: what a crew sees of Ray, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from art_trainer.ray_backend.actor import Player, RolloutActor
from art_trainer.ray_backend.crew import Crew
from art_trainer.ray_backend.hand import ActorLost, Hand, Patience
from art_trainer.ray_backend.work import Report, Work
from art_trainer.remote.collecting import LedgerGroups
from art_trainer.remote.journal import Journal
from art_trainer.remote.ledger import Ledger
from tests.art_trainer.ray_backend.players import MadeUpPlayer

CALM = Patience(pulse=0.02, start=60, lease=60, silence=60, progress=60)


class LocalHand:
    """An actor in a thread of this process; implements ``Hand``."""

    def __init__(self, make_player: Callable[[], Player]) -> None:
        self._actor = RolloutActor(make_player)
        self.works: list[Work] = []
        self.stopped = self.killed = False

    async def exchange(self, work: Work | None, wait: float) -> Report:
        if work is not None:
            self.works.append(work)
        return await asyncio.to_thread(self._actor.exchange, work, wait)

    async def stop(self, seconds: float) -> None:
        self.stopped = True
        await asyncio.to_thread(self._actor.stop, seconds)

    def kill(self) -> None:
        self.killed = True


class DyingHand(LocalHand):
    """Is gone when it has work and is asked again, with all it has played."""

    async def exchange(self, work: Work | None, wait: float) -> Report:
        if self.works:
            raise ActorLost("died", "its node was hit by lightning")
        return await super().exchange(work, 0.0)


class SleepingHand(LocalHand):
    """Answers nothing from its first work on until it is woken, and then all at once."""

    def __init__(self, make_player: Callable[[], Player]) -> None:
        super().__init__(make_player)
        self.awake = threading.Event()

    async def exchange(self, work: Work | None, wait: float) -> Report:
        if work is not None:
            self.works.append(work)
            report = await asyncio.to_thread(self._actor.exchange, work, wait)
            while not self.awake.is_set():
                await asyncio.sleep(0.01)
            return report
        return await super().exchange(work, wait)


class AbsentHand(LocalHand):
    """Never starts: the cluster has no room."""

    async def exchange(self, work: Work | None, wait: float) -> Report:
        await asyncio.sleep(60)
        raise AssertionError


class Company:
    """A ledger and a crew, whose actors are hired one after the other from a list."""

    def __init__(
        self,
        folder: Path,
        hands: Callable[[int], Hand] = lambda number: LocalHand(MadeUpPlayer),
        *,
        size: int = 2,
        capacity: int = 4,
        max_staleness: int = 0,
        patience: Patience = CALM,
        room: Callable[[], str] = lambda: "There is no room at all",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hired: list[Hand] = []
        self.said: list[str] = []
        self.journal = Journal(folder / "journal")
        self.ledger = Ledger(
            self.journal,
            max_staleness=max_staleness,
            lease_seconds=patience.lease,
            on_work=lambda: self.crew.wake(),
            clock=clock,
        )

        def hire() -> Hand:
            self.hired.append(hands(len(self.hired)))
            return self.hired[-1]

        self.crew = Crew(
            hire,
            self.ledger,
            size=size,
            capacity=capacity,
            attempts=3,
            patience=patience,
            say=self.said.append,
            room=room,
        )
        self.groups = LedgerGroups(self.ledger, max_staleness, self.crew.check)

    def publish(self, version: int) -> None:
        """Weights are their version, for made-up players."""
        self.crew.publish(version, version)
        self.groups.publish(version)

    def close(self) -> None:
        self.ledger.close()
        self.crew.close()
        self.journal.close()


@contextlib.contextmanager
def company(folder: Path, *args: object, **options: object) -> Iterator[Company]:
    made = Company(folder, *args, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()
