"""A server that is asked to end twice, and one that ends when nobody asked: nothing is lost or waited for."""

import os
import signal
import threading
from pathlib import Path

import pytest

from art_trainer.commands import serving
from art_trainer.commands.serving import Stop
from art_trainer.config import GRPOConfig
from art_trainer.errors import EngineError
from art_trainer.remote.backend import RemoteBackend
from tests.art_trainer.guess import guess_policy
from tests.art_trainer.remote.server_helpers import task, until


def test_who_asks_twice_does_not_cut_the_checkpoint_off(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts: list[str] = []
    told: list[str] = []
    monkeypatch.setattr(serving._thread, "interrupt_main", lambda: interrupts.append("now"))
    stop = Stop()
    stop.then = lambda: told.append("workers")
    with stop.heard():
        requests = [threading.Thread(target=stop.ask) for _ in range(4)]
        for request in requests:
            request.start()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        for request in requests:
            request.join(20)
        until(lambda: stop.asked)
    assert (interrupts, told) == (["now"], ["workers"])


@pytest.fixture
def backend(tmp_path: Path):
    policy = guess_policy(0, hidden=16)
    backend = RemoteBackend(policy, "guess", {}, GRPOConfig(output_dir=str(tmp_path)), tmp_path)
    backend.publish(policy.version)
    yield backend
    backend.close()


def test_a_server_whose_thread_has_ended_is_not_waited_for(backend: RemoteBackend) -> None:
    backend.server._thread._server.should_exit = True
    with pytest.raises(EngineError, match=r"has stopped \(its thread has ended\): resume the run"):
        backend.collect([task(0)], on_episode=lambda episode: None)


def test_a_server_that_watches_its_leases_no_more_is_not_waited_for(
    backend: RemoteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> list[str]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(backend._ledger, "expire", broken)
    with pytest.raises(EngineError, match=r"has stopped \(ZeroDivisionError: a bug\)"):
        backend.collect([task(0)], on_episode=lambda episode: None)
