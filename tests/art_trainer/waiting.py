"""Waiting for what other threads and processes bring about."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def until(true: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait for something to become true; a deadline for tests that would hang, not a limit of speed."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


@contextmanager
def interrupted(when: Callable[[], bool], number: int = signal.SIGINT) -> Iterator[None]:
    """Send this process a signal as soon as something is true; again if the block lasts for long after it.

    Python drops a ``KeyboardInterrupt`` raised while a weak reference's callback runs: then a person, too,
    would press Ctrl-C again.
    """
    ended = threading.Event()

    def send() -> None:
        until(when)
        while not ended.is_set():
            os.kill(os.getpid(), number)
            ended.wait(20)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()
