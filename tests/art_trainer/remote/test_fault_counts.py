"""What goes wrong between workers and a server, one fault at a time: in the end each attempt counts once.

Faults of whole processes (kill -9, SIGSTOP, SIGTERM, a slow worker, no server) are in test_worker_faults;
full disks in test_journal and test_checkpoint_disk_full; a server that comes back in test_server_training.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from websockets.exceptions import ConnectionClosed

from art_trainer.config import GRPOConfig
from art_trainer.errors import EngineError
from art_trainer.remote import player, weights
from art_trainer.remote.backend import RemoteBackend
from art_trainer.remote.limits import Limits
from art_trainer.remote.worker import Worker
from art_trainer.rollout import rollout
from art_trainer.starts import GroupTask
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.remote.server_helpers import Served, Wire, played, served, task

Leases = list[dict[str, Any]]
LARGEST = 100_000


class Scene:
    """A server, the clock of its leases, and a worker that holds both attempts of a group."""

    def __init__(self, here: Served, worker: Wire, now: list[float]) -> None:
        self.here, self.worker, self.now = here, worker, now
        self.leases = worker.lease(2)

    def come_again(self, **hello: Any) -> Any:
        names = [lease["lease"] for lease in self.leases]
        return self.here.worker("a", **{"secret": self.worker.welcome["secret"], "leases": names, **hello})

    def outcomes(self, worker: Wire | None = None, **changes: Any) -> list[str]:
        return [str((worker or self.worker).play(lease, **changes)["outcome"]) for lease in self.leases]

    def say_badly(self, text: str) -> None:
        self.worker.socket.send(text)
        assert self.worker.hear()["code"] == "malformed"


def duplicate(scene: Scene) -> None:
    assert scene.outcomes() == ["accepted"] * 2
    assert scene.outcomes() == ["duplicate"] * 2


def late(scene: Scene) -> None:
    scene.now[0] += 1000.0
    scene.here.ledger.expire()
    with scene.here.worker("b") as other:
        for lease in other.lease(2):
            assert other.play(lease)["outcome"] == "accepted"
    assert scene.outcomes() == ["late"] * 2


def forged(scene: Scene) -> None:
    assert scene.outcomes(token="guessed") == ["forged"] * 2


def malformed(scene: Scene) -> None:
    scene.say_badly('{"type": "reboot"}')


def nested(scene: Scene) -> None:
    deep = "[" * 5000 + "]" * 5000
    scene.say_badly(json.dumps(played(scene.leases[0])).replace('"facts": {}', f'"facts": {{"a": {deep}}}'))


def not_a_number(scene: Scene) -> None:
    for odd in ("NaN", "Infinity", "1e999"):
        scene.say_badly(json.dumps(played(scene.leases[0])).replace('"reward": 1.0', f'"reward": {odd}'))


def oversized(scene: Scene) -> None:
    scene.worker.socket.send(json.dumps(played(scene.leases[0], more="x" * LARGEST)))
    with pytest.raises(ConnectionClosed):
        scene.worker.hear()
    with scene.come_again() as again:
        assert scene.outcomes(again) == ["accepted"] * 2


def reconnecting(scene: Scene) -> None:
    scene.worker.socket.socket.close()
    with scene.come_again() as again:
        assert len(again.welcome["leases"]) == 2
        assert scene.outcomes(again) == ["accepted"] * 2


def takeover(scene: Scene) -> None:
    with scene.come_again(secret="guessed") as thief:
        assert thief.welcome["code"] == "id_taken"


def another_version(scene: Scene) -> None:
    with scene.come_again(protocol=2) as other:
        assert other.welcome["code"] == "wrong_protocol"


def clocks_apart(scene: Scene) -> None:
    """The worker's clock stands in 1970, the server's jumps by years; leases go by neither."""
    wall = time.time
    with pytest.MonkeyPatch.context() as patch:
        for years in (30, -30):
            patch.setattr(time, "time", lambda years=years: wall() + years * 31_557_600)
            scene.here.ledger.expire()
        timing = {"started": 0.0, "turns": [[0.5, None]]}
        assert scene.outcomes(timing=timing) == ["accepted"] * 2


@pytest.mark.parametrize(
    ("fault", "counts"),
    [
        (duplicate, {"duplicate": 2}),
        (late, {"leased": 4, "expired": 2, "late": 2}),
        (forged, {"forged": 2}),
        (malformed, {"malformed": 1}),
        (nested, {"malformed": 1}),
        (not_a_number, {"malformed": 3}),
        (oversized, {}),
        (reconnecting, {}),
        (takeover, {}),
        (another_version, {}),
        (clocks_apart, {}),
    ],
)
def test_a_fault_is_counted_and_each_attempt_counts_once(
    tmp_path: Path, fault: Callable[[Scene], None], counts: dict[str, int]
) -> None:
    now = [0.0]
    limits = Limits(message_bytes=LARGEST)
    with served(tmp_path, clock=lambda: now[0], limits=limits) as here, here.worker("a") as worker:
        here.ledger.submit([task(0)])
        scene = Scene(here, worker, now)
        fault(scene)
        if here.ledger.status().queue.leased:
            assert scene.outcomes() == ["accepted"] * 2
        (group,) = here.ledger.wait([task(0).id], 20)
        assert len(group.episodes) == 2
        found = {name: count for name, count in here.server.status().results.items() if count}
        assert found == {"leased": 2, "accepted": 2, **counts}
        assert {client.id for client in here.server.status().clients} <= {"a", "b"}


@contextmanager
def training(folder: Path, capacity: int) -> Iterator[tuple[RemoteBackend, Callable[[], Any]]]:
    """A backend that has published version 0, and what begins a worker."""
    policy = guess_policy(hidden=16)
    backend = RemoteBackend(policy, "toy", {}, GRPOConfig(max_completion_length=2), folder / "run")
    backend.publish(0)
    worker = Worker(
        backend.url, lambda name, args: GuessEnv, folder / "cache", capacity=capacity, say=lambda words: None
    )
    thread = threading.Thread(target=worker.run, daemon=True)
    try:
        yield backend, thread.start
    finally:
        backend.close()
        thread.join(60)
        assert not thread.is_alive()


def test_a_worker_out_of_memory_gives_back_and_plays_half_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, max_concurrent: int, **options: Any) -> Any:
        if max_concurrent > 2:
            raise torch.OutOfMemoryError("no room")
        return rollout(*arguments, max_concurrent=max_concurrent, **options)

    monkeypatch.setattr(player, "rollout", full)
    tasks = [GroupTask(seed, 4, (0, seed)) for seed in range(2)]
    with training(tmp_path, capacity=4) as (backend, begin):
        begin()
        groups = backend.collect(tasks, on_episode=lambda episode: None)
        found = {name: count for name, count in backend.status().results.items() if count}
    assert all(group.whole for group in groups)
    assert found == {"leased": 12, "failed": 4, "accepted": 8}


def test_a_push_of_weights_that_is_torn_is_seen_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(tensors: Any, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    tasks = [GroupTask(seed, 4, (0, seed)) for seed in range(2)]
    with training(tmp_path, capacity=8) as (backend, begin):
        whole = list((tmp_path / "run" / "weights").glob("*weights-*"))
        with monkeypatch.context() as patch:
            patch.setattr(weights, "save_file", torn)
            with pytest.raises(EngineError, match="version 1 cannot be published"):
                backend.publish(1)
        assert list((tmp_path / "run" / "weights").glob("*weights-*")) == whole
        begin()
        groups = backend.collect(tasks, on_episode=lambda episode: None)
        found = {name: count for name, count in backend.status().results.items() if count}
        assert backend.status().policy_version == 0
    spans = [s for g in groups for e in g.episodes for h in e.histories for s in h.spans]
    assert {span.policy_version for span in spans} == {0}
    assert found == {"leased": 8, "accepted": 8}
