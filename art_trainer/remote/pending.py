"""What a worker still has to tell its server: nothing of it is lost with a connection."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from art_trainer.remote.fields import MAX_LEASES
from art_trainer.remote.messages import LeaseRequest, ReleaseLeases

_SHOWN = 2_000


@dataclass(slots=True)
class _Result:
    text: str
    sent: float | None = None


class Pending:
    """Messages to be sent, and results that have no receipt yet. All of it lives in one event loop.

    Args:
        clock: Seconds, from any beginning.

    Attributes:
        news: Set where there may be something to send.
        arrived: Set where a result has got its receipt.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._results: dict[str, _Result] = {}
        self._releases: deque[str] = deque()
        self._wanted = 0
        self._asked = False
        self.news = asyncio.Event()
        self.arrived = asyncio.Event()

    @property
    def results(self) -> list[str]:
        """The leases whose results have no receipt yet."""
        return list(self._results)

    @property
    def told(self) -> bool:
        """Whether everything was sent, and every result has its receipt."""
        return not self._results and not self._releases

    def ask(self, count: int) -> None:
        """Ask for leases, until :meth:`granted`."""
        self._wanted, self._asked = count, False
        self.news.set()

    def granted(self) -> None:
        """The server has answered: leases are there, or none are wanted any more."""
        self._wanted = 0

    def result(self, lease: str, text: str) -> None:
        """Send a result, until :meth:`receipt`."""
        self._results[lease] = _Result(text)
        self.news.set()

    def receipt(self, lease: str) -> None:
        """A result has arrived, whatever became of it."""
        self._results.pop(lease, None)
        self.arrived.set()

    def release(self, leases: Sequence[str], reason: str, *, failed: bool) -> None:
        """Give leases back."""
        for start in range(0, len(leases), MAX_LEASES):
            some = list(leases[start : start + MAX_LEASES])
            message = ReleaseLeases(leases=some, reason=reason[:_SHOWN], failed=failed)
            self._releases.append(message.model_dump_json())
        self.news.set()

    def largest(self) -> str | None:
        """The lease whose result is the largest."""
        return max(self._results, key=lambda lease: len(self._results[lease].text), default=None)

    def reconnected(self) -> None:
        """On a new connection everything is to be said that has no answer."""
        self._asked = False
        for result in self._results.values():
            result.sent = None
        self.news.set()

    def repeat(self, older: float) -> None:
        """Send results again that were sent so many seconds ago and have no receipt."""
        now = self._clock()
        for result in self._results.values():
            if result.sent is not None and now - result.sent >= older:
                result.sent = None
                self.news.set()

    def ask_again(self) -> None:
        """The server did not understand something: it may have been the request."""
        self._asked = False
        self.news.set()

    def take(self) -> str | None:
        """What is to be sent next, which then counts as sent; ``None`` where there is nothing."""
        if self._releases:
            return self._releases.popleft()
        for result in self._results.values():
            if result.sent is None:
                result.sent = self._clock()
                return result.text
        if self._wanted and not self._asked:
            self._asked = True
            return LeaseRequest(count=self._wanted).model_dump_json()
        self.news.clear()
        return None
