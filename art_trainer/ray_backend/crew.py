"""All actors of a run: each place in the crew is filled again when its actor is lost.

Everything happens in one event loop in a thread of its own, beside the learner. What ends the crew is told
to whoever asks next: nothing waits for actors that will not come.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from art_trainer.engines.background import BackgroundLoop
from art_trainer.ray_backend.employment import Employment
from art_trainer.ray_backend.hand import ActorLost, ClusterError, Hand, Patience
from art_trainer.remote.ledger import Ledger

_EXPIRY_SECONDS = 1.0
_LONGEST_PAUSE = 30.0
_STOP_SECONDS = 2.0


class Crew:
    """Keeps a number of actors at work on what a ledger leases.

    Args:
        hire: Has an actor made; raises :class:`~art_trainer.ray_backend.hand.ClusterError` where it cannot.
        ledger: Where leases come from and results go.
        size: How many actors.
        capacity: Most episodes an actor is given at one time.
        attempts: How often an episode may be lost before the ledger gives it up. When so many times the
            crew's size work came to nothing, without one result in between, the crew gives up too.
        patience: How long to wait for what.
        say: Told, in words, what went wrong and what is done about it; called from the crew's thread.
        room: Says what the cluster has, where an actor finds no place.

    Attributes:
        newest: The version of the weights to play with, and they themselves.
        capacity: As above.
        losses: How many actors were lost, by how.
    """

    def __init__(
        self,
        hire: Callable[[], Hand],
        ledger: Ledger,
        *,
        size: int,
        capacity: int,
        attempts: int,
        patience: Patience,
        say: Callable[[str], None],
        room: Callable[[], str],
    ) -> None:
        self.newest: tuple[int, Any] = (0, None)
        self.capacity = capacity
        self.losses: Counter[str] = Counter()
        self._hire = hire
        self._ledger = ledger
        self._size = size
        self._most_fruitless = attempts * size
        self._patience = patience
        self._say = say
        self._room = room
        self._present: set[int] = set()
        self._told_unplaced: set[int] = set()
        self._fruitless = 0
        self._last_present = time.monotonic()
        self._work_came = asyncio.Event()
        self._loop: BackgroundLoop | None = None
        self._under_way: list[Future[None]] = []
        self._closing = False

    @property
    def present(self) -> int:
        """How many actors are there and can play."""
        return len(self._present)

    def publish(self, version: int, weights: Any) -> None:
        """Have what begins from now on played with other weights; the first call makes the actors."""
        self.newest = version, weights
        if self._loop is None:
            self._loop = BackgroundLoop("ray crew")
            self._last_present = time.monotonic()
            self._under_way = [self._loop.start(self._keep(place)) for place in range(self._size)]
            self._under_way.append(self._loop.start(self._expire()))

    def wake(self) -> None:
        """There may be work; called from any thread."""
        if self._loop is not None and not self._closing:
            self._loop.start(self._wake())

    def check(self) -> None:
        """Go on where the crew works.

        Raises:
            ClusterError: Where it has given up.
        """
        for future in self._under_way:
            if future.done():
                future.result()

    async def wait_for_work(self, seconds: float) -> None:
        """Wait until there may be work, or the seconds are over."""
        came = self._work_came
        try:
            async with asyncio.timeout(seconds):
                await came.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Let all actors go."""
        self._closing = True
        if self._loop is not None:
            self._loop.close()

    async def _wake(self) -> None:
        came, self._work_came = self._work_came, asyncio.Event()
        came.set()

    async def _expire(self) -> None:
        while True:
            self._ledger.expire()
            await asyncio.sleep(_EXPIRY_SECONDS)

    async def _keep(self, place: int) -> None:
        """Fill one place of the crew, again and again.

        Raises:
            ClusterError: Where there is no sense in going on.
        """
        for number in itertools.count(1):
            client = f"actor-{place}.{number}"
            try:
                await self._employ(place, client)
            except ActorLost as lost:
                self._mourn(place, client, lost)
            await asyncio.sleep(min(_LONGEST_PAUSE, 0.1 * 2**self._fruitless))

    async def _employ(self, place: int, client: str) -> None:
        """Have one actor work until it is lost."""
        hand = self._hire()
        employment = Employment(
            client,
            hand,
            self._ledger,
            self,
            self._patience,
            say=self._say,
            on_result=self._bear_fruit,
            on_fruitless=self._bear_none,
        )
        try:
            await employment.arrive()
            self._present.add(place)
            self._told_unplaced.discard(place)
            await employment.work()
        except ActorLost as lost:
            if count := employment.give_up(f"it was lost ({lost.loss}): {lost}", failed=True):
                raise ActorLost(lost.loss, f"{lost}; its {count} episodes are played again") from lost
            raise
        except asyncio.CancelledError:
            seconds = _STOP_SECONDS if employment.idle else 0.0
            employment.give_up("the run ends", failed=False)
            await hand.stop(seconds)
            raise
        finally:
            if place in self._present:
                self._present.remove(place)
                self._last_present = time.monotonic()
            hand.kill()

    def _bear_fruit(self) -> None:
        self._fruitless = 0

    def _bear_none(self, words: str) -> None:
        """Count what came to nothing.

        Raises:
            ClusterError: Where too much did, one after the other.
        """
        self._fruitless += 1
        if self._fruitless > self._most_fruitless:
            raise ClusterError(
                f"{self._fruitless} times, one after the other, actors were lost or their work broke off "
                f"without one result; the last time: {words}"
            )

    def _mourn(self, place: int, client: str, lost: ActorLost) -> None:
        """Say that an actor is lost.

        Raises:
            ClusterError: Where no other can take its place.
        """
        self.losses[lost.loss] += 1
        if lost.loss != "unplaced":
            words = f"{client} is lost ({lost.loss}): {lost}"
            self._say(words)
            self._bear_none(words)
            return
        words = f"{client} found no place in the cluster: {lost}. {self._room()}"
        alone = time.monotonic() - self._last_present >= self._patience.start
        if not self._present and alone:
            raise ClusterError(words)
        if place not in self._told_unplaced:
            self._told_unplaced.add(place)
            self._say(f"{words}. It is tried again; meanwhile {len(self._present)} others play")
