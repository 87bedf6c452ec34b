"""How often a client may come: a bucket of tokens each, refilled at a steady rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

_MOST_CLIENTS = 10_000


class RateLimit:
    """A token bucket for each of many clients.

    Args:
        per_second: How fast a bucket fills.
        burst: How much it holds, and holds at first.
        clock: Seconds, from any beginning.
    """

    def __init__(
        self, per_second: float, burst: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: dict[Hashable, tuple[float, float]] = {}

    def take(self, client: Hashable) -> float:
        """Take a token out of a client's bucket.

        Returns:
            0, or where there is none the seconds until there is one.
        """
        now = self._clock()
        held, since = self._buckets.pop(client, (self._burst, now))
        held = min(self._burst, held + (now - since) * self._per_second)
        wait = 0.0 if held >= 1 else (1 - held) / self._per_second
        # Taken out and put in again, the client who came last lies last.
        self._buckets[client] = (held if wait else held - 1, now)
        if len(self._buckets) > _MOST_CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        return wait
