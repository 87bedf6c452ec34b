"""The sandbox: one worker, or a pool of them."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from art_gym.envs.coding.sandbox.backends import Backend, Layers, open_backend
from art_gym.envs.coding.sandbox.errors import SandboxUnavailable
from art_gym.envs.coding.sandbox.limits import Limits, Outcome, Run
from art_gym.envs.coding.sandbox.process import Process
from art_gym.envs.coding.sandbox.request import Request
from art_gym.envs.coding.sandbox.standby import Standby
from art_gym.errors import did_you_mean


class Sandbox:
    """Runs programs that nobody trusts, one process each, so that they reach nothing but their pipes.

    The code that a run begins with is a *driver*: a text of ours, given here by name, that ends with a
    statement such as ``main(channel, payload)``. What comes before it (imports, functions) is executed once,
    when the sandbox starts; that last statement in every run, after the lockdown. ``payload`` is the bytes
    given to ``run``, and ``channel`` talks to the parent: ``read_frame() -> bytes``, ``write_frame(bytes)``,
    ``close()``. A driver imports only the standard library. The driver ``script`` is always there: its
    payload is the text of a program, which it runs as ``__main__``.

    Nothing that a driver holds is safe from the program that it runs, and nothing that comes from the channel
    is known to be the driver's: expected answers stay in the parent, and so does the verdict.

    Threads may share a sandbox, and several runs may go on in it at one time.

    One run leaves no trace for the next. ``random`` starts from the run's ``seed``, and the hash seed is
    constant, so a program that asks for no other randomness does the same every time.

    Args:
        drivers: Further drivers: name → source.
        limits: What a run may use, where the run does not say otherwise.
        layers: ``"zygote"`` (fork, Landlock, seccomp, namespaces; fast), ``"bubblewrap"`` or ``"container"``
            (a fresh interpreter for each run), or ``"auto"``: the first of these that holds here.
        packages: Installed packages that programs may import besides the standard library.
        unsafe_without_isolation: With ``layers="auto"``, where no layer holds: run programs with nothing
            around them but limits. They can then read your files, use the network, and cheat any judge.

    Raises:
        SandboxUnavailable: No such layer holds on this machine; the message says why.
        ValueError: There is no such layer, or a driver is called ``script``.
    """

    def __init__(
        self,
        *,
        drivers: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        layers: Layers = "auto",
        packages: Sequence[str] = ("numpy",),
        unsafe_without_isolation: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self._drivers = dict(drivers or {})
        if "script" in self._drivers:
            raise ValueError("a driver may not be called `script`; there is one already")
        self._open: Callable[[], Backend] = lambda: open_backend(
            self._drivers, layers, packages, unsafe=unsafe_without_isolation
        )
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._standby = Standby()
        self._backend: Backend | None = self._open()
        self.layers: tuple[str, ...] = self._backend.layers
        """What stands around a run here, such as ``("zygote", "namespaces", "landlock", "seccomp")``."""

    def run(
        self,
        driver: str,
        payload: bytes | str,
        *,
        stdin: bytes = b"",
        limits: Limits | None = None,
        seed: int = 0,
    ) -> Run:
        """Run a driver to its end.

        Where the sandbox fails it is tried once more, with a new zygote if the old one died; if it fails
        again, the outcome is ``REFUSED``.

        Args:
            driver: The name of the driver.
            payload: What it gets; a text is sent as UTF-8.
            stdin: What the program reads on its stdin.
            limits: Instead of the sandbox's own.
            seed: For the module ``random``; of 64 bits.

        Raises:
            ValueError: There is no such driver, or the seed is too large.
        """
        for attempt in range(2):
            try:
                run = self.start(driver, payload, stdin=stdin, limits=limits, seed=seed).wait()
            except (SandboxUnavailable, OSError) as error:
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
            SandboxUnavailable: The sandbox could not be mended.
            RuntimeError: This is a forked copy of the process that made the sandbox, or it is closed.
            ValueError: There is no such driver.
        """
        limits = limits or self.limits
        if driver != "script" and driver not in self._drivers:
            raise ValueError(f"no driver `{driver}`{did_you_mean(driver, [*self._drivers, 'script'])}")
        if self._owner != os.getpid():
            raise RuntimeError(
                "a sandbox does not outlive a fork of its process; make one in the new process"
            )
        data = payload.encode() if isinstance(payload, str) else payload
        request = Request(driver, limits, seed)
        backend = self._living_backend()
        process = self._standby.take(backend, request, stdin=bool(stdin))
        process.begin(data, stdin)
        self._standby.refill(backend)
        return process

    def close(self) -> None:
        """End the sandbox, with all that runs in it."""
        if self._owner == os.getpid():
            self._drop_backend()
        self._open = _closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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


class SandboxPool:
    """Several sandboxes that work at the same time, for any number of threads.

    Args:
        workers: How many; more than there are processors only helps programs that wait.
        **arguments: As for ``Sandbox``.
    """

    def __init__(self, workers: int | None = None, **arguments: object) -> None:
        workers = workers or len(os.sched_getaffinity(0))
        self._all: list[Sandbox] = []
        self._idle: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()
        try:
            for _ in range(workers):
                self._all.append(Sandbox(**arguments))  # type: ignore[arg-type]  # as Sandbox checks them
                self._idle.put(self._all[-1])
        except BaseException:
            self.close()
            raise
        self.layers = self._all[0].layers
        """What stands around a run here."""

    def run(
        self,
        driver: str,
        payload: bytes | str,
        *,
        stdin: bytes = b"",
        limits: Limits | None = None,
        seed: int = 0,
    ) -> Run:
        """Run a driver in the next sandbox that has nothing to do; see ``Sandbox.run``."""
        sandbox = self._idle.get()
        try:
            return sandbox.run(driver, payload, stdin=stdin, limits=limits, seed=seed)
        finally:
            self._idle.put(sandbox)

    def map(self, driver: str, payloads: Iterable[bytes | str], *, limits: Limits | None = None) -> list[Run]:
        """Run a driver for each payload, as many at a time as there are workers; results in order."""
        with ThreadPoolExecutor(len(self._all)) as threads:
            return list(threads.map(lambda payload: self.run(driver, payload, limits=limits), payloads))

    def close(self) -> None:
        """End all sandboxes."""
        for sandbox in self._all:
            sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
