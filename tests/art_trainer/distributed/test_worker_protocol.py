"""A worker in a thread, a server that a test scripts, real sockets between them."""

from __future__ import annotations

import asyncio
import stat
import threading
from functools import partial

import numpy as np
import pytest
import torch

from art_trainer.distributed.protocol import (
    EpisodeResult,
    ErrorMessage,
    Lease,
    LeaseRequest,
    ReleaseLeases,
    ResultReceipt,
    Shutdown,
    StatusUpdate,
    TrainEpisodes,
    UpdateModel,
    Welcome,
    read_client_message,
)
from art_trainer.distributed.weights import WeightStore
from art_trainer.distributed.worker import executor, inference
from art_trainer.distributed.worker.connection import Backoff, RefusedError, ServerChangedError
from art_trainer.distributed.worker.worker import Worker
from art_trainer.errors import ConfigError
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.types import EpisodeSpec, GroupSpec
from tests.art_trainer.distributed.fake_server import FakeServer, described, eventually
from tests.art_trainer.guess import GuessEnv, guess_policy

pytestmark = pytest.mark.anyio


class GatedEnv(GuessEnv):
    """Waits for the test at every step while the gate is shut."""

    def __init__(self, gate, waiting) -> None:
        super().__init__()
        self.gate, self.waiting = gate, waiting

    def step(self, action):
        if not self.gate.is_set():
            self.waiting.set()
        assert self.gate.wait(60)
        return super().step(action)


class Scene:
    """A server that a test scripts, and a worker that runs in a thread."""

    def __init__(self, tmp_path) -> None:
        self.policy = guess_policy(hidden=16)
        self.server = FakeServer(WeightStore(tmp_path / "weights", self.policy), described(self.policy))
        self.server.store.publish(0)
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.make_env = partial(GatedEnv, self.gate, self.waiting)
        self.options = {"capacity": 4}
        self.cache = tmp_path / "cache"
        self.worker: Worker
        self.running: asyncio.Future[None]

    async def begin(self):
        """Start the worker; its first connection."""
        self.start()
        return await self.server.line()

    def start(self):
        self.worker = Worker(self.server.url, lambda env, args: self.make_env, self.cache, **self.options)
        self.running = asyncio.get_running_loop().run_in_executor(None, self.worker.run)

    async def done(self, kind=None, words=""):
        async with asyncio.timeout(60):
            if kind is None:
                return await asyncio.shield(self.running)
            with pytest.raises(kind, match=words) as error:
                await asyncio.shield(self.running)
            assert "\n" not in str(error.value)

    async def lease(self, line, count=1, **options):
        """Wait for a request, and grant leases of one group."""
        request = await line.hear(LeaseRequest)
        granted = self.server.leases(count, **options)
        await line.say(granted)
        return request, [lease.lease for lease in granted.leases]

    async def hold(self, line, count):
        """Grant leases, and wait until they are played as far as the gate."""
        self.gate.clear()
        _, names = await self.lease(line, count)
        await asyncio.to_thread(self.waiting.wait, 60)
        return names

    def learn(self, version):
        with torch.no_grad():
            for parameter in self.policy.model.parameters():
                parameter.add_(0.05 * torch.sign(parameter))
        self.policy.version = version
        return self.server.store.publish(version)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def scene(tmp_path, anyio_backend):
    scene = Scene(tmp_path)
    async with scene.server.running():
        yield scene
        scene.gate.set()
        scene.worker.stop()
        await asyncio.wait([scene.running])


async def receipts(line, count, outcome="accepted"):
    """Take results, and acknowledge each."""
    results = []
    for _ in range(count):
        result = await line.hear(EpisodeResult)
        await line.say(ResultReceipt(lease=result.lease, outcome=outcome))
        results.append(result)
    return results


def versions(result):
    return {span.version for history in result.episode.histories for span in history}


def same(scene, results, seed, rng_seed):
    """Check that episodes were played as the trainer itself would have played them."""
    starts = [EpisodeSpec(seed, None, 0, (*rng_seed, member)) for member in range(len(results))]
    for result, expected in zip(results, rollout_episodes(scene.policy, GuessEnv, starts), strict=True):
        found = result.episode.episode()
        assert found.turns == expected.turns
        assert len(result.timing.turns) == len(expected.turns)
        for mine, theirs in zip(found.histories, expected.histories, strict=True):
            assert mine.token_ids == theirs.token_ids
            np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-6)


async def test_leases_are_played_as_the_trainer_would_and_sent_once(scene):
    line = await scene.begin()
    assert line.hello.secret is None
    request, names = await scene.lease(line, 4, seed=11)
    assert request.count == 4
    results = {result.lease: result for result in await receipts(line, 4)}
    assert (await line.hear(LeaseRequest)).count == 4, "and it asks for more"
    same(scene, [results[name] for name in names], 11, (0, 0))
    assert [results[name].token for name in names] == [f"token-{member}" for member in range(4)]
    assert [path for path in scene.server.asked if "/data" in path] == ["/weights/0/data"]


async def test_a_result_without_receipt_is_sent_again_on_the_next_connection(scene):
    scene.server.lease_seconds = 1000.0  # so long it would not be sent again on the same one
    line = await scene.begin()
    await scene.lease(line, 2)
    first = await receipts(line, 1)
    second = await line.hear(EpisodeResult)
    scene.server.known = {second.lease}
    line.cut()
    again = await scene.server.line()
    assert again.client_id == line.client_id
    assert (again.hello.secret, again.hello.leases) == ("the-secret", [second.lease])
    assert await again.hear(EpisodeResult) == second
    await again.say(ResultReceipt(lease=second.lease, outcome="accepted"))
    await again.hear(StatusUpdate, lambda status: status.leases == [])
    sent = [m.lease for m in line.heard + again.heard if isinstance(m, EpisodeResult)]
    assert sorted(sent) == sorted([first[0].lease, second.lease, second.lease])


async def test_a_result_that_the_server_could_not_write_is_sent_again(scene):
    scene.server.lease_seconds = 1.0
    line = await scene.begin()
    await scene.lease(line)
    result = await line.hear(EpisodeResult)
    await line.say(ErrorMessage(code="not_logged", message="the disk is full"))
    assert await line.hear(EpisodeResult) == result, "on this connection, after a while"
    await line.socket.close(1013)
    again = await scene.server.line()
    assert await again.hear(EpisodeResult) == result
    await again.say(ResultReceipt(lease=result.lease, outcome="accepted"))
    assert "not_logged" in (await again.hear(StatusUpdate)).last_error


@pytest.mark.parametrize("asked", ["by a call", "by the server"])
async def test_a_worker_that_is_asked_to_stop_returns_its_leases(scene, asked, caplog):
    caplog.set_level("INFO", "art_trainer")
    line = await scene.begin()
    names = await scene.hold(line, 3)
    if asked == "by a call":
        scene.worker.stop("enough")
    else:
        await line.say(Shutdown(reason="enough"))
    release = await line.hear(ReleaseLeases)
    assert sorted(release.leases) == sorted(names)
    assert (release.failed, release.reason) == (False, "enough")
    scene.gate.set()
    await scene.done()
    assert not any(isinstance(message, EpisodeResult) for message in line.heard)
    assert not scene.worker.stuck
    assert caplog.messages[-1].endswith("done: enough")


def test_leases_that_come_after_the_end_are_returned():
    sent = []
    nothing = inference.Inference(None, None, 2, 0)
    work = executor.LeaseExecutor(sent.append, nothing, None, capacity=2, backoff=None, name="ann")
    work.close("it is over")
    assert sent == []
    lease = Lease.of("late", "token", GroupSpec(3, 1, (0, 0)), 0, 30.0)
    work.grant(TrainEpisodes(policy_version=0, leases=[lease]))
    release = read_client_message(sent[0])
    assert (release.leases, release.reason, release.failed) == (["late"], "it is over", False)


def test_a_worker_that_is_stopped_before_it_begins_ends_at_once(tmp_path):
    worker = Worker("http://127.0.0.1:1", lambda env, args: GuessEnv, tmp_path)
    worker.stop("never mind")
    worker.run()


async def test_new_weights_are_fetched_while_the_old_ones_play(scene):
    line = await scene.begin()
    await scene.hold(line, 2)
    scene.learn(1)
    scene.server.version = 1
    await line.say(UpdateModel(policy_version=1))
    await eventually(lambda: "/weights/1/data" in scene.server.asked)
    status = await line.hear(StatusUpdate, lambda status: status.policy_version is not None)
    assert (status.policy_version, len(status.leases)) == (0, 2)
    scene.gate.set()
    assert [versions(result) for result in await receipts(line, 2)] == [{0}, {0}]
    await scene.lease(line, 2, seed=8)
    new = await receipts(line, 2)
    assert [versions(result) for result in new] == [{1}, {1}]
    assert scene.server.asked.count("/weights/1/data") == 1
    await line.hear(StatusUpdate, lambda status: status.policy_version == 1)
    same(scene, sorted(new, key=lambda result: result.lease), 8, (0, 1))


async def test_damaged_weights_are_refused_and_those_from_before_play_on(scene):
    def flip(path, body):
        return body[:-1] + bytes([body[-1] ^ 1]) if path == "/weights/1/data" else body

    line = await scene.begin()
    await scene.lease(line)
    await receipts(line, 1)
    scene.learn(1)
    scene.server.change = flip
    await line.say(UpdateModel(policy_version=1))
    # The server has leases for the old weights still: they are played with these.
    await scene.lease(line)
    assert versions((await receipts(line, 1))[0]) == {0}
    scene.server.version = 1
    await scene.lease(line, 2)
    release = await line.hear(ReleaseLeases)
    assert (len(release.leases), release.failed) == (2, False)
    status = await line.hear(StatusUpdate, lambda status: status.last_error is not None)
    assert "weights-000001.safetensors is damaged" in status.last_error
    scene.server.change = lambda path, body: body
    await line.say(scene.server.leases(1))  # the request was heard already
    assert versions((await receipts(line, 1))[0]) == {1}


async def test_a_worker_that_can_never_have_the_weights_gives_up(scene, monkeypatch):
    monkeypatch.setattr(executor, "_MAX_WEIGHT_ERRORS", 2)
    scene.server.change = lambda path, body: body[:-1] if path.endswith("/data") else body
    line = await scene.begin()
    for _ in range(2):
        await scene.lease(line)
    await scene.done(RefusedError, "after 2 tries")


def failing(monkeypatch, error, most=0):
    """Let a worker fail that plays more episodes at one time."""

    def play(*arguments, max_concurrent, **options):
        if max_concurrent > most:
            raise error
        return rollout_episodes(*arguments, max_concurrent=max_concurrent, **options)

    monkeypatch.setattr(inference, "rollout_episodes", play)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
async def test_out_of_memory_halves_what_is_played_at_one_time(scene, monkeypatch, kind):
    failing(monkeypatch, kind("no room"), most=2)
    line = await scene.begin()
    request, names = await scene.lease(line, 4)
    release = await line.hear(ReleaseLeases)
    assert (request.count, sorted(release.leases), release.failed) == (4, sorted(names), True)
    for _ in range(2):
        request, _ = await scene.lease(line, 2)
        assert request.count == 2
        await receipts(line, 2)


async def test_a_machine_that_is_too_small_for_one_episode_gives_up(scene, monkeypatch):
    failing(monkeypatch, MemoryError("no room"))
    scene.options["capacity"] = 1
    line = await scene.begin()
    for _ in range(3):
        await scene.lease(line)
        assert (await line.hear(ReleaseLeases)).failed
    await scene.done(RefusedError, "memory")


async def test_a_fault_of_the_worker_is_reported_before_it_ends(scene, monkeypatch):
    failing(monkeypatch, RuntimeError("a bug"))
    line = await scene.begin()
    await scene.lease(line, 2)
    release = await line.hear(ReleaseLeases)
    assert (release.failed, release.reason) == (True, "the worker failed: RuntimeError: a bug")
    await scene.done(RuntimeError, "a bug")


async def test_a_worker_that_computes_sends_heartbeats(scene, monkeypatch):
    computing, done = threading.Event(), threading.Event()

    def busy(*arguments, **options):
        computing.set()
        while not done.is_set():
            torch.rand(96, 96) @ torch.rand(96, 96)
        return rollout_episodes(*arguments, **options)

    monkeypatch.setattr(inference, "rollout_episodes", busy)
    scene.server.heartbeat = 0.05
    line = await scene.begin()
    await scene.lease(line, 2)
    await asyncio.to_thread(computing.wait, 60)
    for _ in range(4):
        status = await line.hear(StatusUpdate, lambda status: len(status.leases) == 2)
        assert status.episodes_played == 0
    done.set()
    await receipts(line, 2)
    status = await line.hear(StatusUpdate, lambda status: status.episodes_played == 2)
    assert status.episodes_per_second > 0


async def test_a_server_that_comes_back_without_the_leases_gets_no_results_of_them(scene):
    line = await scene.begin()
    lost = await scene.hold(line, 2)
    scene.server.asked = []
    line.cut()
    again = await scene.server.line()
    assert sorted(again.hello.leases) == sorted(lost)
    # It has read by now that they are nobody's any more.
    await again.hear(StatusUpdate, lambda status: not status.leases)
    scene.gate.set()
    await scene.lease(again, 2)
    await receipts(again, 2)
    sent = {message.lease for message in again.heard if isinstance(message, EpisodeResult)}
    assert len(sent) == 2
    assert not sent & set(lost)
    assert "/weights/0" in scene.server.asked, "by the same number it may mean other weights"
    assert "/weights/0/data" not in scene.server.asked, "but they are the same"


async def test_a_server_that_comes_back_with_other_weights_of_that_version(scene):
    line = await scene.begin()
    await scene.lease(line)
    await receipts(line, 1)
    scene.learn(0)  # another past
    line.cut()
    again = await scene.server.line()
    await scene.lease(again, seed=5)
    same(scene, await receipts(again, 1), 5, (0, 1))


async def test_a_server_with_another_run_needs_another_worker(scene):
    line = await scene.begin()
    scene.server.run = described(scene.policy, env="another/Env-v0")
    line.cut()
    await scene.done(ServerChangedError, "another run")


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (ErrorMessage(code="id_taken", message="another client's", fatal=True), "id_taken"),
        (UpdateModel(policy_version=1), "began with update_model"),
        (LeaseRequest(count=1), "not of protocol version 1"),
        (2, "speaks version 2"),
    ],
    ids=["id taken", "out of turn", "no server's message", "protocol"],
)
async def test_a_server_that_refuses_the_worker_ends_it(scene, greeting, words):
    if greeting == 2:
        greeting = Welcome(
            protocol=2, secret="x", run=scene.server.run, policy_version=0, heartbeat_seconds=1.0,
            lease_seconds=1.0, leases=[],
        )  # fmt: skip
    scene.server.greet = lambda hello: greeting
    scene.start()
    await scene.done(RefusedError, words)


async def test_a_name_that_was_given_can_be_used_by_another_process(scene):
    scene.options["client_id"] = "ann"
    line = await scene.begin()
    assert (line.client_id, line.hello.secret) == ("ann", None)
    await line.hear(LeaseRequest)
    scene.worker.stop()
    await scene.done()
    again = await scene.begin()
    assert (again.client_id, again.hello.secret) == ("ann", "the-secret")
    (secret,) = (scene.cache / "secrets").iterdir()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@pytest.mark.parametrize(("what", "words"), [("odd", "turns.0.reward"), ("large", "more than 100")])
async def test_an_episode_that_does_not_fit_the_protocol_is_returned(scene, monkeypatch, what, words):
    class Odd(GuessEnv):
        def step(self, action):
            return "x", float("nan"), True, False, {"success": True}

    if what == "odd":
        scene.make_env = Odd
    else:
        monkeypatch.setattr(executor, "MAX_MESSAGE_BYTES", 100)
    line = await scene.begin()
    await scene.lease(line)
    release = await line.hear(ReleaseLeases)
    assert release.failed
    assert words in release.reason


async def test_a_refused_result_is_dropped_and_reported(scene):
    line = await scene.begin()
    await scene.lease(line)
    await receipts(line, 1, outcome="late")
    status = await line.hear(StatusUpdate, lambda status: status.last_error is not None)
    assert (status.last_error, status.leases) == ("a result was not accepted: late", [])


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
