"""The shared sandbox of all coding environments of a process."""

from __future__ import annotations

import atexit
import os
import threading

from art_gym.envs.coding.drivers import drivers
from art_gym.envs.coding.sandbox import Limits, Sandbox

LIMITS = Limits(cpu_seconds=5, wall_seconds=60)
"""Processor time decides, so that a busy machine changes no verdict; the clock ends what only waits."""

_lock = threading.Lock()
_shared: tuple[int, Sandbox] | None = None


def shared_sandbox() -> Sandbox:
    """This process's sandbox, started at the first call; a forked process gets one of its own.

    Raises:
        SandboxUnavailableError: If nothing on this machine can isolate a program.
    """
    global _shared
    with _lock:
        if _shared is None or _shared[0] != os.getpid():
            # What a parent process started is the parent's to close.
            _shared = (os.getpid(), Sandbox(drivers=drivers(), limits=LIMITS))
        return _shared[1]


def close_shared_sandbox() -> None:
    """Stop this process's sandbox; the next `shared_sandbox` starts another."""
    global _shared
    with _lock:
        if _shared is not None and _shared[0] == os.getpid():
            _shared[1].close()
        _shared = None


atexit.register(close_shared_sandbox)
