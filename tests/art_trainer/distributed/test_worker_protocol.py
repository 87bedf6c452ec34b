"""A worker in a thread and a real server, whose faults a test chooses, with real sockets between them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch

from art_trainer.distributed.protocol import (
    FROM_CLIENT,
    ErrorMessage,
    Hello,
    Lease,
    LeaseRequest,
    ResultReceipt,
    TrainEpisodes,
    UpdateModel,
    Welcome,
    read_message,
)
from art_trainer.distributed.result_log import ResultLog, ResultLogError
from art_trainer.distributed.task_queue import Verdict
from art_trainer.distributed.worker import executor, inference
from art_trainer.distributed.worker.connection import Backoff, RefusedError, ServerChangedError, _handshake
from art_trainer.distributed.worker.worker import Worker
from art_trainer.distributed.worker_connections import WorkerConnection
from art_trainer.errors import ConfigError
from art_trainer.rollout.episodes import rollout_episodes, rollout_groups
from art_trainer.serving.dialects import ServedPolicy
from art_trainer.serving.dialects.router import dialect_router
from art_trainer.types import GroupSpec
from tests.art_trainer.distributed.server_helpers import TOKEN, described, served
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.waiting import until


class GatedEnv(GuessEnv):
    """Waits for the test at every step while the gate is shut."""

    def __init__(self, gate, waiting) -> None:
        super().__init__()
        self.gate, self.waiting = gate, waiting

    def step(self, action):
        if not self.gate.is_set():
            self.waiting.set()
        assert self.gate.wait(300)
        return super().step(action)


class ThreeTurns(GatedEnv):
    """Three turns, whatever is said."""

    def step(self, action):
        super().step(action)
        return "LOW", 0.0, self.turn == 3, False, {}


def versions_of(group):
    """Versions of the weights that sampled."""
    histories = [history for episode in group.episodes for history in episode.histories]
    return {s.policy_version for history in histories for s in history.spans if s.turn is not None}


class Scene:
    """A server, and a worker that runs in a thread."""

    def __init__(self, here) -> None:
        self.here = here
        self.connections = here.server.connections
        self.gate, self.waiting = threading.Event(), threading.Event()
        self.gate.set()
        self.make_env = partial(GatedEnv, self.gate, self.waiting)
        self.options = {"capacity": 4, "token": TOKEN}
        self.worker = None
        self.thread = ThreadPoolExecutor(1)
        self.asked = []
        self.fetched = []
        """Versions of the weights, by each request for their manifest and their file."""
        self.tasks = 0

    def start(self):
        self.worker = Worker(
            self.here.server.url, lambda env, args: self.make_env, self.here.folder / "cache", **self.options
        )
        self.running = self.thread.submit(self.worker.run)
        return self

    def ends(self, kind, words):
        """The worker ends with an error of one line."""
        with pytest.raises(kind, match=words) as error:
            self.running.result(60)
        assert "\n" not in str(error.value)

    def submit(self, size, seed=3):
        self.tasks += 1
        task = GroupSpec(seed, size, (0, self.tasks))
        self.here.queue.submit([task])
        return task

    def wait(self, task):
        (found,) = self.here.queue.wait([task.id], 300)
        return found

    def play(self, size=1, seed=3):
        """Have a group played; it is played as the trainer itself would."""
        task = self.submit(size, seed)
        found = self.wait(task)
        assert versions_of(found) == {self.here.policy.version}
        (expected,) = rollout_groups(self.here.policy, GuessEnv, [task])
        assert [one.turns for one in found.episodes] == [one.turns for one in expected.episodes]
        for mine, own in zip(found.episodes, expected.episodes, strict=True):
            assert mine.histories[0].token_ids == own.histories[0].token_ids
            np.testing.assert_allclose(mine.histories[0].logprobs, own.histories[0].logprobs, atol=1e-6)

    def hold(self, size):
        """Have a group leased and played as far as the gate."""
        self.gate.clear()
        task = self.submit(size)
        assert self.waiting.wait(300)
        until(lambda: self.client.leases == size)
        return task

    def learn(self, version):
        """Make other weights, of which nobody knows yet."""
        with torch.no_grad():
            for parameter in self.here.policy.model.parameters():
                parameter.add_(0.05 * torch.sign(parameter))
        self.here.policy.version = version
        self.here.weights.publish(version)

    def announce(self, version):
        self.here.queue.publish(version)
        self.connections.announce(version)

    def cut(self):
        """Close the worker's connection, whatever it waits for."""
        (line,) = self.connections._connections.values()
        self.connections._call_soon(lambda: line.close(1011, "cut"))
        until(lambda: line not in self.connections._connections.values())

    @property
    def client(self):
        until(lambda: self.connections._clients != {})
        return self.here.server.status().clients[0]

    @property
    def results(self):
        return {name: count for name, count in self.here.server.status().results.items() if count}


def counted(own, calls):
    """A function that keeps its last argument of each call."""
    return lambda *given: calls.append(given[-1]) or own(*given)


@contextmanager
def running(folder, **options):
    """A server whose leases do not expire, and what starts its worker."""
    with served(folder, max_staleness=1, lease_seconds=4, clock=lambda: 0.0, **options) as here:
        scene = Scene(here)
        try:
            yield scene
        finally:
            scene.gate.set()
            if scene.worker is not None:
                scene.worker.stop()
            scene.thread.shutdown()


@pytest.fixture
def scene(tmp_path, monkeypatch):
    with running(tmp_path) as scene:
        here = scene.here
        monkeypatch.setattr(here.weights, "manifest", counted(here.weights.manifest, scene.asked))
        monkeypatch.setattr(here.weights, "path", counted(here.weights.path, scene.fetched))
        yield scene


def test_leases_are_played_as_the_trainer_would_and_sent_once(scene):
    scene.start().play(4, seed=11)
    until(lambda: list(scene.connections._pending_requests.values()) == [4])  # it asks for more
    assert scene.results == {"leased": 4, "accepted": 4}
    assert scene.fetched == [0]


@pytest.mark.parametrize("lost", ["receipt", "connection"])
@pytest.mark.e2e
def test_a_result_without_receipt_is_sent_again(scene, monkeypatch, lost):
    put, dropped = WorkerConnection.put, []

    def lose(self, message):
        if isinstance(message, ResultReceipt) and not dropped:
            dropped.append(message)
            if lost == "connection":
                self.close(1011, "cut")
        else:
            put(self, message)

    monkeypatch.setattr(WorkerConnection, "put", lose)
    scene.start().play(2)
    until(lambda: scene.results.get("duplicate", 0) > 0)
    assert scene.results["accepted"] == 2
    assert len(scene.here.server.status().clients) == 1, "by its secret it is the same one"


def test_a_result_that_the_server_could_not_write_is_sent_again(scene, monkeypatch, caplog):
    append = ResultLog.append

    def full(self, entries):
        monkeypatch.setattr(ResultLog, "append", append)
        raise ResultLogError("the disk is full")

    monkeypatch.setattr(ResultLog, "append", full)
    scene.start().play(2)
    assert scene.results == {"leased": 2, "accepted": 2}
    until(lambda: "not_logged" in (scene.client.last_error or ""))
    told = [record.message for record in caplog.records if record.name.endswith("worker_connections")]
    assert told == ["the disk is full. Training waits for them: make room", "results are written again"]


@pytest.mark.parametrize("asked", ["by a call", "by the server"])
def test_a_worker_that_is_asked_to_stop_returns_its_leases(scene, asked, caplog):
    caplog.set_level("INFO", "art_trainer")
    scene.start().hold(3)
    if asked == "by a call":
        scene.worker.stop("enough")
    else:
        scene.connections.drain("enough")
    until(lambda: scene.results == {"leased": 3, "released": 3})
    scene.gate.set()
    scene.running.result(60)
    assert scene.results == {"leased": 3, "released": 3}
    assert not scene.worker.stuck
    assert any(message.endswith("done: enough") for message in caplog.messages)


def test_leases_that_come_after_the_end_are_returned():
    sent = []
    nothing = inference.Inference(None, None, 2, 0)
    work = executor.LeaseExecutor(sent.append, nothing, capacity=2, backoff=None, name="ann")
    work.close("it is over")
    assert sent == []
    lease = Lease.of("late", "token", GroupSpec(3, 1, (0, 0)), 0, 30.0)
    work.grant(TrainEpisodes(policy_version=0, leases=[lease]))
    release = read_message(FROM_CLIENT, sent[0])
    assert (release.leases, release.reason, release.failed) == (["late"], "it is over", False)


def test_a_worker_that_is_stopped_before_it_begins_ends_at_once(tmp_path):
    worker = Worker("http://127.0.0.1:1", lambda env, args: GuessEnv, tmp_path)
    worker.stop("never mind")
    worker.run()


def test_new_weights_are_fetched_while_the_old_ones_play(scene):
    scene.start().hold(2)
    scene.learn(1)
    scene.announce(1)
    until(lambda: 1 in scene.fetched)
    until(lambda: scene.client.policy_version == 0)
    assert scene.client.leases == 2
    scene.gate.set()
    until(lambda: scene.results.get("accepted") == 2)
    scene.play(2)
    until(lambda: scene.client.policy_version == 1)
    assert scene.fetched == [0, 1]


def test_damaged_weights_are_refused_and_those_from_before_play_on(scene, monkeypatch):
    scene.start().play()
    scene.learn(1)
    own = scene.here.weights.path
    damaged = scene.here.folder / "damaged"
    data = own(1).read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    monkeypatch.setattr(scene.here.weights, "path", lambda version: damaged if version == 1 else own(version))
    scene.connections._call_soon(lambda: scene.connections._broadcast(UpdateModel(policy_version=1)))
    # The server has leases for the old weights still: they are played with these.
    assert versions_of(scene.wait(scene.submit(1))) == {0}
    scene.announce(1)
    task = scene.submit(2)
    until(lambda: scene.results.get("released", 0) >= 2)
    until(lambda: "weights-000001.safetensors is damaged" in (scene.client.last_error or ""))
    monkeypatch.setattr(scene.here.weights, "path", own)
    assert versions_of(scene.wait(task)) == {1}


def test_a_worker_that_can_never_have_the_weights_gives_up(scene, monkeypatch):
    monkeypatch.setattr(executor, "_MAX_WEIGHT_ERRORS", 2)
    damaged = scene.here.folder / "damaged"
    damaged.write_bytes(scene.here.weights.path(0).read_bytes()[:-1])
    monkeypatch.setattr(scene.here.weights, "path", lambda version: damaged)
    scene.submit(1)
    scene.start().ends(RefusedError, "after 2 tries")


def failing(monkeypatch, error, most=0):
    """Let a worker fail that plays more episodes at one time."""

    def play(*arguments, max_concurrent, **options):
        if max_concurrent > most:
            raise error
        return rollout_episodes(*arguments, max_concurrent=max_concurrent, **options)

    monkeypatch.setattr(inference, "rollout_episodes", play)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
def test_out_of_memory_halves_what_is_played_at_one_time(scene, monkeypatch, kind):
    failing(monkeypatch, kind("no room"), most=1)
    scene.options["capacity"] = 16
    scene.start().play(16)  # more halvings than an attempt may fail
    assert scene.results == {"leased": 46, "released": 30, "accepted": 16}
    until(lambda: list(scene.connections._pending_requests.values()) == [1])


def test_a_machine_that_is_too_small_for_one_episode_gives_up(scene, monkeypatch):
    failing(monkeypatch, MemoryError("no room"))
    scene.options["capacity"] = 1
    scene.submit(2)
    scene.start().ends(RefusedError, "memory")
    until(lambda: scene.results["failed"] == 3)  # the server may count the last one after the worker's end


def test_a_fault_of_the_worker_is_reported_before_it_ends(scene, monkeypatch):
    failing(monkeypatch, RuntimeError("a bug"))
    scene.submit(2)
    scene.start().ends(RuntimeError, "a bug")
    until(lambda: scene.results == {"leased": 2, "failed": 2})


@pytest.mark.e2e
def test_a_worker_that_computes_sends_heartbeats(scene, monkeypatch):
    computing, done, renewed = threading.Event(), threading.Event(), []

    def busy(*arguments, **options):
        computing.set()
        while not done.is_set():
            torch.rand(96, 96) @ torch.rand(96, 96)
        return rollout_episodes(*arguments, **options)

    monkeypatch.setattr(inference, "rollout_episodes", busy)
    scene.submit(2)
    scene.start()
    assert computing.wait(300)
    monkeypatch.setattr(scene.here.queue, "renew", counted(scene.here.queue.renew, renewed))
    until(lambda: [len(leases) for leases in renewed[-3:]] == [2, 2, 2])
    assert scene.client.episodes_played == 0
    done.set()
    until(lambda: scene.client.episodes_played == 2)
    assert scene.client.episodes_per_second > 0


def test_leases_that_another_worker_has_meanwhile_get_no_results(scene):
    scene.start().hold(2)
    (name,) = scene.connections._clients
    lost = [lease.lease for lease in scene.here.server.status().leases]
    until(lambda: len(scene.connections._clients[name].last_status.leases) == 2)
    scene.here.queue.release(name, lost, "given to another", failed=False)
    assert len(scene.here.queue.lease("another", 2)) == 2
    scene.asked.clear()
    scene.cut()
    until(lambda: scene.connections._clients[name].last_status.leases == [])  # it has read the welcome
    scene.gate.set()
    scene.play(2)
    assert scene.results == {"leased": 6, "released": 2, "accepted": 2}
    assert scene.asked == [0], "by the same number it may mean other weights"
    assert scene.fetched == [0], "but they are the same"


def test_a_server_that_comes_back_with_other_weights_of_that_version(scene):
    scene.start().play()
    scene.learn(0)  # another past
    scene.cut()
    scene.play(seed=5)


def test_a_server_with_another_run_needs_another_worker(scene):
    scene.start().play()
    scene.connections._run = described(scene.here.policy, env="another/Env-v0")
    scene.cut()
    scene.ends(ServerChangedError, "another run")


class Socket:
    """Gives one answer."""

    def __init__(self, answer) -> None:
        self.answer = answer

    async def send(self, text):
        read_message(FROM_CLIENT, text)

    async def recv(self):
        return self.answer.model_dump_json()


WELCOME = Welcome(
    protocol=2, secret="x", run=described(guess_policy(hidden=16)), policy_version=0, heartbeat_seconds=1.0,
    lease_seconds=1.0, leases=[],
)  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ErrorMessage(code="id_taken", message="another client's", fatal=True), "id_taken"),
        (UpdateModel(policy_version=1), "began with update_model"),
        (LeaseRequest(count=1), "not of protocol version 1"),
        (WELCOME, "speaks version 2"),
    ],
    ids=["id taken", "out of turn", "no server's message", "protocol"],
)
def test_a_server_that_refuses_the_worker_ends_it(answer, words):
    with pytest.raises(RefusedError, match=words):
        asyncio.run(_handshake(Socket(answer), Hello(protocol=1)))


@pytest.mark.parametrize(("what", "words"), [("odd", "turns.0.reward"), ("large", "more than 100")])
def test_an_episode_that_does_not_fit_the_protocol_is_returned(scene, monkeypatch, what, words):
    class Odd(GuessEnv):
        def step(self, action):
            return "x", 1e40, True, False, {"success": True}

    if what == "odd":
        scene.make_env = Odd
    else:
        monkeypatch.setattr(executor, "MAX_MESSAGE_BYTES", 100)
    scene.submit(1)
    scene.start()
    until(lambda: scene.results.get("failed", 0) > 0)
    until(lambda: words in (scene.client.last_error or ""))


def test_a_refused_result_is_dropped_and_reported(scene, monkeypatch):
    monkeypatch.setattr(scene.here.queue, "result", lambda *given: Verdict("late", "taken"))
    scene.submit(1)
    scene.start()
    until(lambda: scene.client.last_error == "a result was not accepted: late (taken)")
    assert (scene.worker._executor.results, scene.worker._executor.leases) == ({}, {})


def test_a_worker_without_a_model_is_refused_by_a_server_without_the_api(scene):
    scene.options["inference"] = "server"
    scene.submit(1)
    scene.start().ends(RefusedError, "samples for no workers")


@pytest.mark.parametrize("past", [0, 1])
def test_a_server_that_samples_ends_episodes_with_the_weights_they_began_with_if_it_may(tmp_path, past):
    policy = guess_policy(hidden=16)
    with (
        ServedPolicy(policy, past_versions=past) as sampler,
        running(tmp_path, policy=policy, routers=[dialect_router(sampler)]) as scene,
    ):
        scene.options["inference"] = "server"
        scene.make_env = partial(ThreeTurns, scene.gate, scene.waiting)
        task = scene.start().hold(4)
        scene.learn(1)
        sampler.update(1)
        scene.announce(1)
        scene.gate.set()
        found = scene.wait(task)
        assert [len(episode.turns) for episode in found.episodes] == [3] * 4
        replayed = scene.results.get("released", 0) + scene.results.get("failed", 0)
        assert (versions_of(found), replayed) == (({0}, 0) if past else ({1}, 4))
        assert versions_of(scene.wait(scene.submit(4))) == {1}
    kept = {file.stat().st_size for file in (tmp_path / "cache" / "files").iterdir()}
    assert max(kept) < 10_000, "no weights were fetched"


@pytest.mark.parametrize(
    ("url", "capacity", "words"),
    [
        ("127.0.0.1:8000", 1, "address"),
        ("ftp://host", 1, "address"),
        ("http://host/path", 1, "address"),
        ("http://me:secret@host", 1, "address holds no secret"),
        ("http://host?t=secret", 1, "address holds no secret"),
        ("http://host", 0, "capacity"),
        ("http://host", 1025, "capacity"),
    ],
)
def test_an_invalid_address_or_capacity_is_refused_at_once(tmp_path, url, capacity, words):
    with pytest.raises(ConfigError, match=words) as wrong:
        Worker(url, lambda env, args: GuessEnv, tmp_path, capacity=capacity)
    assert "secret@" not in str(wrong.value)
    assert "t=" not in str(wrong.value)


def test_pauses_grow_to_a_bound_and_differ_between_workers():
    one, two, other = (Backoff(np.random.default_rng(seed)) for seed in (0, 0, 1))
    pauses = [one.seconds(attempt) for attempt in range(1, 100)]
    assert pauses == [two.seconds(attempt) for attempt in range(1, 100)]
    assert pauses != [other.seconds(attempt) for attempt in range(1, 100)]
    for attempt, pause in enumerate(pauses):
        whole = min(30.0, 0.5 * 2.0**attempt)
        assert 0.5 * whole <= pause <= whole
