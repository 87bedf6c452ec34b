"""Real workers that are killed, stopped, slow or told to go; what became of every lease is counted."""

from __future__ import annotations

import signal
import threading
from functools import partial

import pytest
import torch

from art_trainer.commands.worker_processes import PARENT_VARIABLE
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Group
from art_trainer.remote.backend import RemoteBackend
from art_trainer.remote.ledger import Ledger
from art_trainer.remote.limits import Limits
from art_trainer.rollout import rollout_tasks
from art_trainer.starts import GroupTask
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.remote.fake_server import until
from tests.art_trainer.remote.fault_envs import ENV, GATE
from tests.art_trainer.remote.nursery import nursery as started_nursery

TOKEN = "a-token-that-nobody-guesses"
GROUPS, SIZE = 3, 4
ALL = GROUPS * SIZE


@pytest.fixture(scope="module")
def one_nursery():
    with started_nursery() as found:
        yield found


@pytest.fixture
def nursery(one_nursery):
    yield one_nursery
    one_nursery.clear()


class Hall:
    """A training server whose leases run out when a test says so, and workers that are sent to it."""

    def __init__(self, tmp_path, nursery, monkeypatch, lease_seconds) -> None:
        self.lease_seconds = lease_seconds
        self.now = 0.0
        self.gate = tmp_path / "gate"
        self._tmp_path = tmp_path
        self._nursery = nursery
        self.policy = guess_policy(hidden=16)
        config = GRPOConfig(num_generations=SIZE, groups_per_step=GROUPS, max_completion_length=2)
        ledger = partial(Ledger, clock=lambda: self.now)
        monkeypatch.setattr("art_trainer.remote.backend.Ledger", ledger)
        self.backend = RemoteBackend(
            self.policy, ENV, {}, config, tmp_path / "run", token=TOKEN, lease_seconds=lease_seconds,
            limits=Limits(ping_seconds=600),
        )  # fmt: skip
        self.backend.publish(0)

    def worker(self, name, *flags, gated=False, token=TOKEN, allowed=True, parent=None):
        module = ["--allow-module", ENV.partition(":")[0]] if allowed else []
        return self._nursery.start(
            [
                *("worker", "--server", self.backend.url, "--id", name, "--capacity", str(ALL)),
                *("--cache", str(self._tmp_path / "cache"), *module, *flags),
            ],
            self._tmp_path / f"{name}.log",
            ART_SERVER_TOKEN=token,
            **({GATE: str(self.gate)} if gated else {}),
            **({} if parent is None else {PARENT_VARIABLE: str(parent)}),
        )

    def begin(self, batch=0):
        """Ask for groups; what comes of it can be waited for."""
        tasks = [GroupTask(7 * batch + n, SIZE, (batch, n), batch=batch) for n in range(GROUPS)]
        groups: list[Group] = []
        thread = threading.Thread(
            target=lambda: groups.extend(self.backend.collect(tasks, on_episode=lambda episode: None))
        )
        thread.start()

        def end():
            thread.join(60)
            assert not thread.is_alive()
            return tasks, groups

        return end

    def plays_all(self, name):
        """Wait until a gated worker has all leases and has begun to play."""
        until(lambda: sum(c.leases for c in self.backend.status().clients if c.id == name) == ALL)
        until(self.gate.with_name("reached").exists)

    def expire(self):
        """Let time pass until all leases are over, also where a worker's last words were still on the way."""

        def over():
            self.now += 2 * self.lease_seconds
            return self.results.get("expired") == ALL

        until(over)

    def check(self, tasks, groups):
        """Each attempt was played once, as the trainer itself would have played it."""
        local = rollout_tasks(self.policy, GuessEnv, tasks)
        assert [len(group.episodes) for group in groups] == [SIZE] * GROUPS
        for group, expected in zip(groups, local, strict=True):
            assert group.whole
            assert [e.turns for e in group.episodes] == [e.turns for e in expected.episodes]

    @property
    def results(self):
        found = dict(self.backend.status().results)
        return {name: count for name, count in found.items() if count}


@pytest.fixture
def hall(tmp_path, nursery, monkeypatch, request):
    found = Hall(tmp_path, nursery, monkeypatch, getattr(request, "param", 60.0))
    yield found
    nursery.clear()
    for log in tmp_path.glob("*.log"):  # shown where a test fails
        print(log.name, log.read_text(), sep="\n")
    found.backend.close()


def test_a_worker_that_is_killed_loses_nothing(hall):
    end = hall.begin()
    killed = hall.worker("killed", gated=True)
    hall.plays_all("killed")
    killed.signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    hall.expire()
    hall.worker("heir")
    hall.check(*end())
    assert hall.results == {"leased": 2 * ALL, "expired": ALL, "accepted": ALL}


def test_a_worker_that_is_stopped_comes_too_late_and_works_on(hall):
    end = hall.begin()
    stopped = hall.worker("stopped", gated=True)
    hall.plays_all("stopped")
    stopped.signal(signal.SIGSTOP)
    hall.expire()
    hall.worker("heir")
    hall.check(*end())
    hall.gate.touch()
    stopped.signal(signal.SIGCONT)
    until(lambda: hall.results.get("late", 0) + hall.results.get("duplicate", 0) == ALL)
    assert hall.results["expired"] == ALL
    assert hall.results["accepted"] == ALL
    end = hall.begin(batch=1)
    hall.check(*end())
    assert hall.results["accepted"] == 2 * ALL


@pytest.mark.parametrize("hall", [1.0], indirect=True, ids=["heartbeats"])
def test_a_slow_worker_keeps_its_leases(hall):
    end = hall.begin()
    hall.worker("slow", gated=True)
    hall.plays_all("slow")
    for _ in range(3):
        hall.now += 0.7
        until(lambda: {lease.seconds_left for lease in hall.backend.status().leases} == {1.0})
    hall.gate.touch()
    hall.check(*end())
    # A result without a receipt is soon sent again where leases are short.
    assert hall.results | {"duplicate": 0} == {"leased": ALL, "accepted": ALL, "duplicate": 0}


def test_sigterm_gives_the_leases_back_and_ends_well(hall):
    end = hall.begin()
    asked = hall.worker("asked", gated=True)
    hall.plays_all("asked")
    asked.signal(signal.SIGTERM)
    until(lambda: hall.results.get("released") == ALL)
    hall.gate.touch()
    hall.worker("heir")
    assert asked.wait() == 0
    assert "done: it got SIGTERM" in asked.words
    hall.check(*end())
    assert hall.results == {"leased": 2 * ALL, "released": ALL, "accepted": ALL}


def test_a_worker_whose_supervisor_is_gone_ends_itself(hall):
    worker = hall.worker("orphan", parent=1)
    assert worker.wait() == 0
    assert "done: its supervisor is gone" in worker.words


def test_workers_follow_the_weights_and_end_with_the_training(hall):
    workers = [hall.worker(name, "--capacity", str(SIZE)) for name in ("one", "two")]
    hall.check(*hall.begin()())
    with torch.no_grad():
        for parameter in hall.policy.model.parameters():
            parameter.add_(0.05 * torch.sign(parameter))
    hall.policy.version = 1
    hall.backend.publish(1)
    tasks, groups = hall.begin(batch=1)()
    hall.check(tasks, groups)
    spans = [s for g in groups for e in g.episodes for h in e.histories for s in h.spans]
    assert {span.policy_version for span in spans} == {1}
    hall.backend.close()
    assert [worker.wait() for worker in workers] == [0, 0]
    assert hall.results == {"leased": 2 * ALL, "accepted": 2 * ALL}
    assert not any(TOKEN in worker.words for worker in workers)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"token": "wrong"}, "answered 401: it wants its token"),
        ({"allowed": False}, "would import the module 'tests.art_trainer.remote.fault_envs'"),
    ],
    ids=["token", "module"],
)
def test_a_refusal_is_one_line_and_exit_code_2(hall, options, words):
    worker = hall.worker("refused", **options)
    assert worker.wait() == 2
    (line,) = (line for line in worker.words.splitlines() if line.startswith("art-trainer:"))
    assert words in line
    assert "Traceback" not in worker.words


def test_a_server_that_is_gone_ends_patience_with_exit_code_1(hall):
    worker = hall.worker("patient", "--patience", "0.2")
    until(lambda: hall.backend.status().clients != [])
    hall.backend.server.close()
    assert worker.wait() == 1
    assert "art-trainer: given up after 0.2 s" in worker.words
