"""Worker processes of one command: those that die are restarted, and all end together."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from art_trainer.errors import ConfigError

PARENT_VARIABLE = "ART_WORKER_PARENT"
"""Tells a worker the process that restarts it."""
_REFUSED = 2
"""Exit code of a worker that would be refused again."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_SECONDS = 15.0
_SETTLED_SECONDS = 60.0
_LONGEST_PAUSE = 60.0
_POLL_SECONDS = 0.1
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class WorkerProcess:
    """One of several workers across its restarts, each in a process group of its own."""

    number: int
    """Which one, from 0."""
    command: Sequence[str]
    """Starts it; ``--id NAME`` is added if there is a name."""
    environment: Mapping[str, str]
    """Its environment variables."""
    name: str | None
    """Prefix of its names; ``None``: it chooses."""
    first_pause: float
    """Seconds before the first restart; doubled with each failure in a row, up to a minute."""
    code: int | None = None
    """The exit code of a worker that is not restarted; ``None`` until then."""
    _process: subprocess.Popen[bytes] | None = None
    _starts: int = 0
    _failures: int = 0
    _began: float = 0.0
    _next_start: float = 0.0

    def check(self, *, stopping: int | None) -> None:
        """Start a worker that is due, or handle the end of one that has ended.

        Args:
            stopping: The signal that asked for the end; nothing is started any more.

        Raises:
            ConfigError: If the program cannot be started.
        """
        if self.code is not None:
            return
        if self._process is not None:
            if (code := self._process.poll()) is not None:
                self._end(code, stopping=stopping is not None)
        elif stopping is not None:
            self.code = 128 + stopping
        elif time.monotonic() >= self._next_start:
            self._start()

    def send(self, number: int) -> None:
        """Send a signal to the worker's process group, as a terminal does at Ctrl-C."""
        if self._process is not None:
            with suppress(
                ProcessLookupError, PermissionError
            ):  # macOS says the latter of a group of the dead
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the worker and what it started; return when it has ended."""
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def next_command(self) -> list[str]:
        """The command of the next start."""
        self._starts += 1
        # A name belongs to the process that has its secret: a restarted worker needs a new one.
        name = [] if self.name is None else ["--id", f"{self.name}-{self.number}.{self._starts}"]
        return [*self.command, *name]

    def pause_after(self, code: int) -> float | None:
        """Seconds until a worker that ended is restarted; ``None`` if it is done, or was refused."""
        if code in (0, _REFUSED):
            return None
        settled = time.monotonic() - self._began > _SETTLED_SECONDS
        self._failures = 1 if settled and self._began else self._failures + 1
        pause = min(_LONGEST_PAUSE, self.first_pause * 2.0 ** min(self._failures - 1, 10))
        how = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        _log.warning("worker %d %s; restarting in %g s", self.number, how, pause)
        return pause

    def _start(self) -> None:
        self._began = time.monotonic()
        command = self.next_command()
        try:
            self._process = subprocess.Popen(command, env=self.environment, start_new_session=True)
        except OSError as error:
            raise ConfigError(f"{command[0]} cannot be started: {error.strerror}") from error

    def _end(self, code: int, *, stopping: bool) -> None:
        self.kill()
        self._process = None
        pause = None if stopping else self.pause_after(code)
        if pause is None:
            self.code = code if code >= 0 else 128 - code
        else:
            self._next_start = time.monotonic() + pause


def run_workers(
    command: Sequence[str],
    environment: Mapping[str, str],
    count: int,
    name: str | None,
    *,
    first_pause: float = 1.0,
) -> int:
    """Keep worker processes running until the server or a signal ends them; return the largest exit code.

    A signal is passed on to them; 15 seconds after it, or at a second one, those that still run are killed.

    Args:
        command: Starts one.
        environment: Of each process; the token is in it.
        count: How many.
        name: Prefix of the workers' names; ``None``: they choose.
        first_pause: Seconds before a worker that died is restarted; doubled with each failure in a row.

    Raises:
        ConfigError: If the program cannot be started.
    """
    environment = {**environment, PARENT_VARIABLE: str(os.getpid())}
    workers = [WorkerProcess(number, command, environment, name, first_pause) for number in range(count)]
    passed_on: float | None = None
    with _collected_signals() as signals:
        try:
            while any(worker.code is None for worker in workers):
                for worker in workers:
                    worker.check(stopping=signals[0] if signals else None)
                if signals and passed_on is None:
                    passed_on = time.monotonic()
                    _log.info("waiting for the end; a second signal kills")
                    for worker in workers:
                        worker.send(signal.SIGTERM if signals[0] == signal.SIGHUP else signals[0])
                if len(signals) > 1 or (passed_on and time.monotonic() > passed_on + _GRACE_SECONDS):
                    for worker in workers:
                        worker.kill()
                time.sleep(_POLL_SECONDS)
        finally:
            for worker in workers:
                worker.kill()
    return max(worker.code or 0 for worker in workers)


@contextmanager
def _collected_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP, except those that were ignored at the start."""
    found: list[int] = []

    def collect(number: int, frame: FrameType | None) -> None:
        found.append(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, collect)
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
