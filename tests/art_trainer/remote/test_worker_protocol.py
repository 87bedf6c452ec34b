"""A worker in a thread, a server that a test scripts, real sockets between them."""

from __future__ import annotations

import asyncio
import stat
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from art_trainer.errors import ConfigError
from art_trainer.remote import lease_work, player, worker
from art_trainer.remote.lease_work import LeaseWork
from art_trainer.remote.messages import (
    EpisodeResult,
    ErrorMessage,
    LeaseRequest,
    ReleaseLeases,
    ResultReceipt,
    Shutdown,
    StatusUpdate,
    UpdateModel,
    Welcome,
    read_client_message,
)
from art_trainer.remote.pending import Pending
from art_trainer.remote.weights import WeightStore
from art_trainer.remote.worker import Worker
from art_trainer.remote.worker_errors import RefusedError, ServerChangedError, UnreachableError
from art_trainer.rollout import rollout
from art_trainer.starts import Start
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.remote.fake_server import FakeServer, described, eventually


class Gate:
    """Environments that wait for the test at every step, once it is shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Event()

    def env(self):
        gate = self

        class GatedEnv(GuessEnv):
            def step(self, action):
                if not gate.open.is_set():
                    gate.waiting.set()
                assert gate.open.wait(60)
                return super().step(action)

        return GatedEnv()


class Scene:
    """A server, a worker that runs, and what is between them."""

    def __init__(self, tmp_path, **options) -> None:
        self.policy = guess_policy(hidden=16)
        self.server = FakeServer(WeightStore(tmp_path / "weights", self.policy), described(self.policy))
        self.server.store.publish(0)
        self.gate = Gate()
        self.options = {"capacity": 4, "client_id": None, **options}
        self.cache = tmp_path / "cache"
        self.said: list[str] = []
        self.worker: Worker
        self.running: asyncio.Future[int]

    @asynccontextmanager
    async def begun(self):
        async with self.server.running():
            self.start()
            try:
                yield await self.server.line()
            finally:
                self.gate.open.set()
                self.worker.stop()
                await asyncio.wait([self.running])

    def start(self):
        def make(env_id, env_args):
            return self.gate.env

        options = {"rng": np.random.default_rng(0), "say": self.said.append, **self.options}
        self.worker = Worker(self.server.url, make, self.cache, **options)
        self.running = asyncio.get_running_loop().run_in_executor(None, self.worker.run)

    async def ends(self):
        async with asyncio.timeout(60):
            return await asyncio.shield(self.running)

    def learn(self, version):
        with torch.no_grad():
            for parameter in self.policy.model.parameters():
                parameter.add_(0.05 * torch.sign(parameter))
        self.policy.version = version
        return self.server.store.publish(version)


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


async def receipts(line, count, outcome="accepted"):
    """Take results, and acknowledge each."""
    results = []
    for _ in range(count):
        result = await line.hear(EpisodeResult)
        await line.say(ResultReceipt(lease=result.lease, outcome=outcome))
        results.append(result)
    return results


def versions(result):
    return {span.policy_version for history in result.episode.histories for span in history.spans}


def test_leases_are_played_as_the_trainer_would_and_sent_once(scene):
    async def go():
        async with scene.begun() as line:
            assert line.hello.secret is None
            assert (await line.hear(LeaseRequest)).count == 4
            granted = scene.server.leases(4, seed=11)
            await line.say(granted)
            results = await receipts(line, 4)
            assert (await line.hear(LeaseRequest)).count == 4, "and it asks for more"
            return granted, results

    granted, results = asyncio.run(go())
    leases = {lease.lease: lease for lease in granted.leases}
    assert {result.lease: result.token for result in results} == {
        lease.lease: lease.token for lease in granted.leases
    }
    order = [lease.lease for lease in granted.leases]
    starts = [Start(leases[name].seed, None, 0, tuple(leases[name].rng_seed)) for name in order]
    expected = dict(zip(order, rollout(scene.policy, GuessEnv, starts), strict=True))
    for result in results:
        episode, local = result.episode.episode(), expected[result.lease]
        assert episode.turns == local.turns
        for mine, theirs in zip(episode.histories, local.histories, strict=True):
            assert mine.token_ids == theirs.token_ids
            np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-6)
        assert len(result.timing.turns) == len(episode.turns)
    assert [path for path in scene.server.asked if "/data" in path] == ["/weights/0/data"]


def test_a_result_without_receipt_is_sent_again_on_the_next_connection(scene):
    scene.server.lease_seconds = 1000.0  # so long it would not be sent again on the same one

    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(2))
            first = await receipts(line, 1)
            second = await line.hear(EpisodeResult)
            scene.server.known = {second.lease}
            line.cut()
            again = await scene.server.line()
            assert again.client_id == line.client_id
            assert again.hello.secret == "the-secret"
            assert again.hello.leases == [second.lease]
            assert await again.hear(EpisodeResult) == second
            await again.say(ResultReceipt(lease=second.lease, outcome="accepted"))
            await again.hear(StatusUpdate, lambda status: status.leases == [])
            sent = [m.lease for m in line.heard + again.heard if isinstance(m, EpisodeResult)]
            assert sorted(sent) == sorted([first[0].lease, second.lease, second.lease])

    asyncio.run(go())


def test_a_result_that_the_server_could_not_write_is_sent_again(scene):
    scene.server.lease_seconds = 1.0

    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(1))
            result = await line.hear(EpisodeResult)
            await line.say(ErrorMessage(code="not_journalled", message="the disk is full"))
            assert await line.hear(EpisodeResult) == result, "on this connection, after a while"
            await line.close(1013)
            again = await scene.server.line()
            assert await again.hear(EpisodeResult) == result
            await again.say(ResultReceipt(lease=result.lease, outcome="accepted"))
            status = await again.hear(StatusUpdate)
            assert status.last_error == "the server did not take a message (not_journalled): the disk is full"

    asyncio.run(go())


def test_a_worker_that_is_stopped_gives_its_leases_back(scene):
    scene.gate.open.clear()

    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            granted = scene.server.leases(3)
            await line.say(granted)
            await asyncio.to_thread(scene.gate.waiting.wait, 60)
            scene.worker.stop("enough")
            release = await line.hear(ReleaseLeases)
            assert sorted(release.leases) == sorted(lease.lease for lease in granted.leases)
            assert (release.failed, release.reason) == (False, "enough")
            scene.gate.open.set()
            assert await scene.ends() == 0
            assert not any(isinstance(message, EpisodeResult) for message in line.heard)

    asyncio.run(go())
    assert not scene.worker.stuck


def test_a_worker_that_is_stopped_before_it_begins_ends_at_once(scene):
    async def go():
        async with scene.server.running():
            worker = Worker(scene.server.url, lambda env_id, env_args: scene.gate.env, scene.cache)
            worker.stop("never mind")
            assert await asyncio.to_thread(worker.run) == 0

    asyncio.run(go())


def test_shutdown_gives_leases_back_and_ends_well(scene):
    scene.gate.open.clear()

    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(1))
            await asyncio.to_thread(scene.gate.waiting.wait, 60)
            await line.say(Shutdown(reason="training is over"))
            release = await line.hear(ReleaseLeases)
            assert (len(release.leases), release.failed) == (1, False)
            scene.gate.open.set()
            assert await scene.ends() == 0

    asyncio.run(go())
    assert scene.said[-1].endswith("done: training is over")


def test_leases_that_come_after_the_end_are_given_back(scene):
    pending = Pending()
    compute = SimpleNamespace(stop=lambda: None)
    work = LeaseWork(
        pending, compute, None, capacity=2, env_threads=0, backoff=None, say=scene.said.append
    )  # fmt: skip
    work.give_back("it is over")
    assert pending.take() is None
    granted = scene.server.leases(2)
    work.grant(granted)
    release = read_client_message(pending.take())
    assert release.leases == [lease.lease for lease in granted.leases]
    assert (release.reason, release.failed) == ("it is over", False)


def test_new_weights_are_fetched_while_the_old_ones_play(scene):
    scene.gate.open.clear()

    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(2))
            await asyncio.to_thread(scene.gate.waiting.wait, 60)
            scene.learn(1)
            scene.server.version = 1
            await line.say(UpdateModel(policy_version=1))
            await eventually(lambda: "/weights/1/data" in scene.server.asked)
            status = await line.hear(StatusUpdate, lambda status: status.policy_version is not None)
            assert (status.policy_version, len(status.leases)) == (0, 2)
            scene.gate.open.set()
            old = await receipts(line, 2)
            assert [versions(result) for result in old] == [{0}, {0}]
            await line.say(scene.server.leases(2, seed=8))
            new = await receipts(line, 2)
            assert [versions(result) for result in new] == [{1}, {1}]
            assert scene.server.asked.count("/weights/1/data") == 1
            await line.hear(StatusUpdate, lambda status: status.policy_version == 1)
            return new

    new = asyncio.run(go())
    task = [Start(8, None, 0, (0, 1, member)) for member in range(2)]
    expected = [episode.turns for episode in rollout(scene.policy, GuessEnv, task)]
    assert [result.episode.episode().turns for result in sorted(new, key=lambda r: r.lease)] == expected


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda body: body[:-1] + bytes([body[-1] ^ 1]), "is damaged on the server: its sha256"),
        (lambda body: body[:-100], "is damaged on the server: it has"),
    ],
    ids=["flipped", "torn"],
)
def test_damaged_weights_are_refused_and_those_from_before_play_on(scene, damage, words):
    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(1))
            await receipts(line, 1)
            scene.learn(1)
            scene.server.change = lambda path, body: damage(body) if path == "/weights/1/data" else body
            await line.say(UpdateModel(policy_version=1))
            told = await line.hear(StatusUpdate, lambda status: status.last_error is not None)
            assert words in told.last_error
            assert "weights-000001.safetensors" in told.last_error
            # The server has leases for the old weights still: they are played with these.
            await line.say(scene.server.leases(1))
            assert versions((await receipts(line, 1))[0]) == {0}
            scene.server.version = 1
            asked = scene.server.leases(2)
            await line.say(asked)
            release = await line.hear(ReleaseLeases)
            assert len(release.leases) == 2
            assert release.failed is False
            scene.server.change = lambda path, body: body
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(1))
            assert versions((await receipts(line, 1))[0]) == {1}

    asyncio.run(go())


def test_a_worker_that_can_never_have_the_weights_gives_up(scene, monkeypatch):
    monkeypatch.setattr("art_trainer.remote.lease_work._MOST_FAULTS", 2)
    scene.server.change = lambda path, body: body[:-1] if path.endswith("/data") else body

    async def go():
        async with scene.begun() as line:
            for _ in range(2):
                await line.hear(LeaseRequest)
                await line.say(scene.server.leases(1))
            with pytest.raises(RefusedError, match=r"cannot be used, after 2 tries: .*it has"):
                await scene.ends()

    asyncio.run(go())


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
def test_out_of_memory_halves_what_is_played_at_one_time(scene, monkeypatch, kind):
    def full(*arguments, max_concurrent, **options):
        if max_concurrent > 2:
            raise kind("no room")
        return rollout(*arguments, max_concurrent=max_concurrent, **options)

    monkeypatch.setattr(player, "rollout", full)

    async def go():
        async with scene.begun() as line:
            assert (await line.hear(LeaseRequest)).count == 4
            granted = scene.server.leases(4)
            await line.say(granted)
            release = await line.hear(ReleaseLeases)
            assert sorted(release.leases) == sorted(lease.lease for lease in granted.leases)
            assert release.failed
            assert release.reason == "out of memory with 4 episodes at one time: no room"
            assert (await line.hear(LeaseRequest)).count == 2
            await line.say(scene.server.leases(2))
            await receipts(line, 2)
            assert (await line.hear(LeaseRequest)).count == 2

    asyncio.run(go())


def test_a_machine_that_is_too_small_for_one_episode_gives_up(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise MemoryError("no room")

    monkeypatch.setattr(player, "rollout", full)
    scene = Scene(tmp_path, capacity=1)

    async def go():
        async with scene.begun() as line:
            for _ in range(3):
                await line.hear(LeaseRequest)
                await line.say(scene.server.leases(1))
                assert (await line.hear(ReleaseLeases)).failed
            with pytest.raises(RefusedError, match="one episode at a time is too much"):
                await scene.ends()

    asyncio.run(go())


def test_a_fault_of_the_player_is_told_before_the_worker_ends_of_it(scene, monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("a bug")

    monkeypatch.setattr(player, "rollout", broken)

    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(2))
            release = await line.hear(ReleaseLeases)
            assert (release.failed, release.reason) == (True, "the worker failed: RuntimeError: a bug")
            with pytest.raises(RuntimeError, match="a bug"):
                await scene.ends()

    asyncio.run(go())


def test_a_worker_that_computes_says_that_it_is_alive(scene, monkeypatch):
    scene.server.heartbeat = 0.05
    computing, done = threading.Event(), threading.Event()

    def busy(*arguments, **options):
        computing.set()
        square = torch.rand(96, 96)
        while not done.is_set():
            square = torch.nn.functional.normalize(square @ square)
        return rollout(*arguments, **options)

    monkeypatch.setattr(player, "rollout", busy)

    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(2))
            await asyncio.to_thread(computing.wait, 60)
            for _ in range(4):
                status = await line.hear(StatusUpdate, lambda status: len(status.leases) == 2)
                assert status.episodes_played == 0
            done.set()
            await receipts(line, 2)
            status = await line.hear(StatusUpdate, lambda status: status.episodes_played == 2)
            assert status.episodes_per_second > 0

    asyncio.run(go())


def test_a_server_that_comes_back_without_the_leases_gets_no_results_of_them(scene):
    scene.gate.open.clear()

    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            lost = scene.server.leases(2)
            await line.say(lost)
            await asyncio.to_thread(scene.gate.waiting.wait, 60)
            await scene.server.shut()
            scene.server.asked = []
            await asyncio.sleep(0.1)
            await scene.server.open()
            again = await scene.server.line()
            assert sorted(again.hello.leases) == sorted(lease.lease for lease in lost.leases)
            # It has read by now that they are nobody's any more.
            await again.hear(StatusUpdate, lambda status: not status.leases)
            scene.gate.open.set()
            await again.hear(LeaseRequest)
            await again.say(scene.server.leases(2))
            await receipts(again, 2)
            sent = {message.lease for message in again.heard if isinstance(message, EpisodeResult)}
            assert len(sent) == 2
            assert not sent & {lease.lease for lease in lost.leases}
            assert "/weights/0" in scene.server.asked, "by the same number it may mean other weights"
            assert "/weights/0/data" not in scene.server.asked, "but they are the same"

    asyncio.run(go())


def test_a_server_that_comes_back_with_other_weights_of_that_version(scene):
    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(1))
            await receipts(line, 1)
            scene.learn(0)  # another past
            line.cut()
            again = await scene.server.line()
            await again.hear(LeaseRequest)
            await again.say(scene.server.leases(1, seed=5))
            return (await receipts(again, 1))[0]

    result = asyncio.run(go())
    expected = rollout(scene.policy, GuessEnv, [Start(5, None, 0, (0, 1, 0))])[0]
    found = result.episode.episode()
    assert found.turns == expected.turns
    np.testing.assert_allclose(found.histories[0].logprobs, expected.histories[0].logprobs, atol=1e-6)


def test_a_server_with_another_run_needs_another_worker(scene):
    async def go():
        async with scene.begun() as line:
            scene.server.run = described(scene.policy, env="another/Env-v0")
            line.cut()
            with pytest.raises(ServerChangedError, match="another run now"):
                await scene.ends()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (
            ErrorMessage(code="id_taken", message="this id is another client's", fatal=True),
            r"refuses this worker \(id_taken\): this id is another client's",
        ),
        (UpdateModel(policy_version=1), "began with update_model, not with a welcome"),
        ("protocol", "speaks version 2 of the protocol, this worker 1: install the same version"),
        ("nonsense", "first words are not of version 1 of the protocol"),
    ],
    ids=["id taken", "out of turn", "protocol", "nonsense"],
)
def test_a_server_that_will_not_have_the_worker_ends_it_in_one_line(scene, greeting, words):
    server = scene.server

    def greet(hello):
        if greeting == "protocol":
            return Welcome(
                protocol=2,
                secret="x",
                run=server.run,
                policy_version=0,
                heartbeat_seconds=1.0,
                lease_seconds=1.0,
                leases=[],
            )
        if greeting == "nonsense":
            return LeaseRequest(count=1)
        return greeting

    server.greet = greet

    async def go():
        async with server.running():
            scene.start()
            with pytest.raises(RefusedError, match=words) as refused:
                await scene.ends()
            assert "\n" not in str(refused.value)

    asyncio.run(go())


def test_a_wrong_token_ends_it_and_the_right_one_does_not(tmp_path):
    async def go(scene):
        async with scene.server.running():
            scene.start()
            with pytest.raises(RefusedError, match="answered 401: it wants its token"):
                await scene.ends()

    for token in (None, "wrong"):
        scene = Scene(tmp_path / str(token), token=token)
        scene.server.token = "the-right-one"
        asyncio.run(go(scene))
        assert not any("the-right-one" in line or "wrong" in line for line in scene.said)

    async def works(scene):
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(1))
            await receipts(line, 1)

    scene = Scene(tmp_path / "right", token="the-right-one")
    scene.server.token = "the-right-one"
    asyncio.run(works(scene))


def test_no_server_at_all_ends_patience(tmp_path):
    scene = Scene(tmp_path, patience=0.1)

    async def go():
        async with scene.server.running():
            pass
        scene.start()
        with pytest.raises(UnreachableError, match=r"given up after 0.1 s: no answer from http://127"):
            await scene.ends()

    asyncio.run(go())


def test_a_name_that_was_given_can_be_taken_up_by_another_process(tmp_path):
    scene = Scene(tmp_path, client_id="ann")

    async def go():
        async with scene.begun() as line:
            assert (line.client_id, line.hello.secret) == ("ann", None)
            await line.hear(LeaseRequest)
            scene.worker.stop()
            assert await scene.ends() == 0
            scene.start()
            again = await scene.server.line()
            assert (again.client_id, again.hello.secret) == ("ann", "the-secret")

    asyncio.run(go())
    (secret,) = (tmp_path / "cache" / "secrets").iterdir()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_an_episode_that_the_protocol_has_no_place_for_is_given_back(scene, monkeypatch):
    def odd(env):
        env.step = lambda action: ("x", float("nan"), True, False, {"success": True})
        return env

    scene.gate.env = lambda made=scene.gate.env: odd(made())

    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(1))
            release = await line.hear(ReleaseLeases)
            assert release.failed
            assert release.reason.startswith("its episode cannot be sent: turns.0.reward")

    asyncio.run(go())


def test_an_episode_that_is_larger_than_a_message_is_given_back(scene, monkeypatch):
    monkeypatch.setattr(lease_work, "MAX_MESSAGE_BYTES", 100)

    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(1))
            release = await line.hear(ReleaseLeases)
            assert release.failed
            assert "bytes, more than 100" in release.reason

    asyncio.run(go())


def test_a_server_that_takes_no_messages_so_large_is_not_sent_it_for_ever(scene):
    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(1))
            result = await line.hear(EpisodeResult)
            await line.close(1009)
            again = await scene.server.line()
            release = await again.hear(ReleaseLeases)
            assert release.leases == [result.lease]
            assert release.failed

    asyncio.run(go())


def test_a_refused_result_is_dropped_and_told(scene):
    async def go():
        async with scene.begun() as line:
            await line.hear(LeaseRequest)
            await line.say(scene.server.leases(1))
            await receipts(line, 1, outcome="late")
            status = await line.hear(StatusUpdate, lambda status: status.last_error is not None)
            assert status.last_error == "a result was not taken: late"
            assert status.leases == []

    asyncio.run(go())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:8000", "no server's address"),
        ("ftp://host", "no server's address"),
        ("http://host/path", "no server's address"),
        ("http://me:secret@host", "holds no secret"),
        ("http://host?token=secret", "holds no secret"),
    ],
)
def test_an_address_that_is_none_is_said_at_once(tmp_path, url, words):
    with pytest.raises(ConfigError, match=words) as wrong:
        Worker(url, lambda env_id, env_args: GuessEnv, tmp_path)
    assert "secret@" not in str(wrong.value)
    assert "token=" not in str(wrong.value)


@pytest.mark.parametrize("capacity", [0, 1025])
def test_capacity_is_bounded(tmp_path, capacity):
    with pytest.raises(ConfigError, match="capacity is from 1 to 1024"):
        Worker("http://host", lambda env_id, env_args: GuessEnv, tmp_path, capacity=capacity)


def test_pauses_grow_to_a_bound_and_differ_between_workers():
    pauses = [worker.Backoff(np.random.default_rng(seed), 0.5, 30.0) for seed in (0, 1)]
    first = [[backoff.seconds(attempt) for attempt in range(1, 200)] for backoff in pauses]
    assert first[0] != first[1]
    again = worker.Backoff(np.random.default_rng(0), 0.5, 30.0)
    assert [again.seconds(attempt) for attempt in range(1, 200)] == first[0]
    for attempt, pause in enumerate(first[0], start=1):
        whole = min(30.0, 0.5 * 2.0 ** (attempt - 1))
        assert 0.5 * whole <= pause <= whole
