"""Requests to end if SIGINT is ignored, as a shell script has it for background jobs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from art_trainer.signals import Interruptible, StopRequest, sigterm_as_sigint
from tests.art_trainer.waiting import until


@pytest.fixture(autouse=True)
def ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # left as it was found
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_ignored_and_sigterm_waits_for_the_update() -> None:
    def act() -> None:
        with sigterm_as_sigint(), Interruptible() as interruptible:
            with interruptible.defer_sigint():
                signal.raise_signal(signal.SIGINT)
                done.append("Ctrl-C")
            with interruptible.defer_sigint():
                signal.raise_signal(signal.SIGTERM)
                done.append("SIGTERM")
            done.append("never")

    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        act()
    assert done == ["Ctrl-C", "SIGTERM"]


def test_outside_of_an_update_sigterm_ends_it_at_once() -> None:
    def act() -> None:
        with sigterm_as_sigint():
            signal.raise_signal(signal.SIGINT)
            done.append("Ctrl-C")
            signal.raise_signal(signal.SIGTERM)
            done.append("never")

    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        act()
    assert done == ["Ctrl-C"]


@pytest.mark.parametrize("by_request", [False, True])
def test_a_stop_request_ends_the_run_although_sigint_is_ignored(by_request: bool) -> None:
    def act() -> None:
        with stop.listening(), Interruptible():
            signal.raise_signal(signal.SIGINT)
            assert not stop.requested
            if by_request:
                asking.start()
                until(lambda: False)
            signal.raise_signal(signal.SIGTERM)

    stop = StopRequest()
    asking = threading.Thread(target=stop.request)
    with pytest.raises(KeyboardInterrupt):
        act()
    assert stop.requested
