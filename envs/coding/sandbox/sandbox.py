"""Run untrusted programs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping

from art_gym.closing import CloseOnExit
from art_gym.envs.coding.sandbox.backends import Backend, BackendName, open_backend, start
from art_gym.envs.coding.sandbox.process import Process
from art_gym.envs.coding.sandbox.run import Limits, Outcome, Request, Run, SandboxUnavailableError
from art_gym.errors import did_you_mean

_Kind = tuple[Request, bool]
"""The request, and whether there is something on stdin; a prepared child is used if both are equal."""


class Standby:
    """At most one child, forked and locked down in advance. Threads may share it.

    During one run the zygote forks the child for the next, which then only waits for its payload.
    The total cost is the same; but if a processor is free, it is ready when it is needed. It
    is a child like any other: forked from a zygote that has seen no program, isolated in the same way, with
    pipes of its own. It is started for a run just like the last two (the same driver and limits), and killed
    if another comes. The seed comes with the payload.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: _Kind | None = None
        self._repeated = False
        self._waiting: Process | None = None

    def take(self, backend: Backend, request: Request, *, stdin: bool) -> Process:
        """A process for a request: the prepared one, if it was started for an equal request, else a new one.

        Raises:
            OSError: It could not be started.
        """
        kind = (request, stdin)
        with self._lock:
            self._repeated, self._last = kind == self._last, kind
            process, self._waiting = self._waiting, None
        if process is not None and (process.gone or not self._repeated):
            process.close()
            process = None
        return process or start(backend, request, stdin=stdin)

    def refill(self, backend: Backend) -> None:
        """Start the next one, if the last two requests were equal."""
        with self._lock:
            if not backend.ahead or not self._repeated or self._waiting is not None or self._last is None:
                return
            request, stdin = self._last
            # If that fails, the next run will find out why.
            with contextlib.suppress(OSError):
                self._waiting = start(backend, request, stdin=stdin)

    def dismiss(self) -> None:
        """Kill the prepared one."""
        with self._lock:
            process, self._waiting, self._last = self._waiting, None, None
        if process is not None:
            process.close()


class Sandbox(CloseOnExit):
    """Runs untrusted programs, one process each, so that they reach nothing but their pipes.

    The code that a run begins with is a *driver*: a text of ours, given here by name, that ends with a
    statement such as ``main(channel, payload)``. What comes before it (imports, functions) is executed once,
    when the sandbox starts; that last statement in every run, after the lockdown. ``payload`` is the bytes
    given to ``run``, and ``channel`` talks to the parent: ``read_frame() -> bytes``, ``write_frame(bytes)``,
    ``close()``. A driver imports only the standard library. The driver ``script`` is always there: its
    payload is the text of a program, which it runs as ``__main__``.

    A program can read everything that its driver holds, and can write to the channel itself. So expected
    answers stay in the parent, and so does the verdict.

    Threads may share a sandbox, and several runs may be in progress at a time.

    Runs do not influence each other. ``random`` starts from the run's ``seed``, and the hash seed is
    constant, so a program that asks for no other randomness does the same every time.

    Args:
        drivers: Further drivers: name → source.
        limits: What a run may use, if the run does not say otherwise.
        layers: ``"zygote"`` (fork, Landlock, seccomp, namespaces), ``"container"`` (one for each run; slow),
            or ``"auto"``: the first that works here.

    Raises:
        SandboxUnavailableError: The layer does not work on this machine; the message says why.
        ValueError: There is no such layer, or a driver is called ``script``.
    """

    def __init__(
        self,
        *,
        drivers: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        layers: BackendName = "auto",
    ) -> None:
        self.limits = limits or Limits()
        self._drivers = dict(drivers or {})
        if "script" in self._drivers:
            raise ValueError("a driver may not be called `script`; there is one already")
        self._open: Callable[[], Backend] = lambda: open_backend(self._drivers, layers)
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._standby = Standby()
        self._backend: Backend | None = self._open()
        self.layers: tuple[str, ...] = self._backend.layers
        """The layers of isolation of a run, such as ``("zygote", "namespaces", "landlock", "seccomp")``."""

    def run(
        self,
        driver: str,
        payload: bytes | str,
        *,
        stdin: bytes = b"",
        limits: Limits | None = None,
        seed: int = 0,
        talk: Callable[[Process], None] | None = None,
    ) -> Run:
        """Run a driver to its end.

        If the sandbox fails it is tried once more, with a new zygote if the old one died; if it fails
        again, the outcome is ``REFUSED``.

        Args:
            driver: The name of the driver.
            payload: What it gets; a text is sent as UTF-8.
            stdin: What the program reads on its stdin.
            limits: Instead of the sandbox's own.
            seed: For the module ``random``; of 64 bits.
            talk: Converses with the process before the run is waited for; once for each try.

        Raises:
            ValueError: There is no such driver, or the seed is too large.
        """
        for attempt in range(2):
            try:
                with self.start(driver, payload, stdin=stdin, limits=limits, seed=seed) as process:
                    if talk is not None:
                        talk(process)
                    run = process.wait()
            except (SandboxUnavailableError, OSError) as error:
                run = Run(Outcome.REFUSED, why=str(error))
            if run.outcome is not Outcome.REFUSED or attempt:
                break
        return run

    def start(
        self,
        driver: str,
        payload: bytes | str,
        *,
        stdin: bytes = b"",
        limits: Limits | None = None,
        seed: int = 0,
    ) -> Process:
        """Start a driver, to talk with it by frames; several may run at one time.

        Arguments as for ``run``.

        Raises:
            SandboxUnavailableError: The sandbox could not be restarted.
            RuntimeError: This is a forked copy of the process that made the sandbox, or it is closed.
            ValueError: There is no such driver, or the seed is too large.
        """
        limits = limits or self.limits
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"the seed is {seed}; it must be from 0 to 2**64 - 1")
        if driver != "script" and driver not in self._drivers:
            raise ValueError(f"no driver `{driver}`{did_you_mean(driver, [*self._drivers, 'script'])}")
        if self._owner != os.getpid():
            raise RuntimeError(
                "a sandbox does not outlive a fork of its process; make one in the new process"
            )
        data = payload.encode() if isinstance(payload, str) else payload
        request = Request(driver, limits)
        backend = self._living_backend()
        process = self._standby.take(backend, request, stdin=bool(stdin))
        try:
            process.begin(data, stdin, seed)
            self._standby.refill(backend)
        except BaseException:  # such as a KeyboardInterrupt: nobody else could end it
            process.close()
            raise
        return process

    def close(self) -> None:
        """End the sandbox, with all that runs in it."""
        if self._owner == os.getpid():
            self._drop_backend()
        self._open = _closed

    def _living_backend(self) -> Backend:
        with self._lock:
            if self._backend is not None and not self._backend.alive:
                self._drop_backend()
            if self._backend is None:
                self._backend = self._open()
            return self._backend

    def _drop_backend(self) -> None:
        if self._backend is not None:
            self._standby.dismiss()
            self._backend.close()
            self._backend = None


def _closed() -> Backend:
    raise RuntimeError("this sandbox is closed")
