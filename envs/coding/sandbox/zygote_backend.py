"""The zygote backend: start a zygote once and request one forked child per run."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
from collections.abc import Mapping
from typing import Any

from art_gym.envs.coding.sandbox.bundle import BOOTSTRAP, bundle
from art_gym.envs.coding.sandbox.child.channel import DESCRIPTORS, ENDED, KILL, REQUEST
from art_gym.envs.coding.sandbox.interpreter import ENVIRONMENT, FLAGS, Interpreter
from art_gym.envs.coding.sandbox.process import Ended
from art_gym.envs.coding.sandbox.run import Request, SandboxUnavailableError
from art_gym.envs.coding.sandbox.streams import Pipes

_START_SECONDS = 30.0
_MESSAGE = 1 << 14


class ZygoteBackend:
    """One running zygote.

    Args:
        interpreter: What it runs on.
        config: What its ``main`` gets.

    Raises:
        SandboxUnavailableError: It did not start; the message has its reason.
        MissingLayerError: A layer of the plan cannot be set up here.
    """

    def __init__(self, interpreter: Interpreter, config: Mapping[str, Any]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours = os.pidfd_open(os.getpid())
        bound = {**config, "control": theirs.fileno(), "parent": ours}
        try:
            self._process = subprocess.Popen(
                [interpreter.path, *FLAGS, "-c", BOOTSTRAP],
                env=ENVIRONMENT,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(), ours),
                start_new_session=True,  # the user's Ctrl-C is not for it
            )
        except OSError as error:
            self._control.close()
            raise SandboxUnavailableError(str(error)) from error
        finally:
            theirs.close()
            os.close(ours)
        assert self._process.stdin
        # If it has ended already, its error output follows.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(bundle("zygote", bound))
        self._drivers = list(config["drivers"])
        self._numbers = itertools.count(1)
        self.layers = ("zygote", *config["plan"], "seccomp")
        """The layers of isolation around its children."""
        self.ahead = True
        self.facts: Mapping[str, Any] = self._greeting()
        """What it reported at its start: ``python``, ``landlock`` (ABI), ``user``."""

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def spawn(self, request: Request, pipes: Pipes) -> ZygoteHandle:
        """Ask for a child on the other ends of these pipes, which are closed here.

        Raises:
            OSError: The zygote is gone.
        """
        status, theirs = os.pipe()
        os.set_blocking(status, False)
        number = next(self._numbers)
        try:
            descriptors = DESCRIPTORS.pack(*pipes, theirs)
            self._control.sendmsg(
                [self._message(number, request)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
            )
        except OSError:
            os.close(status)
            self.close()
            raise
        finally:
            os.close(theirs)
        return ZygoteHandle(status, number, self)

    def kill(self, number: int) -> None:
        """Have a run killed, if it has not ended; a zygote that does not respond is ended with all runs."""
        try:
            self._control.send(KILL.pack(number), socket.MSG_DONTWAIT)
        except OSError:
            self.close()

    def _message(self, number: int, request: Request) -> bytes:
        place = self._drivers.index(request.driver)
        return REQUEST.pack(number, place, request.cpu_seconds, request.limits.memory_bytes)

    def close(self) -> None:
        """End it; the kernel ends with it all that it forked."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        if self._process.stderr:
            self._process.stderr.close()

    def _greeting(self) -> Mapping[str, Any]:
        self._control.settimeout(_START_SECONDS)
        try:
            word = self._control.recv(_MESSAGE)
        except TimeoutError:
            word = b""
        self._control.settimeout(None)
        report = json.loads(word) if word else {}
        if "failed" in report:
            self.close()
            raise MissingLayerError(report["failed"], report["why"])
        if not report:
            self._process.kill()
            assert self._process.stderr
            last = self._process.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
            self.close()
            raise SandboxUnavailableError(
                f"the zygote did not start: {last[0] if last else 'without a message'}"
            )
        return report


class MissingLayerError(SandboxUnavailableError):
    """A layer of a plan cannot be set up here.

    Attributes:
        layer: Its name.
        why: The kernel's error message.
    """

    def __init__(self, layer: str, why: str) -> None:
        super().__init__(f"{layer}: {why}")
        self.layer, self.why = layer, why


class ZygoteHandle:
    """A child of a zygote; see ``Handle``.

    Only the zygote, which waits for it, knows for sure which process that is; so the zygote kills it on
    request. A zygote that does not is killed itself, by ``close``, and the kernel ends its children with it.
    """

    def __init__(self, status: int, number: int, zygote: ZygoteBackend) -> None:
        self._status, self._number, self._zygote = status, number, zygote
        self._ended: Ended | None = None

    def fileno(self) -> int:
        """Readable when the zygote reports about the child."""
        return self._status

    def ended(self) -> Ended | None:
        """How it ended; ``None`` while it has not."""
        if self._ended is None:
            try:
                message = os.read(self._status, ENDED.size)
            except BlockingIOError:
                return None
            if message:
                self._ended = Ended.of(*ENDED.unpack(message))
            else:
                self._zygote.close()
                self._ended = Ended(None, None, 0.0, "the zygote died")
        return self._ended

    def kill(self) -> None:
        """Kill it."""
        if self._ended is None:
            self._zygote.kill(self._number)

    def close(self) -> None:
        """Release what this holds; a child that does not end is killed with its zygote."""
        if self._ended is None:
            self._zygote.close()
        os.close(self._status)
