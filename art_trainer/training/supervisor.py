"""Supervisor of commands: restarts those that die or hang, and ends all of their processes together.

A :class:`Job` is one command across its restarts: :class:`TrainingJob` is a run that resumes from its
checkpoint; the command line's workers are another (:mod:`art_trainer.cli.worker`).
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Protocol

import psutil  # type: ignore[import-untyped]

from art_trainer.errors import ConfigError
from art_trainer.tracking.run_dir import RunFolder, checkpoint_step, list_checkpoints, private_folder

MARK = "ART_SUPERVISED_"
"""Prefix of the environment variable that marks a command and its descendants."""
RESTARTS_FILE = "restarts.jsonl"
"""In the run's folder: a line for each restart."""
FINISHED, WRONG_SETTING, STALLED, INTERRUPTED = 0, 2, 3, 130
ENDS = frozenset(
    {FINISHED, WRONG_SETTING, STALLED, INTERRUPTED, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM}
)
"""Exit codes without a restart: the command was done, would fail again, or was asked to end."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONGEST_PAUSE = 60.0
_DESCENDANTS_SECONDS = 30.0
_POLL_SECONDS = 0.1
_LOOK = 5
"""Polls between two looks at whether a command hangs."""
_log = logging.getLogger(__name__)


class ProcessTree:
    """A command in a process group of its own, and its descendants.

    A process group is not enough: torchrun starts each rank in a session of its own, and killing torchrun
    leaves them behind. So the command has a mark in its environment, which whatever it starts inherits.

    Args:
        command: The program and its arguments.
        environment: Its environment variables.

    Raises:
        ConfigError: If the program cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._mark = f"{MARK}{uuid.uuid4().hex}"  # unique: such trees may be nested
        try:
            self._process = subprocess.Popen(
                command, env={**environment, self._mark: "1"}, start_new_session=True
            )
        except OSError as error:
            raise ConfigError(f"{command[0]} cannot be started: {error.strerror}") from error

    def poll(self) -> int | None:
        """Return the command's exit code, negative if a signal ended it; ``None`` while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Send a signal to the command's process group, as a terminal does at Ctrl-C."""
        with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of the dead
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the command and all its descendants; return when none is left."""
        self.send(signal.SIGKILL)
        self._process.wait()
        looks = 0
        while looks < 2:  # a process that is just being started has no environment for a moment
            others = self.descendants()
            looks = 0 if others else looks + 1
            for process in others:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(_POLL_SECONDS)

    def descendants(self) -> list[psutil.Process]:
        """Return the descendants that still run."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # gone meanwhile, or another user's
                if self._mark in process.environ() and process.pid != self._process.pid:
                    found.append(process)
        return found


class Job(Protocol):
    """One command across its restarts."""

    def start(self) -> Sequence[str]:
        """Return what to run; called before each start."""

    def hang(self) -> str | None:
        """Return why the running command counts as hung, if it does."""

    def end(self, code: int, reason: str) -> float | None:
        """Return after how many seconds a command that ended is restarted; ``None``: it is not."""


@dataclass(slots=True)
class _Slot:
    job: Job
    tree: ProcessTree | None = None
    next_start: float = 0.0
    code: int | None = None
    """The exit code of a command that is not restarted."""


class Supervisor:
    """Runs commands until each has finished, was asked to end, or is given up by its job.

    Args:
        jobs: The commands.
        environment: Their environment variables; ``None``: those of this process.
        grace_seconds: Seconds after a signal after which what still runs is killed; ``None``: never.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        environment: Mapping[str, str] | None = None,
        grace_seconds: float | None = None,
    ) -> None:
        self._slots = [_Slot(job) for job in jobs]
        self._environment = os.environ if environment is None else environment
        self._grace_seconds = grace_seconds
        self._signals: list[int] = []
        self._signalled = 0.0

    def run(self) -> int:
        """Run the commands, again and again; signals are passed on to them, a second one kills them.

        Returns:
            The largest of the last exit codes; 128 plus the signal's number if a signal ended a command, as
            in shells.

        Raises:
            ConfigError: If a command cannot be started.
        """
        forwarded = tick = 0
        with self._collecting_signals():
            try:
                while any(slot.code is None for slot in self._slots):
                    for slot in self._slots:
                        self._check(slot, look=tick % _LOOK == 0)
                    if forwarded < len(self._signals):
                        forwarded += 1
                        self._forward_signal(first=forwarded == 1)
                    self._kill_after_grace()
                    time.sleep(_POLL_SECONDS)
                    tick += 1
            finally:
                self._kill_all()
        return max(slot.code or 0 for slot in self._slots)

    def _check(self, slot: _Slot, *, look: bool) -> None:
        """Start a command that is due, or handle the end of one that has ended."""
        if slot.code is not None:
            return
        if slot.tree is None:
            if self._signals:
                slot.code = 128 + self._signals[0]
            elif time.monotonic() >= slot.next_start:
                slot.tree = ProcessTree(slot.job.start(), self._environment)
            return
        code, reason = slot.tree.poll(), None
        if code is None and look and (reason := slot.job.hang()) is not None:
            slot.tree.kill()
            code = -signal.SIGKILL
        if code is not None:
            self._end(slot, slot.tree, code, reason or _how(code))

    def _end(self, slot: _Slot, tree: ProcessTree, code: int, reason: str) -> None:
        if self._signals or code in ENDS:
            self._let_end(tree)
        tree.kill()
        slot.tree = None
        pause = None if self._signals else slot.job.end(code, reason)
        if pause is None:
            slot.code = code if code >= 0 else 128 - code
        else:
            slot.next_start = time.monotonic() + pause

    def _let_end(self, tree: ProcessTree) -> None:
        """Give descendants time to end: a launcher may end before what it started."""
        deadline = time.monotonic() + _DESCENDANTS_SECONDS
        while time.monotonic() < deadline and len(self._signals) < 2 and tree.descendants():
            time.sleep(_POLL_SECONDS)

    def _forward_signal(self, *, first: bool) -> None:
        if not first:
            _log.warning("second signal: killing what still runs")
            self._kill_all()
            return
        _log.info("waiting for the end; a second signal kills")
        self._signalled = time.monotonic()
        number = self._signals[0]
        for slot in self._slots:
            if slot.tree is not None:
                slot.tree.send(signal.SIGTERM if number == signal.SIGHUP else number)

    def _kill_after_grace(self) -> None:
        grace = math.inf if self._grace_seconds is None else self._grace_seconds
        if self._signals and time.monotonic() > self._signalled + grace:
            self._kill_all()

    def _kill_all(self) -> None:
        for slot in self._slots:
            if slot.tree is not None:
                slot.tree.kill()

    @contextmanager
    def _collecting_signals(self) -> Iterator[None]:
        """Collect SIGINT, SIGTERM and SIGHUP, except those that were ignored at the start."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)


def backoff(first: float, failures: int) -> float:
    """Seconds before a restart: doubled with each failure in a row, up to a minute."""
    return min(_LONGEST_PAUSE, first * 2.0 ** min(failures - 1, 10))


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-code} ({name})"


# ----------------------------------------------------------------------
# A training run.


class Progress(NamedTuple):
    """How far a run is: the last step that was logged or saved, and the newest checkpoint's; 0 for none."""

    step: int
    checkpoint: int


class TrainingJob:
    """A run that is restarted until it finishes, was asked to end, or fails without further progress.

    Args:
        folder: The run's folder.
        command: Returns what to run; called before each start.
        max_restarts: Restarts in a row without a new step or checkpoint.
        hang_seconds: Seconds without any change in the run's folder after which the command counts as hung;
            ``None`` for never.
        first_pause: Seconds before the first restart; doubled with each in a row, up to a minute.
        clock: Seconds, for the detection of hangs.
    """

    def __init__(
        self,
        folder: Path,
        command: Callable[[], Sequence[str]],
        *,
        max_restarts: int = 5,
        hang_seconds: float | None = None,
        first_pause: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._command = command
        self._max_restarts = max_restarts
        self._hang_seconds = hang_seconds
        self._first_pause = first_pause
        self._clock = clock
        self._furthest = progress_of(folder)
        self._in_a_row = 0
        self._seen, self._since = folder_state(folder), clock()

    def start(self) -> Sequence[str]:
        """Return what to run."""
        self._seen, self._since = folder_state(self._folder), self._clock()
        return self._command()

    def hang(self) -> str | None:
        """Return why the run counts as hung, if nothing has changed in its folder for too long."""
        if self._hang_seconds is None:
            return None
        seen = folder_state(self._folder)
        if seen != self._seen:
            self._seen, self._since = seen, self._clock()
        if self._clock() - self._since <= self._hang_seconds:
            return None
        return f"hung (nothing in its folder changed for {self._hang_seconds:g} s) and was killed"

    def end(self, code: int, reason: str) -> float | None:
        """Return the pause before the next start, and write the restart to :data:`RESTARTS_FILE`."""
        if code in ENDS:
            return None
        progress = progress_of(self._folder)
        best = Progress(*map(max, progress, self._furthest))  # steps that a restart repeats are no progress
        self._in_a_row = self._in_a_row + 1 if best == self._furthest else 1
        self._furthest = best
        where = f"after step {progress.step}" if progress.step else "before its first step"
        if self._in_a_row > self._max_restarts:
            _log.error("the run %s %s; %s", reason, where, self._reason_to_stop())
            return None
        pause = backoff(self._first_pause, self._in_a_row)
        saved = progress.checkpoint
        _log.warning(
            "the run %s %s; restarting %s in %g s (restart %d of at most %d without a new step)",
            *(reason, where, f"from the checkpoint of step {saved}" if saved else "from its beginning"),
            *(pause, self._in_a_row, self._max_restarts),
        )
        record = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "why": reason, "code": code}
        self._append({**record, **progress._asdict(), "in_a_row": self._in_a_row, "pause": pause})
        return pause

    def _append(self, record: Mapping[str, object]) -> None:
        try:
            private_folder(self._folder)
            with (self._folder / RESTARTS_FILE).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
        except OSError as error:  # such as a full disk, which may be the cause of the failure
            _log.warning("%s cannot be written: %s", self._folder / RESTARTS_FILE, error.strerror)

    def _reason_to_stop(self) -> str:
        if self._max_restarts == 0:
            return "not restarted, since --max-restarts is 0"
        return f"no new step in {self._max_restarts} restarts, so it is not restarted: see its last log lines"


def folder_state(folder: Path) -> tuple[int, int, int]:
    """Return number, bytes and last change of the files in a folder."""
    count = size = changed = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # deleted meanwhile
                found = os.lstat(os.path.join(place, name))
                count, size, changed = count + 1, size + found.st_size, max(changed, found.st_mtime_ns)
    return count, size, changed


def progress_of(folder: Path) -> Progress:
    """Read a run's progress from its folder."""
    run = RunFolder(folder)
    saved = max(map(checkpoint_step, list_checkpoints(run.checkpoints)), default=0)
    logged = [int(record.get("step", 0)) for record in run.metrics().records]
    return Progress(max([saved, *logged]), saved)
