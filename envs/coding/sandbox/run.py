"""One run: its request, limits and result, and the errors of the sandbox."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, fields
from typing import Any

from art_gym.errors import ArtGymError

_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Limits:
    """What one run may use. A limit that is reached ends the run.

    Raises:
        ValueError: A limit is not above zero or out of any machine's reach, a number of bytes is not whole,
            or there is less memory than an interpreter needs.
    """

    wall_seconds: float = 5.0
    """From the moment that the program's code starts. The parent holds this clock."""
    cpu_seconds: float = 5.0
    """Of all threads together.

    The kernel ends a program at the next whole second; a run that ended by itself before, but used more than
    this, counts as having reached the limit.
    """
    memory_bytes: int = 512 * _MIB
    """Address space. A program that asks for more gets a ``MemoryError``."""
    output_bytes: int = 64 * _KIB
    """Of stdout, and again of stderr. What is above it is never read."""
    frames_bytes: int = 8 * _MIB
    """Of all frames that the child writes to its channel, with four bytes of length each."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            whole = limit.name.endswith("_bytes")
            most = 2**62 if whole else 10**6
            if not 0 < value <= most or (whole and not isinstance(value, int)):
                kind = "whole number" if whole else "number"
                raise ValueError(
                    f"`{limit.name}` is {value!r}; it must be a {kind} above 0, at most {most:,}"
                )
        if self.memory_bytes < 64 * _MIB:
            raise ValueError(f"`memory_bytes` is {self.memory_bytes:,}; an interpreter needs 64 MiB at least")


class Outcome(enum.StrEnum):
    """How a run ended."""

    EXITED = "exited"
    """By itself; the exit code says how."""
    TIMEOUT = "timeout"
    """Killed: it ran longer than ``wall_seconds``."""
    CPU = "cpu"
    """It used more than ``cpu_seconds``."""
    MEMORY = "memory"
    """A ``MemoryError`` ended it."""
    OUTPUT = "output"
    """Killed: it wrote more than ``output_bytes``, or frames of more than ``frames_bytes``."""
    KILLED = "killed"
    """By a signal: a crash, a signal to itself, or ``Process.close``."""
    REFUSED = "refused"
    """The sandbox failed, not the program. Never a reward, in either direction: judge the task again."""


@dataclass(frozen=True)
class Run:
    """The result of one run.

    Everything but ``outcome`` and the times comes from the program and cannot be trusted.
    """

    outcome: Outcome
    exit_code: int | None = None
    """If the process ended by itself."""
    signal: int | None = None
    """If a signal ended it."""
    stdout: bytes = b""
    stderr: bytes = b""
    frames: tuple[bytes, ...] = ()
    """What was written to the channel and not yet taken by ``Process.receive``; whole frames only."""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    truncated: bool = False
    """Whether stdout or stderr were cut off at the limit."""
    why: str = ""
    """The reason, if the run did not end by itself."""

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.outcome is Outcome.EXITED and self.exit_code == 0

    def describe(self) -> str:
        """How the run ended, for the program's author; holds no measured time."""
        match self.outcome:
            case Outcome.EXITED:
                return f"the program ended early, with exit code {self.exit_code}"
            case Outcome.TIMEOUT | Outcome.CPU:
                return "the program took too long"
            case Outcome.MEMORY:
                return "the program used too much memory"
            case Outcome.OUTPUT:
                return "the program printed too much"
            case Outcome.KILLED:
                return f"the program was ended by signal {self.signal}"
            case Outcome.REFUSED:
                return f"the sandbox failed: {self.why}"


@dataclass(frozen=True)
class Request:
    """What a process is started for; what it is to run comes later."""

    driver: str
    limits: Limits

    @property
    def cpu_seconds(self) -> int:
        """As the kernel counts, in whole seconds; the parent decides by the exact time."""
        return math.ceil(self.limits.cpu_seconds)

    def to_json(self) -> dict[str, Any]:
        """What the child needs of it; the parent enforces the rest."""
        return {
            "driver": self.driver,
            "cpu_seconds": self.cpu_seconds,
            "memory_bytes": self.limits.memory_bytes,
        }


class SandboxUnavailableError(ArtGymError, RuntimeError):
    """No sandbox can be made on this machine, or not the requested one; the message says why."""


class SandboxFailedError(ArtGymError, RuntimeError):
    """The sandbox could not run or judge a program, so there is no verdict about the program."""
