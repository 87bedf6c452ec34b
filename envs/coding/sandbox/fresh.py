"""A fresh interpreter for each run: slower than a zygote, for machines where that does not hold."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from art_gym.envs.coding.sandbox.bundle import BOOTSTRAP, bundle
from art_gym.envs.coding.sandbox.child.rights import unused_id
from art_gym.envs.coding.sandbox.errors import SandboxUnavailable
from art_gym.envs.coding.sandbox.interpreter import ENVIRONMENT, FLAGS, Interpreter
from art_gym.envs.coding.sandbox.process import Ended
from art_gym.envs.coding.sandbox.request import Request
from art_gym.envs.coding.sandbox.streams import Pipes

_TRIAL_SECONDS = 30.0


def bubblewrap(interpreter: Interpreter, readable: Iterable[str]) -> list[str]:
    """The command that puts bubblewrap's walls around an interpreter.

    These are new namespaces of every kind, a root directory that holds the standard library and nothing else,
    another user, and no capabilities. The kernel ends all that is inside with the command itself.

    Raises:
        SandboxUnavailable: It is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxUnavailable("bubblewrap is not installed (no `bwrap` on the PATH)")
    command = [program, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    command += ["--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--hostname", "sandbox"]
    for path in [interpreter.path, *readable]:
        command += ["--ro-bind-try", path, path]
    for path, target in interpreter.links().items():
        command += ["--symlink", target, path]
    for path in interpreter.hidden:
        command += ["--tmpfs", path, "--remount-ro", path]
    return [*command, "--remount-ro", "/", "--chdir", "/"]


class Fresh:
    """Starts an interpreter for each run.

    Args:
        name: What is around it.
        prefix: The command that puts walls around another command.
        interpreter: What runs in them.
        config: As for a zygote; of the drivers a run gets its own only.

    Raises:
        SandboxUnavailable: The command does not work here.
    """

    def __init__(
        self, name: str, prefix: Sequence[str], interpreter: Interpreter, config: Mapping[str, Any]
    ) -> None:
        self.layers = (name, *config["plan"])
        """What stands around a run."""
        self.ahead = False
        self.alive = True
        self._prefix = prefix
        self._command = [interpreter.path, *FLAGS, "-c"]
        self._config = dict(config)
        self._drivers = self._config.pop("drivers")
        # Root's processes are not counted, so a program could start threads without end; and whoever did get
        # out would be root.
        self._user = unused_id(os.getpid()) if prefix else None
        self._try(name)

    def spawn(self, request: Request, pipes: Pipes) -> FreshHandle:
        """Start a run on the child's ends of these pipes.

        Raises:
            OSError: The command could not be started.
        """
        config = {**self._config, "descriptors": list(pipes), "request": request.to_json()}
        config["driver"] = self._drivers[request.driver]
        reader, writer = os.pipe()
        # Bubblewrap tells which process it runs, so that the right one can be killed and it can clean up.
        prefix = [*self._prefix, "--json-status-fd", str(writer), "--"] if self._prefix else []
        try:
            with tempfile.TemporaryFile() as file:
                file.write(bundle("fresh", config))
                file.seek(0)
                process = subprocess.Popen(
                    [*prefix, *self._command, BOOTSTRAP],
                    env=ENVIRONMENT,
                    cwd="/",
                    stdin=file,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(*pipes, writer),
                    start_new_session=True,
                    **self._identity(),
                )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        return FreshHandle(process, reader)

    def close(self) -> None:
        """Nothing is kept between runs."""
        self.alive = False

    def _identity(self) -> dict[str, Any]:
        """Whom to start a command as."""
        return {} if self._user is None else {"user": self._user, "group": self._user, "extra_groups": []}

    def _try(self, name: str) -> None:
        prefix = [*self._prefix, "--"] if self._prefix else []
        command = [*prefix, *self._command, "print('in')"]
        try:
            said = subprocess.run(
                command,
                env=ENVIRONMENT,
                cwd="/",
                capture_output=True,
                timeout=_TRIAL_SECONDS,
                check=False,
                **self._identity(),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxUnavailable(f"{name}: {error}") from error
        if said.stdout != b"in\n":
            last = said.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise SandboxUnavailable(f"{name}: {last[0] if last else f'exit code {said.returncode}'}")


class FreshHandle:
    """A process of its own; see ``Handle``.

    Args:
        process: What was started: the interpreter, or bubblewrap with the interpreter in it.
        status: A pipe on which bubblewrap says which process it started.
    """

    def __init__(self, process: subprocess.Popen[bytes], status: int) -> None:
        self._process, self._status = process, status
        os.set_blocking(status, False)
        self._pidfd = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1
        self._ended: Ended | None = None

    def fileno(self) -> int:
        """Readable when the process has ended; -1 on systems without such descriptors."""
        return self._pidfd

    def ended(self) -> Ended | None:
        """How it ended; ``None`` while it has not."""
        if self._ended is None:
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                code = self._process.returncode = os.waitstatus_to_exitcode(status)
                # Bubblewrap tells of a signal as shells do, by an exit code above 128.
                number = -code if code < 0 else code - 128 if code - 128 in _SIGNALS else None
                cpu = usage.ru_utime + usage.ru_stime
                self._ended = Ended(None if number else code, number, cpu)
        return self._ended

    def kill(self) -> None:
        """Kill what runs inside; with that, all else ends by itself and collects what it has started."""
        if self._ended is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._inner() or -self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill all that is left."""
        if self._ended is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for descriptor in (self._pidfd, self._status):
            if descriptor >= 0:
                os.close(descriptor)
        self._pidfd = self._status = -1

    def _inner(self) -> int | None:
        """The process that bubblewrap started; its number is not given to another while bubblewrap lives."""
        try:
            said = os.read(self._status, 4096)
        except BlockingIOError:
            return None
        found = re.search(rb'"child-pid": *([0-9]+)', said)
        return int(found[1]) if found else None


_SIGNALS = {int(number) for number in signal.Signals}
