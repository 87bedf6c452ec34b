"""Calls that take long are named in the log: an environment that waits for ever looks like a run at work."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SLOW = 60.0
"""Seconds after which a call is named."""
_log = logging.getLogger(__name__)


class SlowCalls:
    """Watches the calls that are under way from a thread of its own, and names each slow one once."""

    def __init__(self) -> None:
        self._running: dict[object, tuple[str, float]] = {}
        self._over = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch until the end of the block."""
        threading.Thread(target=self._watch, name="slow calls", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()

    @contextmanager
    def during(self, call: str) -> Iterator[None]:
        """Mark the block as a call; any thread may."""
        key = object()
        self._running[key] = call, time.monotonic()
        try:
            yield
        finally:
            del self._running[key]

    def _watch(self) -> None:
        named: set[object] = set()
        while not self._over.wait(SLOW / 6):
            for key, (call, began) in list(self._running.items()):
                seconds = time.monotonic() - began
                if seconds > SLOW and key not in named:
                    named.add(key)
                    _log.warning("%s has not returned for %.0f s; the run waits for it", call, seconds)
