"""Several workers as processes: one that dies is started again, less and less eagerly."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

PARENT_VARIABLE = "ART_WORKER_SUPERVISOR"
"""Names, to a worker, the process that watches over it."""
REFUSED = 2
"""Exit code of a worker that would be refused again."""
_POLL = 0.2
_GRACE_SECONDS = 15.0
_SETTLED_SECONDS = 60.0
_LONGEST_PAUSE = 60.0


@dataclass(slots=True)
class _Place:
    """A worker's place, whoever is in it."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    deaths: int = 0
    starts: int = 0
    next_start: float = 0.0
    code: int | None = None
    """How it ended for good."""


class Supervisor:
    """Keeps a number of workers alive.

    Args:
        command: Starts one; ``--id NAME`` is added where there is a name.
        environment: Of each process; the token is in it.
        count: How many.
        name: What the workers' names begin with; ``None`` leaves it to them.
        say: Takes a line for whoever watches.
        first_pause: Seconds before a worker that died is started again; doubled with each death in a row.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        count: int,
        name: str | None,
        say: Callable[[str], None],
        *,
        first_pause: float = 1.0,
    ) -> None:
        self._command = list(command)
        self._environment = {**environment, PARENT_VARIABLE: str(os.getpid())}
        self._places = [_Place(number) for number in range(count)]
        self._name = name
        self._say = say
        self._first_pause = first_pause
        self._ending = False

    def run(self) -> int:
        """Watch over the workers until all have ended for good.

        SIGTERM and Ctrl-C end them all; they give their leases back.

        Returns:
            0 where the server or a signal ended them, else the worst exit code.
        """
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            signal.signal(number, self._on_signal)
        try:
            while any(place.code is None for place in self._places) and not self._ending:
                for place in self._places:
                    self._look_after(place)
                time.sleep(_POLL)
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)
        return max(place.code or 0 for place in self._places)

    def _look_after(self, place: _Place) -> None:
        if place.code is not None:
            return
        if place.process is None:
            if time.monotonic() >= place.next_start:
                self._start(place)
            return
        code = place.process.poll()
        if code is None:
            return
        place.process = None
        if code in (0, REFUSED):
            place.code = code
            return
        settled = time.monotonic() - place.began > _SETTLED_SECONDS
        place.deaths = 1 if settled else place.deaths + 1
        pause = min(_LONGEST_PAUSE, self._first_pause * 2 ** min(place.deaths - 1, 10))
        place.next_start = time.monotonic() + pause
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        self._say(f"worker {place.number} {how}; it is started again in {pause:g} s")

    def _start(self, place: _Place) -> None:
        place.starts += 1
        place.began = time.monotonic()
        # A name belongs to who has its secret, and that died with the process.
        name = [] if self._name is None else ["--id", f"{self._name}-{place.number}.{place.starts}"]
        place.process = subprocess.Popen(
            [*self._command, *name],
            env=self._environment,
            # Ctrl-C is for this process, which passes it on once.
            start_new_session=True,
        )

    def _end_all(self) -> None:
        running = [place for place in self._places if place.process is not None]
        for place in running:
            assert place.process is not None
            place.process.terminate()
        deadline = time.monotonic() + _GRACE_SECONDS
        for place in running:
            assert place.process is not None
            try:
                place.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                place.process.kill()
                place.process.wait()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._ending = True
