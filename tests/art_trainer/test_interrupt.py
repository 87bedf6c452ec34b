"""Ctrl-C, SIGTERM and requests to end: what interrupts at once, what waits, what is ignored."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from signal import SIGINT, SIGTERM
from typing import Any

import pytest

from art_trainer.signals import Interruptible, StopRequest, sigterm_as_sigint
from tests.art_trainer.waiting import until


@contextlib.contextmanager
def handler_of_sigint(handler: Any) -> Iterator[None]:
    """Begin with a handler; all must be left as it was found."""
    before = signal.signal(SIGINT, handler)
    yield
    assert signal.signal(SIGINT, before) is handler
    assert signal.getsignal(SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("ignored", "in_update", "signals", "survived"),
    [
        (False, False, [SIGINT], 0),
        (False, True, [SIGINT, SIGINT], 1),  # a second Ctrl-C does not wait
        (False, True, [SIGTERM, SIGTERM], 2),  # a launcher passes on what the process got already
        # A shell script has background jobs ignore SIGINT.
        (True, False, [SIGINT, SIGTERM], 1),
        (True, True, [SIGINT, SIGINT, SIGTERM], 3),
    ],
)
def test_a_signal_interrupts_at_once_or_after_the_update(
    ignored: bool, in_update: bool, signals: Sequence[signal.Signals], survived: int
) -> None:
    def act() -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(sigterm_as_sigint())
            if in_update:
                stack.enter_context(stack.enter_context(Interruptible()).defer_sigint())
            for number in signals:
                signal.raise_signal(number)
                passed.append(number)

    passed: list[signal.Signals] = []
    with handler_of_sigint(signal.SIG_IGN if ignored else signal.default_int_handler):
        with pytest.raises(KeyboardInterrupt):
            act()
        assert len(passed) == survived


@pytest.mark.parametrize("by_request", [False, True])
def test_a_stop_request_ends_the_run_although_sigint_is_ignored(by_request: bool) -> None:
    def act() -> None:
        with stop.listening(), Interruptible():
            signal.raise_signal(SIGINT)
            assert not stop.requested
            if by_request:
                asking.start()
                until(lambda: False)
            signal.raise_signal(SIGTERM)

    stop = StopRequest()
    asking = threading.Thread(target=stop.request)
    with handler_of_sigint(signal.SIG_IGN), pytest.raises(KeyboardInterrupt):
        act()
    assert stop.requested


# Python prints an exception raised in ``__del__`` and drops it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_is_raised_after_the_block() -> None:
    class Collected:
        def __del__(self) -> None:
            signal.raise_signal(SIGINT)

    def act() -> None:
        with Interruptible() as interruptible, interruptible.defer_sigint():
            with interruptible.allow_sigint():
                Collected()
                reached.append("the block's end")
            reached.append("beyond")

    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        act()
    assert reached == ["the block's end"]


def test_in_another_thread_signals_are_left_alone() -> None:
    def run() -> None:
        with Interruptible() as interruptible, interruptible.defer_sigint():
            found.append(signal.getsignal(SIGINT))

    found: list[Any] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
