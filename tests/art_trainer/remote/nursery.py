"""Real worker processes that need not import PyTorch one by one.

As a script it imports once what a worker needs, and forks one for each line of its standard input: the
command line, the environment, the file its words go to. A fork is a process like any other: it can be killed,
stopped and waited for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


class Child:
    """A worker's process."""

    def __init__(self, nursery: Nursery, pid: int, log: Path) -> None:
        self._nursery = nursery
        self.pid = pid
        self.log = log

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code; minus a signal's number where that ended it."""
        code: int = self._nursery.ask({"wait": self.pid})
        self._nursery.children.remove(self)
        return code

    @property
    def words(self) -> str:
        return self.log.read_text()


class Nursery:
    """Starts workers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.children: list[Child] = []

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, arguments: list[str], log: Path, **environment: str) -> Child:
        """Run ``art-trainer`` with these arguments."""
        child = Child(self, self.ask({"start": arguments, "log": str(log), "env": environment}), log)
        self.children.append(child)
        return child

    def clear(self) -> None:
        """End what a test has left."""
        for child in list(self.children):
            child.signal(signal.SIGKILL)
            child.wait()


@contextmanager
def nursery() -> Iterator[Nursery]:
    process = subprocess.Popen(
        [sys.executable, __file__],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        found = Nursery(process)
        try:
            yield found
        finally:
            found.clear()
            assert process.stdin is not None
            process.stdin.close()


def _become(request: dict[str, Any]) -> None:
    """In a fork: be an ``art-trainer``."""
    from art_trainer.cli import main

    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["env"])
    code = 70
    try:
        main(request["start"])
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _wait(pid: int) -> int:
    deadline = time.monotonic() + 60
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _serve() -> None:
    import art_trainer.cli
    import art_trainer.commands.working
    import art_trainer.remote.worker  # noqa: F401 (what takes long)
    import tests.art_trainer.remote.fault_envs  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = _wait(request["wait"])
        else:
            answer = os.fork()
            if answer == 0:
                _become(request)
        print(answer, flush=True)


if __name__ == "__main__":
    _serve()
