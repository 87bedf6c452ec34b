"""A wish to end where SIGINT is ignored, as a script's shell has it for jobs in the background."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from art_trainer.commands.serving import Stop
from art_trainer.interrupt import Interruptible, terminated_as_interrupted
from tests.art_trainer.remote.server_helpers import until


@pytest.fixture(autouse=True)
def ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # left as it was found
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_ignored_and_sigterm_waits_for_the_update() -> None:
    def act() -> None:
        with terminated_as_interrupted(), Interruptible() as interruptible:
            with interruptible.shielded():
                signal.raise_signal(signal.SIGINT)
                done.append("Ctrl-C")
            with interruptible.shielded():
                signal.raise_signal(signal.SIGTERM)
                done.append("SIGTERM")
            done.append("never")

    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        act()
    assert done == ["Ctrl-C", "SIGTERM"]


def test_outside_of_an_update_sigterm_ends_it_at_once() -> None:
    def act() -> None:
        with terminated_as_interrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("Ctrl-C")
            signal.raise_signal(signal.SIGTERM)
            done.append("never")

    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        act()
    assert done == ["Ctrl-C"]


@pytest.mark.parametrize("by_request", [False, True])
def test_a_server_hears_sigterm_and_requests(by_request: bool) -> None:
    def act() -> None:
        with stop.heard(), Interruptible():
            signal.raise_signal(signal.SIGINT)
            assert not stop.asked
            if by_request:
                asking.start()
                until(lambda: False)
            signal.raise_signal(signal.SIGTERM)

    stop = Stop()
    asking = threading.Thread(target=stop.ask)
    with pytest.raises(KeyboardInterrupt):
        act()
    assert stop.asked
