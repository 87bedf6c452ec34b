"""``art-trainer`` in a pseudo-terminal of 80 columns and 24 rows, as a person at a keyboard has it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|.)")
_MAIN = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY); import art_trainer.cli.main as c; c.main()"
_CHANGED = {"TERM": "xterm", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}


class PseudoTerminal:
    def __init__(self, folder: Path, *arguments: object) -> None:
        self._ours, self._theirs = pty.openpty()
        termios.tcsetwinsize(self._theirs, (24, 80))
        self._settings, self.output = termios.tcgetattr(self._theirs), ""
        words, files = [sys.executable, "-c", _MAIN, *map(str, arguments)], [self._theirs] * 3
        others = {name: os.environ[name] for name in os.environ if name not in ("COLUMNS", "LINES")}
        options = {"cwd": folder, "env": {**others, **_CHANGED}, "start_new_session": True}
        self._process = subprocess.Popen(words, -1, None, *files, **options)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def text(self, start: int = 0) -> str:
        return _SEQUENCE.sub("", self.output[start:])

    def wait_for(self, *texts: str) -> None:
        start = len(self.output)
        self._read_until(lambda: all(text in self.text(start) for text in texts))

    def end(self) -> int:
        self._read_until(lambda: self._process.poll() is not None)
        assert termios.tcgetattr(self._theirs) == self._settings  # the terminal is as it was
        for on, off in (("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")):
            assert self.output.rfind(on) <= self.output.rfind(off), "alternate screen or cursor"
        os.close(self._ours)
        os.close(self._theirs)
        return self._process.returncode

    def _read_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120  # for what would hang
        while (going := not true()) or select.select([self._ours], [], [], 0)[0]:
            if select.select([self._ours], [], [], 0.1)[0]:
                self.output += os.read(self._ours, 65536).decode(errors="replace")
            if going and time.monotonic() > deadline:
                self._process.kill()
                raise AssertionError(f"{self._process.wait()}: {self.output[-4000:]}")
