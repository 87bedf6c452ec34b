"""A command and everything it starts: asked to end together, killed together.

A process group is not enough: torchrun starts each rank in a session of its own, and whoever kills torchrun
leaves them behind. So the command carries a mark in its environment, which whatever it starts inherits, and
on Linux whoever has the mark belongs to it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from art_trainer.errors import ConfigError

MARK = "ART_SUPERVISED_"
"""What the name of the variable begins with that marks a command and its descendants."""
_PROCESSES = Path("/proc")
_POLL = 0.05


class ProcessTree:
    """A command that runs in a process group of its own, and its descendants.

    Args:
        command: The program and its arguments.

    Raises:
        ConfigError: Where the program cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        name = f"{MARK}{uuid.uuid4().hex}"  # a name of its own: such trees may stand in one another
        self._mark = f"{name}=1".encode()
        environment = {**os.environ, name: "1"}
        try:
            self._process = subprocess.Popen(command, env=environment, start_new_session=True)
        except OSError as error:
            raise ConfigError(f"{command[0]} cannot be started: {error.strerror}") from error

    def poll(self) -> int | None:
        """The command's exit code, below 0 where a signal ended it; ``None`` while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Send a signal to the command's process group, as a terminal does at Ctrl-C."""
        with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of the dead
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the command and all its descendants; return when the command is gone and none is left."""
        self.send(signal.SIGKILL)
        self._process.wait()
        while others := self.others():
            for process in others:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(_POLL)

    def others(self) -> list[int]:
        """The descendants that still run; where there is no ``/proc``, none are known."""
        found = []
        for folder in _PROCESSES.glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:  # gone meanwhile, or another user's
                continue
            if self._mark in environment.split(b"\0") and int(folder.name) != self._process.pid:
                found.append(int(folder.name))
        return found
