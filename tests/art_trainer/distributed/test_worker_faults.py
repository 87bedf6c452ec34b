"""Worker processes that are killed, stopped or asked to end; what became of every lease is counted."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from art_trainer.cli.worker import PARENT_VARIABLE
from art_trainer.config import GRPOConfig, LeaseOptions
from art_trainer.distributed.backend import RemoteBackend
from art_trainer.distributed.protocol import Limits
from art_trainer.distributed.server import ServerOptions
from art_trainer.distributed.task_queue import TaskQueue
from art_trainer.rollout.episodes import rollout_groups
from art_trainer.types import GroupSpec
from tests.art_trainer.distributed.fault_envs import ENV, GATE
from tests.art_trainer.distributed.server_helpers import TOKEN
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.waiting import until

GROUPS, SIZE = 3, 4
ALL = GROUPS * SIZE
LEASE_SECONDS = 60.0
PLAYED_AGAIN = {"leased": 2 * ALL, "accepted": ALL}
"""Counts if every attempt was leased a second time; what became of the first leases is added."""
PROCESSES = multiprocessing.get_context("forkserver")
"""Processes that need not import PyTorch one by one."""
PROCESSES.set_forkserver_preload(["art_trainer.distributed.worker.worker", ENV.partition(":")[0]])
pytestmark = pytest.mark.e2e


def run_command(arguments, log, environment):
    """Be ``art-trainer``, in a process of its own."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    from art_trainer.cli.main import main

    main(arguments)


class Scene:
    """A training server whose leases expire when a test says so, and the processes of its workers."""

    def __init__(self, tmp_path, monkeypatch) -> None:
        self.now = 0.0
        self.gate = tmp_path / "gate"
        self.thread = ThreadPoolExecutor(1)
        self._tmp_path = tmp_path
        self._children = []
        self.policy = guess_policy(hidden=16)
        config = GRPOConfig(num_generations=SIZE, groups_per_step=GROUPS, max_completion_length=2)
        queue = partial(TaskQueue, clock=lambda: self.now)
        monkeypatch.setattr("art_trainer.distributed.backend.TaskQueue", queue)
        options = ServerOptions(
            token=TOKEN, leases=LeaseOptions(LEASE_SECONDS), limits=Limits(ping_seconds=600)
        )
        self.backend = RemoteBackend(self.policy, ENV, {}, config, tmp_path / "run", options=options)
        self.backend.publish(0)

    def worker(self, name, *, gated=False, **environment):
        arguments = [
            *("worker", "--server", self.backend.url, "--id", name, "--capacity", str(ALL)),
            *("--cache", str(self._tmp_path / "cache"), "--allow-module", ENV.partition(":")[0]),
        ]
        environment["ART_SERVER_TOKEN"] = TOKEN
        if gated:
            environment[GATE] = str(self.gate)
        log = self._tmp_path / f"{name}.log"
        child = PROCESSES.Process(target=run_command, args=(arguments, log, environment))
        child.start()
        self._children.append(child)
        return child

    def ended(self, child, name):
        """Wait for the end of a worker; its exit code and output."""
        child.join(60)
        return child.exitcode, (self._tmp_path / f"{name}.log").read_text()

    def close(self):
        for child in self._children:
            child.kill()
            child.join()
        self.backend.close()
        self.thread.shutdown()
        for log in self._tmp_path.glob("*.log"):
            print(log.name, log.read_text(), sep="\n")  # shown if a test fails
            assert TOKEN not in log.read_text()

    def begin(self, batch=0):
        """Ask for groups; what comes of it can be waited for."""
        tasks = [GroupSpec(7 * batch + n, SIZE, (batch, n), batch=batch) for n in range(GROUPS)]
        groups = self.thread.submit(self.backend.collect, tasks, on_episode=lambda episode: None)
        return tasks, groups

    def begun_by(self, name):
        """Groups are asked for, and a gated worker has leased all of them and begun to play."""
        asked = self.begin()
        child = self.worker(name, gated=True)
        until(lambda: sum(c.leases for c in self.backend.status().clients if c.id == name) == ALL)
        until(self.gate.with_name("reached").exists)
        return asked, child

    def expire(self):
        """Let time pass until all leases are over, also if a worker's last words were still on the way."""

        def over():
            self.now += 2 * LEASE_SECONDS
            return self.results.get("expired") == ALL

        until(over)

    def check(self, tasks, groups):
        """Each attempt was played once, as the trainer itself would have played it."""
        local = rollout_groups(self.policy, GuessEnv, tasks)
        played = groups.result(60)
        assert [len(group.episodes) for group in played] == [SIZE] * GROUPS
        for group, expected in zip(played, local, strict=True):
            assert group.whole
            assert [e.turns for e in group.episodes] == [e.turns for e in expected.episodes]

    @property
    def results(self):
        return {name: count for name, count in self.backend.status().results.items() if count}


@pytest.fixture
def scene(tmp_path, monkeypatch):
    found = Scene(tmp_path, monkeypatch)
    yield found
    found.close()


def test_a_worker_that_is_killed_loses_nothing(scene):
    asked, killed = scene.begun_by("killed")
    killed.kill()
    assert scene.ended(killed, "killed")[0] == -signal.SIGKILL
    scene.expire()
    scene.worker("next")
    scene.check(*asked)
    assert scene.results == PLAYED_AGAIN | {"expired": ALL}


def test_a_worker_that_is_stopped_comes_too_late_and_works_on(scene):
    asked, stopped = scene.begun_by("stopped")
    os.kill(stopped.pid, signal.SIGSTOP)
    scene.expire()
    scene.worker("next")
    scene.check(*asked)
    scene.gate.touch()
    os.kill(stopped.pid, signal.SIGCONT)
    until(lambda: scene.results.get("late", 0) + scene.results.get("duplicate", 0) == ALL)
    assert (scene.results["expired"], scene.results["accepted"]) == (ALL, ALL)
    scene.check(*scene.begin(batch=1))
    assert scene.results["accepted"] == 2 * ALL


def test_sigterm_gives_the_leases_back_and_ends_well(scene):
    asked, child = scene.begun_by("asked")
    child.terminate()
    until(lambda: scene.results.get("released") == ALL)
    scene.gate.touch()
    scene.worker("next")
    code, output = scene.ended(child, "asked")
    assert code == 0
    assert "done: it got SIGTERM" in output
    scene.check(*asked)
    assert scene.results == PLAYED_AGAIN | {"released": ALL}


def test_a_worker_whose_supervisor_is_gone_ends_itself(scene):
    code, output = scene.ended(scene.worker("orphan", **{PARENT_VARIABLE: "1"}), "orphan")
    assert code == 0
    assert "done: its supervisor is gone" in output
