"""Real workers that are killed, stopped, slow or told to go; what became of every lease is counted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from functools import partial

import pytest
import torch

from art_trainer.cli.worker import PARENT_VARIABLE
from art_trainer.config import GRPOConfig, LeaseOptions
from art_trainer.distributed.backend import RemoteBackend
from art_trainer.distributed.protocol import Limits
from art_trainer.distributed.server import ServerOptions
from art_trainer.distributed.task_queue import TaskQueue
from art_trainer.rollout.episodes import rollout_groups
from art_trainer.types import Group, GroupSpec
from tests.art_trainer.distributed.fault_envs import ENV, GATE
from tests.art_trainer.distributed.server_helpers import TOKEN
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.waiting import until

GROUPS, SIZE = 3, 4
ALL = GROUPS * SIZE


pytestmark = pytest.mark.e2e


PROCESSES = multiprocessing.get_context("forkserver")
"""Processes that need not import PyTorch one by one."""
PROCESSES.set_forkserver_preload(["art_trainer.distributed.worker.worker", ENV.partition(":")[0]])


def run_command(arguments, log, environment):
    """Be ``art-trainer``, in a process of its own."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    from art_trainer.cli.main import main

    main(arguments)


class Child:
    """A worker's process."""

    def __init__(self, arguments, log, environment) -> None:
        self._log = log
        self._process = PROCESSES.Process(target=run_command, args=(arguments, log, environment))
        self._process.start()

    def signal(self, number):
        os.kill(self._process.pid, number)

    def wait(self):
        self._process.join(60)
        return self._process.exitcode

    def end(self):
        self._process.kill()
        self._process.join()

    @property
    def output(self):
        return self._log.read_text()


class Hall:
    """A training server whose leases run out when a test says so, and workers that are sent to it."""

    def __init__(self, tmp_path, monkeypatch, lease_seconds) -> None:
        self.lease_seconds = lease_seconds
        self.now = 0.0
        self.gate = tmp_path / "gate"
        self._tmp_path = tmp_path
        self._children = []
        self.policy = guess_policy(hidden=16)
        config = GRPOConfig(num_generations=SIZE, groups_per_step=GROUPS, max_completion_length=2)
        ledger = partial(TaskQueue, clock=lambda: self.now)
        monkeypatch.setattr("art_trainer.distributed.backend.TaskQueue", ledger)
        self.backend = RemoteBackend(
            self.policy, ENV, {}, config, tmp_path / "run",
            options=ServerOptions(
                token=TOKEN, leases=LeaseOptions(lease_seconds), limits=Limits(ping_seconds=600)
            ),
        )  # fmt: skip
        self.backend.publish(0)

    def worker(self, name, *flags, gated=False, token=TOKEN, allowed=True, parent=None):
        module = ["--allow-module", ENV.partition(":")[0]] if allowed else []
        arguments = [
            *("worker", "--server", self.backend.url, "--id", name, "--capacity", str(ALL)),
            *("--cache", str(self._tmp_path / "cache"), *module, *flags),
        ]
        environment = {"ART_SERVER_TOKEN": token}
        if gated:
            environment[GATE] = str(self.gate)
        if parent is not None:
            environment[PARENT_VARIABLE] = str(parent)
        self._children.append(Child(arguments, self._tmp_path / f"{name}.log", environment))
        return self._children[-1]

    def close(self):
        for child in self._children:
            child.end()
        self.backend.close()

    def begin(self, batch=0):
        """Ask for groups; what comes of it can be waited for."""
        tasks = [GroupSpec(7 * batch + n, SIZE, (batch, n), batch=batch) for n in range(GROUPS)]
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
        local = rollout_groups(self.policy, GuessEnv, tasks)
        assert [len(group.episodes) for group in groups] == [SIZE] * GROUPS
        for group, expected in zip(groups, local, strict=True):
            assert group.whole
            assert [e.turns for e in group.episodes] == [e.turns for e in expected.episodes]

    @property
    def results(self):
        found = dict(self.backend.status().results)
        return {name: count for name, count in found.items() if count}


@pytest.fixture
def hall(tmp_path, monkeypatch, request):
    found = Hall(tmp_path, monkeypatch, getattr(request, "param", 60.0))
    yield found
    found.close()
    for log in tmp_path.glob("*.log"):  # shown if a test fails
        print(log.name, log.read_text(), sep="\n")


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


def test_sigterm_gives_the_leases_back_and_ends_well(hall):
    end = hall.begin()
    asked = hall.worker("asked", gated=True)
    hall.plays_all("asked")
    asked.signal(signal.SIGTERM)
    until(lambda: hall.results.get("released") == ALL)
    hall.gate.touch()
    hall.worker("heir")
    assert asked.wait() == 0
    assert "done: it got SIGTERM" in asked.output
    hall.check(*end())
    assert hall.results == {"leased": 2 * ALL, "released": ALL, "accepted": ALL}


def test_a_worker_whose_supervisor_is_gone_ends_itself(hall):
    worker = hall.worker("orphan", parent=1)
    assert worker.wait() == 0
    assert "done: its supervisor is gone" in worker.output


def test_workers_follow_the_weights_and_end_with_the_training(hall):
    workers = [hall.worker(name, "--capacity", str(SIZE)) for name in ("one", "two")]
    until(lambda: hall.backend.server.connections.connected == 2)
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
    assert not any(TOKEN in worker.output for worker in workers)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"token": "wrong"}, "answered 401: it wants its token"),
        ({"allowed": False}, "would import the module 'tests.art_trainer.distributed.fault_envs'"),
    ],
    ids=["token", "module"],
)
def test_a_refusal_is_one_line_and_exit_code_2(hall, options, words):
    worker = hall.worker("refused", **options)
    assert worker.wait() == 2
    (line,) = (line for line in worker.output.splitlines() if line.startswith("art-trainer:"))
    assert words in line
    assert "Traceback" not in worker.output


def test_a_server_that_is_gone_ends_patience_with_exit_code_1(hall):
    worker = hall.worker("patient", "--patience", "0.2")
    until(lambda: hall.backend.status().clients != [])
    hall.backend.server.close()
    assert worker.wait() == 1
    assert "art-trainer: gave up after 0.2 s" in worker.output
