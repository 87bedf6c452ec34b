"""Signal handling: Ctrl-C and SIGTERM that do not interrupt an update."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
_SLICE = 0.5


def first_completed(futures: Collection[Future[T]]) -> list[Future[T]]:
    """Wait until at least one of some futures is done, and return those that are, in their order.

    In slices: a Ctrl-C that arrives in the instant before a wait begins does not end it.
    """
    finished: set[Future[T]] = set()
    while futures and not finished:
        finished = wait(futures, timeout=_SLICE, return_when=FIRST_COMPLETED).done
    return [future for future in futures if future in finished]


class _IgnoreUntilEnabled:
    """SIGINT's handler if the signal was ignored: ignores it too, until it is enabled."""

    def __init__(self) -> None:
        self.enabled = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.enabled:
            signal.default_int_handler(number, frame)


class StopRequest:
    """Ends a run as Ctrl-C would, on SIGTERM or when :meth:`request` is called.

    Attributes:
        requested: Whether the run was asked to end.
        then: Called at once, before the run gets to its end.
    """

    def __init__(self) -> None:
        self.requested = False
        self.then: Callable[[], None] = lambda: None
        self._first = threading.Lock()
        self._handler = _IgnoreUntilEnabled()

    def request(self) -> None:
        """End the run at the next moment at which no update is half done; any thread may call it.

        Further calls do nothing: a second Ctrl-C would end the run at once, without a checkpoint.
        """
        if not self._first.acquire(blocking=False):  # never released; a signal handler may not wait for it
            return
        self.requested = True
        self.then()
        self._handler.enabled = True
        _thread.interrupt_main()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within, SIGTERM is a request too, and requests work even if Ctrl-C is ignored.

        A script's shell has background jobs ignore SIGINT: Ctrl-C is not for them, but SIGTERM is. Outside of
        the main thread, and in a program with its own way to handle SIGTERM, that signal is left alone.
        """
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
                before[signal.SIGINT] = signal.signal(signal.SIGINT, self._handler)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                before[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda *_: self.request())
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def sigterm_as_sigint() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: schedulers and launchers end a run with it.

    It counts once: a launcher passes on to each process what the whole group got already, and that is no
    second request to end.
    """
    with StopRequest().listening():
        yield


class Interruptible:
    """Decides while entered when Ctrl-C becomes a ``KeyboardInterrupt``: now, or after a deferring block.

    Does nothing outside of the main thread: signals never arrive there.

    Attributes:
        forced: Whether a second Ctrl-C interrupted a deferring block.
    """

    def __init__(self) -> None:
        self.forced = False
        self._deferred = False
        self._pending = False
        self._raised = False
        self._previous: Any = None
        self._installed = False

    def __enter__(self) -> Self:
        # A program that handles or ignores the signal in its own way continues to do so.
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and (
            handler is signal.default_int_handler or isinstance(handler, _IgnoreUntilEnabled)
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
    def defer_sigint(self) -> Iterator[None]:
        """Let a block finish; a Ctrl-C that came meanwhile is raised after it."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        self._raise_interrupt()

    @contextmanager
    def allow_sigint(self) -> Iterator[None]:
        """Within :meth:`defer_sigint`, let Ctrl-C through again; also one that has come meanwhile."""
        deferred, self._deferred = self._deferred, False
        try:
            self._raise_interrupt()
            yield
            self._raise_interrupt()
        finally:
            self._deferred = deferred

    def _raise_interrupt(self) -> None:
        """Raise what was deferred, or what Python dropped.

        An exception is dropped if the signal comes while ``__del__`` or a weak reference's callback runs.
        """
        if self._pending or self._raised:
            self._pending = self._raised = False
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if isinstance(self._previous, _IgnoreUntilEnabled) and not self._previous.enabled:
            return
        if self._deferred and not self._pending:
            self._pending = True
            return
        self.forced = self._deferred
        self._raised = True
        raise KeyboardInterrupt
