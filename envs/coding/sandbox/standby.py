"""A child that is locked down before it is known what it is to run.

While one run goes on, the zygote forks the child for the next, which then only waits for its payload. That
costs as much as without; but where a processor is free, it is done by the time that it is asked for.

It is a child like any other: forked from a zygote that has seen no program, behind all the walls, with pipes
of its own. It is started for a run just like the last two (the same driver, limits and seed), and killed
where another comes.
"""

from __future__ import annotations

import contextlib
import threading

from art_gym.envs.coding.sandbox.backends import Backend, start
from art_gym.envs.coding.sandbox.process import Process
from art_gym.envs.coding.sandbox.request import Request

_Kind = tuple[Request, bool]
"""What must be the same: the request, and whether there is something on stdin."""


class Standby:
    """At most one child in waiting. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: _Kind | None = None
        self._repeated = False
        self._waiting: Process | None = None

    def take(self, backend: Backend, request: Request, *, stdin: bool) -> Process:
        """A process for a request: the one in waiting, if it was started for such a one, or else a new one.

        Raises:
            OSError: It could not be started.
        """
        kind = (request, stdin)
        with self._lock:
            self._repeated, self._last = kind == self._last, kind
            process, self._waiting = self._waiting, None
        if process is not None and (process.gone or not self._repeated):
            process.close()
            process = None
        return process or start(backend, request, stdin=stdin)

    def refill(self, backend: Backend) -> None:
        """Start the next one, if the last two requests were alike."""
        with self._lock:
            if not backend.ahead or not self._repeated or self._waiting is not None or self._last is None:
                return
            request, stdin = self._last
            # Where that fails, the next run will find out why.
            with contextlib.suppress(OSError):
                self._waiting = start(backend, request, stdin=stdin)

    def dismiss(self) -> None:
        """Kill the one in waiting."""
        with self._lock:
            process, self._waiting, self._last = self._waiting, None, None
        if process is not None:
            process.close()
