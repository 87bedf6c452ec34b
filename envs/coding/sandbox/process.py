"""One sandboxed process as the parent sees it: deadlines, killing, and the result."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import NamedTuple, Protocol

from art_gym.closing import CloseOnExit
from art_gym.envs.coding.sandbox.child.channel import SEED
from art_gym.envs.coding.sandbox.child.runner import OUT_OF_MEMORY, READY
from art_gym.envs.coding.sandbox.run import Limits, Outcome, Run
from art_gym.envs.coding.sandbox.streams import Streams

_START_SECONDS = 20.0
"""How long the sandbox itself may take before a program's first line, on a machine under load."""
_DEATH_SECONDS = 10.0
"""How long a killed process may take to be gone."""


class Ended(NamedTuple):
    """How a process ended."""

    exit_code: int | None
    signal: int | None
    cpu_seconds: float
    problem: str = ""
    """Not empty if the sandbox itself failed."""

    @classmethod
    def of(cls, status: int, cpu_seconds: float) -> Ended:
        """How a process with this status, as ``wait`` has it, ended."""
        code = os.waitstatus_to_exitcode(status)
        return cls(code if code >= 0 else None, -code if code < 0 else None, cpu_seconds)


class Handle(Protocol):
    """A started process, whatever started it."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when there is news."""

    def ended(self) -> Ended | None:
        """How it ended; ``None`` while it has not. Does not wait."""

    def kill(self) -> None:
        """End it and everything that belongs to it, by force."""

    def close(self) -> None:
        """Release what this holds; end the process by any means if it has not ended."""


class Process(CloseOnExit):
    """A program in the sandbox, running or ended; made by ``Sandbox.start``.

    A conversation goes by frames: ``send``, ``receive``. ``wait`` and ``close`` release
    everything at its end; a ``with`` block closes it. Not for use by several threads at once.
    """

    def __init__(self, handle: Handle, streams: Streams, limits: Limits) -> None:
        self._handle, self._streams, self._limits = handle, streams, limits
        self._started: float | None = None
        self._deadline = time.monotonic() + _START_SECONDS
        self._stopped: tuple[Outcome, str] | None = None
        self._run: Run | None = None
        streams.watch(handle.fileno())

    @property
    def gone(self) -> bool:
        """Whether it has ended, even if its result has not been read yet."""
        return self._run is not None or self._handle.ended() is not None

    def begin(self, payload: bytes, stdin: bytes, seed: int = 0) -> None:
        """Send what it waits for: the first frame, which is the seed and the payload, and all of stdin."""
        self._deadline = time.monotonic() + _START_SECONDS
        self._streams.send(SEED.pack(seed) + payload)
        self._streams.feed(stdin)

    @property
    def started(self) -> bool:
        """Whether all layers were active and the driver was started."""
        return self._started is not None

    def send(self, frame: bytes) -> None:
        """Send the driver a frame. Does not wait: what the pipe does not hold is sent later.

        If the run has ended, or reads no more, this does nothing; ``receive`` and ``close`` report it.
        """
        if self._run is None:
            self._streams.send(frame)

    def receive(self) -> bytes | None:
        """The driver's next frame; ``None`` if there will be no more, since the run has ended."""
        while not self._streams.frames or not self.started:
            if self._run is not None:
                return None
            self._turn()
        return self._streams.frames.popleft()

    def wait(self) -> Run:
        """Let it run to its end or to a limit, and return the result."""
        while self._run is None:
            self._turn()
        # Frames may have been taken since it ended.
        return replace(self._run, frames=tuple(self._streams.frames))

    def close(self) -> Run:
        """Kill it if it still runs, and return the result."""
        if self._run is None:
            self._stop(Outcome.KILLED, "closed while it was running")
        return self.wait()

    def _turn(self) -> None:
        """Wait for the next event and handle it."""
        news = self._streams.turn(self._deadline - time.monotonic())
        if self._started is None and self._streams.frames:
            self._begin(self._streams.frames.popleft())
        if self._streams.overflow:
            self._stop(Outcome.OUTPUT, self._streams.overflow)
        if time.monotonic() >= self._deadline:
            self._out_of_time()
        if news and (ended := self._handle.ended()) is not None:
            self._finish(ended)

    def _begin(self, word: bytes) -> None:
        """The first frame, written before the program's first line: all layers are active, or why not."""
        if word != READY:
            self._stop(Outcome.REFUSED, word[1:].decode(errors="replace"))
            return
        self._started = time.monotonic()
        if self._stopped is None:
            self._deadline = self._started + self._limits.wall_seconds

    def _out_of_time(self) -> None:
        if self._stopped is not None:
            self._finish(Ended(None, None, 0.0, f"not gone {_DEATH_SECONDS:g} s after it was killed"))
        elif self.started:
            self._stop(Outcome.TIMEOUT, f"ran longer than {self._limits.wall_seconds:g} s")
        else:
            self._stop(Outcome.REFUSED, f"the sandbox was not ready after {_START_SECONDS:g} s")

    def _stop(self, outcome: Outcome, why: str) -> None:
        """Kill it. The first reason to do so is the one that counts."""
        if self._stopped is None and self._run is None:
            self._stopped = (outcome, why)
            self._deadline = time.monotonic() + _DEATH_SECONDS
            self._handle.kill()

    def _finish(self, ended: Ended) -> None:
        if self._run is not None:
            return
        self._streams.drain()
        if self._started is None and self._streams.frames:
            self._begin(self._streams.frames.popleft())
        outcome, why = self._verdict(ended)
        exited = outcome in (Outcome.EXITED, Outcome.MEMORY, Outcome.CPU)
        self._run = Run(
            outcome,
            exit_code=ended.exit_code if exited else None,
            signal=ended.signal,
            stdout=self._streams.stdout,
            stderr=self._streams.stderr,
            cpu_seconds=ended.cpu_seconds,
            wall_seconds=time.monotonic() - self._started if self._started else 0.0,
            truncated=self._streams.truncated,
            why=why,
        )
        self._streams.close()
        self._handle.close()

    def _verdict(self, ended: Ended) -> tuple[Outcome, str]:
        if ended.problem:
            return Outcome.REFUSED, ended.problem
        if self._stopped is not None:
            return self._stopped
        if self._started is None:
            return Outcome.REFUSED, f"the child ended before it was locked down ({_how(ended)})"
        if self._streams.overflow:
            return Outcome.OUTPUT, self._streams.overflow
        most = self._limits.cpu_seconds
        # The kernel's own count, and what it reports afterwards, differ a little.
        killed = ended.signal == signal.SIGKILL and ended.cpu_seconds > 0.95 * most
        by_kernel = killed or ended.signal == signal.SIGXCPU
        if ended.cpu_seconds > most or by_kernel:
            return Outcome.CPU, f"used more than {most:g} s of processor time"
        if ended.signal is not None:
            return Outcome.KILLED, f"ended by {_how(ended)}"
        if ended.exit_code == OUT_OF_MEMORY:
            return Outcome.MEMORY, f"a MemoryError, with a limit of {self._limits.memory_bytes:,} bytes"
        return Outcome.EXITED, ""


def _how(ended: Ended) -> str:
    if ended.signal is None:
        return f"exit code {ended.exit_code}"
    known = ended.signal in {number.value for number in signal.Signals}
    return f"signal {ended.signal}" + (f", {signal.Signals(ended.signal).name}" if known else "")
