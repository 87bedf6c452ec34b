"""Ctrl-C that does not cut an update in half."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
_SLICE = 0.5


def first_completed(futures: Collection[Future[T]]) -> set[Future[T]]:
    """Wait until at least one of some futures is done, and return those that are.

    In slices: a Ctrl-C that arrives in the instant before a wait begins does not end it.
    """
    while True:
        finished, _ = wait(futures, timeout=_SLICE, return_when=FIRST_COMPLETED)
        if finished:
            return finished


class _Unheard:
    """SIGINT's handler where the signal was ignored: ignores it too, until the end is asked for."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        """From now on do what Python does by default."""
        self.asked = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            signal.default_int_handler(number, frame)


@contextmanager
def wish_gets_through() -> Iterator[Callable[[], None]]:
    """Within, a wish to end that is passed on as SIGINT is heard although SIGINT is ignored.

    So it is in jobs that a script's shell begins in the background: Ctrl-C is not for them, but SIGTERM is.
    In a thread that is not the main one it does nothing.

    Yields:
        What to call before the signal is raised; any thread may.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    ):
        yield lambda: None
        return
    unheard = _Unheard()
    signal.signal(signal.SIGINT, unheard)
    try:
        yield unheard.ask
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Within, SIGTERM does what Ctrl-C does: it is how schedulers and launchers ask a run to end.

    It counts once: a launcher hands on to each process what the whole group got already, and that is no
    second wish to end. In a thread that is not the main one, and in a program with its own way to handle the
    signal, it does nothing.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    asked = False
    with wish_gets_through() as ask:

        def hear(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            if not asked:
                asked = True
                ask()
                signal.raise_signal(signal.SIGINT)

        signal.signal(signal.SIGTERM, hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Interruptible:
    """While entered, decides when Ctrl-C becomes a ``KeyboardInterrupt``: now, or after a shielded block.

    In a thread that is not the main one it does nothing: signals never arrive there.

    Attributes:
        forced: Whether a second Ctrl-C broke through a shield.
    """

    def __init__(self) -> None:
        self.forced = False
        self._shielded = False
        self._pending = False
        self._previous: Any = None
        self._installed = False

    def __enter__(self) -> Self:
        # A program that handles or ignores the signal in its own way goes on to do so.
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and (
            handler is signal.default_int_handler or isinstance(handler, _Unheard)
        ):
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)
            self._installed = False

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Let a block finish; a Ctrl-C that came meanwhile is raised after it."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    @contextmanager
    def exposed(self) -> Iterator[None]:
        """Within a shielded block, let Ctrl-C through again; also one that has come meanwhile."""
        shielded, self._shielded = self._shielded, False
        try:
            if self._pending:
                self._pending = False
                raise KeyboardInterrupt
            yield
        finally:
            self._shielded = shielded

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if isinstance(self._previous, _Unheard) and not self._previous.asked:
            return
        if self._shielded and not self._pending:
            self._pending = True
            return
        self.forced = self._shielded
        raise KeyboardInterrupt
