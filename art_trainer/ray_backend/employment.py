"""One actor's life as the driver sees it: it arrives, plays what is leased to it, and is lost or let go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from art_trainer.ray_backend.hand import ActorLost, Hand, Loss, Patience
from art_trainer.ray_backend.work import Report, Work
from art_trainer.remote.ledger import Ledger
from art_trainer.remote.messages import Lease


class Orders(Protocol):
    """What all actors of a crew are told.

    Attributes:
        newest: The version of the weights to play with, and they themselves, as an actor's player takes them;
            one attribute, since another thread changes it.
        capacity: Most episodes an actor is given at one time.
    """

    newest: tuple[int, Any]
    capacity: int

    async def wait_for_work(self, seconds: float) -> None:
        """Wait until there may be work, or the seconds are over."""


class Employment:
    """Keeps one actor at work.

    Args:
        client: What the ledger calls the actor; no other is ever called so.
        hand: The actor.
        ledger: Where leases come from and results go.
        orders: What to play with, and how much.
        patience: How long to wait for what.
        say: Told, in words, what went wrong without the actor being lost.
        on_result: Told of each accepted result.
        on_fruitless: Told, in words, of work of which nothing came; may raise where it is too much.
    """

    def __init__(
        self,
        client: str,
        hand: Hand,
        ledger: Ledger,
        orders: Orders,
        patience: Patience,
        *,
        say: Callable[[str], None],
        on_result: Callable[[], None],
        on_fruitless: Callable[[str], None],
    ) -> None:
        self._client = client
        self._hand = hand
        self._ledger = ledger
        self._orders = orders
        self._patience = patience
        self._say = say
        self._on_result = on_result
        self._on_fruitless = on_fruitless
        self._capacity = orders.capacity
        self._version: int | None = None
        self._held: set[str] = set()
        self._moved = time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether it plays nothing."""
        return not self._held

    async def arrive(self) -> None:
        """Wait until the actor is there and can play.

        Raises:
            ActorLost: Where that takes too long, or it cannot.
        """
        seconds = self._patience.start
        report = await self._ask(None, 0.0, "unplaced", seconds, f"it did not start within {seconds:g} s")
        self._moved = time.monotonic()
        while not report.ready:
            if report.broken is not None:
                raise ActorLost("broken", report.broken)
            self._check_progress("its model is not loaded")
            report = await self._hear(None, self._patience.pulse)

    async def work(self) -> None:
        """Have the actor play, for ever.

        Raises:
            ActorLost: When it is gone, or does not get on.
        """
        while True:
            work = None if self._held else self._next_work()
            if work is None and not self._held:
                await self._orders.wait_for_work(self._patience.pulse)
                work = self._next_work()
            await self._take(await self._hear(work, self._patience.pulse if self._held else 0.0))

    def give_up(self, reason: str, *, failed: bool) -> int:
        """Give all leases back; return how many there were."""
        self._ledger.release(self._client, sorted(self._held), reason, failed=failed)
        return len(self._held)

    def _next_work(self) -> Work | None:
        leases = self._ledger.lease(self._client, self._capacity)
        if not leases:
            return None
        self._held = {lease.id for lease in leases}
        self._moved = time.monotonic()
        version, weights = self._orders.newest
        known = version == self._version
        self._version = version
        wanted = (Lease.of(own.id, own.token, own.task, own.member, own.seconds) for own in leases)
        return Work(version, None if known else weights, tuple(wanted))

    async def _take(self, report: Report) -> None:
        """Hand results to the ledger, and keep the leases of what is still being played."""
        for played in report.played:
            lease = played.lease
            self._held.discard(lease.lease)
            # It waits for a disk.
            outcome, _ = await asyncio.to_thread(
                self._ledger.result, self._client, lease.lease, lease.token, played.episode, played.timing
            )
            self._moved = time.monotonic()
            if outcome == "accepted":
                self._on_result()
        if report.failed:
            self._fail(report)
        if self._held:
            self._ledger.renew(self._client, sorted(self._held))
            self._check_progress(f"none of {len(self._held)} episodes ended")

    def _fail(self, report: Report) -> None:
        self._held.difference_update(report.failed)
        self._version = None  # the weights may be what did not go well
        words = f"{self._client}: {len(report.failed)} episodes broke off: {report.error}"
        too_many = report.out_of_memory and self._capacity > 1
        self._ledger.release(self._client, report.failed, report.error, failed=not too_many)
        if too_many:
            self._capacity //= 2
            words += f"; from now on it plays at most {self._capacity} at a time"
        self._say(words)
        if not too_many and not report.played:
            self._on_fruitless(words)

    def _check_progress(self, what: str) -> None:
        seconds = self._patience.progress
        if time.monotonic() - self._moved > seconds:
            raise ActorLost("stuck", f"{what} within {seconds:g} s")

    async def _hear(self, work: Work | None, wait: float) -> Report:
        seconds = self._patience.silence
        return await self._ask(work, wait, "silent", wait + seconds, f"it was silent for {seconds:g} s")

    async def _ask(self, work: Work | None, wait: float, loss: Loss, limit: float, words: str) -> Report:
        try:
            async with asyncio.timeout(limit):
                return await self._hand.exchange(work, wait)
        except TimeoutError:
            raise ActorLost(loss, words) from None
