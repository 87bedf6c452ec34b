"""Keeps a training run going: a command that dies or hangs is begun again from its checkpoint.

What the command is, and how it goes on where it was, is for the caller to say
(:mod:`art_trainer.commands.supervising`). Here is when it is begun again, how long that goes on, and that all
of its processes go together.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from art_trainer.process_tree import ProcessTree
from art_trainer.run_folder import RunFolder

RESTARTS_FILE = "restarts.jsonl"
"""In the run's folder: a line for each time it was begun again."""
FINISHED, WRONG_SETTING, INTERRUPTED = 0, 2, 130
ENDS = frozenset(
    {FINISHED, WRONG_SETTING, INTERRUPTED, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM}
)
"""Exit codes after which a command is not begun again: it was done, would fail again, or was asked to end."""
_LONGEST_PAUSE = 60.0
_GRACE_SECONDS = 30.0
_POLL = 0.1
_LOOK = 5
"""Every how many polls the run's folder is looked at."""
_TAIL = 2**16
_CHECKPOINT = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        step: The last step that was logged, or saved; 0 before the first.
        checkpoint: The newest checkpoint's step; ``None`` before the first.
    """

    step: int
    checkpoint: int | None

    def beyond(self, other: Progress) -> bool:
        """Whether there is a step or a checkpoint that the other has not."""
        return self.step > other.step or _saved(self) > _saved(other)

    def or_further(self, other: Progress) -> Progress:
        """Each of the two, where it is furthest: steps that a restart does again are nothing new."""
        return Progress(max(self.step, other.step), max(self, other, key=_saved).checkpoint)


@dataclass(frozen=True, slots=True)
class _Death:
    code: int
    words: str


class Supervisor:
    """Runs a command until it has finished, was asked to end, or dies without getting any further.

    Args:
        folder: The run's folder.
        command: Says what to run, anew before each start.
        say: Takes a line for whoever watches.
        max_restarts: How often in a row the command is begun again without a new step having been done.
        hang_seconds: After how long without any change in the run's folder the command is taken to hang;
            ``None``: never.
        first_pause: Seconds before the first restart; doubled with each in a row, up to a minute.
        clock: Seconds, to tell a hang by.
    """

    def __init__(
        self,
        folder: Path,
        command: Callable[[], Sequence[str]],
        say: Callable[[str], None],
        *,
        max_restarts: int = 5,
        hang_seconds: float | None = None,
        first_pause: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._command = command
        self._say = say
        self._max_restarts = max_restarts
        self._hang_seconds = hang_seconds
        self._first_pause = first_pause
        self._clock = clock
        self._signals: list[int] = []

    def run(self) -> int:
        """Run the command, again and again; Ctrl-C and SIGTERM are for the command, a second one kills it.

        Returns:
            Its last exit code; 128 plus the signal's number where a signal ended it, as shells have it.

        Raises:
            ConfigError: Where the command cannot be started.
        """
        with self._hearing_signals():
            furthest = progress_of(self._folder)
            in_a_row = 0
            while True:
                death = self._run_once()
                if self._signals or death.code in ENDS:
                    return _exit_code(death.code)
                progress = progress_of(self._folder)
                in_a_row = 1 if progress.beyond(furthest) else in_a_row + 1
                furthest = progress.or_further(furthest)
                if in_a_row > self._max_restarts:
                    self._say(f"The run {death.words} {_where(progress)}. {self._in_vain()}")
                    return _exit_code(death.code)
                pause = min(_LONGEST_PAUSE, self._first_pause * 2.0 ** min(in_a_row - 1, 10))
                self._tell(death, progress, in_a_row, pause)
                if not self._rest(pause):
                    return 128 + self._signals[0]

    def _run_once(self) -> _Death:
        """Start the command and wait for its end; whatever it had started is gone then, too."""
        tree = ProcessTree(self._command())
        try:
            death = self._wait(tree)
            if self._signals or death.code in ENDS:
                self._let_end(tree)
        finally:
            tree.kill()
        return death

    def _wait(self, tree: ProcessTree) -> _Death:
        """Wait until the command has ended, or hangs; hand signals on meanwhile."""
        watch = _Growth(self._folder, self._clock)
        handed_on = 0
        tick = 0
        while (code := tree.poll()) is None:
            time.sleep(_POLL)
            tick += 1
            if handed_on < len(self._signals):
                handed_on += 1
                self._hand_on(tree, first=handed_on == 1)
            if tick % _LOOK == 0 and self._hangs(watch):
                tree.kill()
                words = f"hung (nothing in its folder changed for {self._hang_seconds:g} s) and was killed"
                return _Death(-signal.SIGKILL, words)
        return _Death(code, _how(code))

    def _hangs(self, watch: _Growth) -> bool:
        return self._hang_seconds is not None and watch.still_for() > self._hang_seconds

    def _hand_on(self, tree: ProcessTree, *, first: bool) -> None:
        if not first:
            self._say("Asked again: killing the run.")
            tree.kill()
            return
        number = self._signals[0]
        self._say("Asking the run to end, and waiting for it; once more kills it.")
        tree.send(signal.SIGTERM if number == signal.SIGHUP else number)

    def _let_end(self, tree: ProcessTree) -> None:
        """Give descendants a while that outlive the command: a launcher may end before what it started."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < deadline and len(self._signals) < 2 and tree.others():
            time.sleep(_POLL)

    def _rest(self, seconds: float) -> bool:
        """Wait; return whether nobody has asked for the end meanwhile."""
        deadline = time.monotonic() + seconds
        while not self._signals and time.monotonic() < deadline:
            time.sleep(_POLL)
        return not self._signals

    def _tell(self, death: _Death, progress: Progress, in_a_row: int, pause: float) -> None:
        """Say and write down that the command is begun again."""
        saved = progress.checkpoint
        whence = "from its beginning" if saved is None else f"after the checkpoint of step {saved}"
        self._say(
            f"The run {death.words} {_where(progress)}. It goes on {whence} in {pause:g} s "
            f"(restart {in_a_row} of at most {self._max_restarts} without a new step)."
        )
        record: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "why": death.words,
            "code": death.code,
            "step": progress.step,
            "checkpoint": saved,
            "in_a_row": in_a_row,
            "pause": pause,
        }
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / RESTARTS_FILE).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
        except OSError as error:  # such as a full disk, which may be what it died of
            self._say(f"{self._folder / RESTARTS_FILE} cannot be written: {error.strerror}.")

    def _in_vain(self) -> str:
        if self._max_restarts == 0:
            return "It is not begun again: --max-restarts is 0."
        return (
            f"It has done no new step in {self._max_restarts} restarts, so it is not begun again: "
            "its own last words say what is wrong."
        )

    @contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        """Collect signals that ask for the end, but for those that whoever started this has switched off."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.getsignal(number) for number in numbers}
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


class _Growth:
    """Since when a folder's files are as they are."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._clock = clock
        self._seen = self._look()
        self._since = clock()

    def still_for(self) -> float:
        """Seconds since something was found changed, or since this was made."""
        seen = self._look()
        if seen != self._seen:
            self._seen, self._since = seen, self._clock()
        return self._clock() - self._since

    def _look(self) -> tuple[int, int, int]:
        """Number, bytes and last change of the files."""
        count = size = changed = 0
        for place, _, names in os.walk(self._folder):
            for name in names:
                try:
                    found = os.lstat(os.path.join(place, name))
                except FileNotFoundError:  # deleted meanwhile
                    continue
                count, size, changed = count + 1, size + found.st_size, max(changed, found.st_mtime_ns)
        return count, size, changed


def progress_of(folder: Path) -> Progress:
    """Read from a run's folder how far it is; a run that has written nothing yet is at step 0."""
    run = RunFolder(folder)
    names = [_CHECKPOINT.fullmatch(path.name) for path in run.checkpoints.glob("step-*")]
    saved = max((int(name[1]) for name in names if name), default=None)
    return Progress(max(_logged_step(run.metrics_file), saved or 0), saved)


def _logged_step(file: Path) -> int:
    """The last step of a metrics file; its end may be a line that was cut off."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _TAIL))
            lines = stream.read().splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0


def _saved(progress: Progress) -> int:
    return -1 if progress.checkpoint is None else progress.checkpoint


def _where(progress: Progress) -> str:
    return f"after step {progress.step}" if progress.step else "before its first step"


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-code} ({name})"


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code
