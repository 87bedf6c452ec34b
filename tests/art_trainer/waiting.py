"""Waiting for what other threads and processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something to become true; a deadline for tests that would hang, not a limit of speed."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)
