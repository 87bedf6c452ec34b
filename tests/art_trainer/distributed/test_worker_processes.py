"""The command `art-trainer worker`, and its processes that are killed, stopped or asked to end."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import pytest

from art_gym.cache import cache_folder
from art_trainer.cli import worker as working
from art_trainer.cli.access import read_token
from art_trainer.cli.main import main
from art_trainer.cli.worker import allowed_environments
from art_trainer.distributed.protocol import Limits
from art_trainer.distributed.worker.connection import RefusedError
from art_trainer.distributed.worker.processes import PARENT_VARIABLE, WorkerProcess, run_workers
from art_trainer.errors import ConfigError
from art_trainer.rollout.episodes import rollout_groups
from art_trainer.types import GroupSpec
from tests.art_trainer.distributed.guess_envs import GATE, MODULE
from tests.art_trainer.distributed.server_helpers import TOKEN, served
from tests.art_trainer.guess import GuessEnv
from tests.art_trainer.waiting import interrupted, until


def test_a_module_is_imported_only_if_it_is_allowed(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text(
        "import gymnasium as gym, pathlib\n"
        f"pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        "gym.register('stranger/Env-v0', 'art_gym.envs.mail.env:EmailEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for modules in ((), ("other",), ("stranger.more",)):
        with pytest.raises(RefusedError, match="--allow-module stranger if you trust it"):
            allowed_environments(modules)("stranger:stranger/Env-v0", {})
    allowed_environments(())("art/2048-v0", {"board_size": 3})().close()  # registered here
    with pytest.raises(ConfigError, match="no environment 'art/2084-v0'"):
        allowed_environments(())("art/2084-v0", {})
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ConfigError, match="no argument `no_such_argument`"):
        allowed_environments(["stranger"])("stranger:stranger/Env-v0", {"no_such_argument": 1})
    assert (tmp_path / "ran").exists()
    gym.registry.pop("stranger/Env-v0")


def test_a_refusal_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ART_SERVER_TOKEN", "another-token-of-some-length")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with served(tmp_path) as here, pytest.raises(SystemExit, match="2"):
        main(["worker", "--server", here.server.url, "--cache", str(tmp_path)])
    assert re.fullmatch("art-trainer: .* answered 401: it wants its token.*\n", capsys.readouterr().err)


def test_a_server_that_is_gone_ends_patience_with_exit_code_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit, match="1"):
        main(["worker", "--server", "http://127.0.0.1:1", "--patience", "0.1", "--cache", str(tmp_path)])
    assert "art-trainer: gave up after 0.1 s" in capsys.readouterr().out


def test_the_token_is_read_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ART_SERVER_TOKEN", "from-the-environment")
    file = tmp_path / "token"
    file.write_text("from-the-file\n")
    assert (read_token(None), read_token(file)) == ("from-the-environment", "from-the-file")
    monkeypatch.delenv("ART_SERVER_TOKEN")
    assert read_token(None) is None
    file.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        read_token(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(tmp_path / "none")


def test_the_cache_is_the_users(monkeypatch):
    monkeypatch.setenv("ART_GYM_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("ART_GYM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/art-gym")


def test_several_workers_get_the_token_by_the_environment(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(working, "run_workers", lambda *given: begun.append(given) or 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "token").write_text("a-secret-of-two")
    passed_on = f"--capacity 7 --cache {tmp_path} --allow-module mine --device cpu --patience 5.0"
    flags = f"--server http://127.0.0.1:1 --token-file {tmp_path / 'token'} --workers 2 --id ann {passed_on}"
    with pytest.raises(SystemExit, match="0"):
        main(["worker", *flags.split()])
    ((words, environment, count, name),) = begun
    command = " ".join(words)
    assert (count, name) == (2, "ann")
    assert "a-secret-of-two" not in command
    assert environment["ART_SERVER_TOKEN"] == "a-secret-of-two"
    assert int(environment["OMP_NUM_THREADS"]) >= 1
    assert all(flag in command for flag in passed_on.split(" --"))


def test_a_worker_that_dies_is_restarted_under_a_new_name_and_later_each_time(caplog):
    worker = WorkerProcess(0, ["worker"], {}, "ann", 0.5)
    for number, pause in ((1, 0.5), (2, 1.0), (3, 2.0)):
        assert worker.next_command() == ["worker", "--id", f"ann-0.{number}"]
        assert worker.pause_after(-9) == pause
    assert len(caplog.messages) == 3
    assert WorkerProcess(0, ["worker"], {}, None, 0.5).next_command() == ["worker"], "it chooses its name"


@pytest.mark.parametrize("code", [0, 2])
def test_a_worker_that_is_done_or_refused_is_not_restarted(tmp_path, caplog, code):
    starts = tmp_path / "starts"
    script = f"import sys; open({str(starts)!r}, 'a').write('x'); sys.exit({code})"
    command = [sys.executable, "-I", "-S", "-c", script]
    assert run_workers(command, {"PATH": os.environ["PATH"]}, 2, None, first_pause=0.01) == code
    assert starts.read_text() == "xx"
    assert caplog.messages == []


SIGNALLED = """
import pathlib, signal, sys, time
heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
pathlib.Path({file!r}).write_text("x")
while not ({heeds} and heard):
    time.sleep(0.01)
"""


@pytest.mark.parametrize(("heeds", "signals", "code"), [(True, 1, 0), (False, 2, 128 + signal.SIGKILL)])
def test_a_signal_is_passed_on_and_a_second_one_kills(tmp_path, caplog, heeds, signals, code):
    caplog.set_level("INFO")
    started = tmp_path / "started"
    script = SIGNALLED.format(file=str(started), heeds=heeds)
    command = [sys.executable, "-I", "-S", "-c", script]
    with ExitStack() as stack:
        for number in range(signals):
            stack.enter_context(
                interrupted(lambda n=number: started.exists() and len(caplog.messages) >= n, signal.SIGTERM)
            )
        assert run_workers(command, {"PATH": os.environ["PATH"]}, 1, None) == code


def test_a_program_that_is_not_there_is_one_error():
    with pytest.raises(ConfigError, match="cannot be started: No such file"):
        run_workers(["/no/such/program"], {}, 1, None)


ENV = f"{MODULE}:guess/Gated-v0"
GROUPS, SIZE = 3, 4
ALL = GROUPS * SIZE
LEASE_SECONDS = 60.0
PLAYED_AGAIN = {"leased": 2 * ALL, "accepted": ALL}
"""Counts if every attempt was leased a second time; what became of the first leases is added."""
PROCESSES = multiprocessing.get_context("forkserver")
"""Processes that need not import PyTorch one by one."""
PROCESSES.set_forkserver_preload(["art_trainer.distributed.worker.worker", MODULE])


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

    def __init__(self, here, folder, now) -> None:
        self.here = here
        self.now = now
        self.gate = folder / "gate"
        self._folder = folder
        self._children = []

    def worker(self, name, *, gated=False, **environment):
        arguments = [
            *("worker", "--server", self.here.server.url, "--id", name, "--capacity", str(ALL)),
            *("--cache", str(self._folder / "cache"), "--allow-module", MODULE),
        ]
        environment["ART_SERVER_TOKEN"] = TOKEN
        if gated:
            environment[GATE] = str(self.gate)
        log = self._folder / f"{name}.log"
        child = PROCESSES.Process(target=run_command, args=(arguments, log, environment))
        child.start()
        self._children.append(child)
        return child

    def ended(self, child, name):
        """Wait for the end of a worker; its exit code and output."""
        child.join(60)
        return child.exitcode, (self._folder / f"{name}.log").read_text()

    def close(self):
        for child in self._children:
            child.kill()
            child.join()
        for log in self._folder.glob("*.log"):
            print(log.name, log.read_text(), sep="\n")  # shown if a test fails
            assert TOKEN not in log.read_text()

    def begin(self, batch=0):
        """Ask for groups."""
        tasks = [GroupSpec(7 * batch + n, SIZE, (batch, n), batch=batch) for n in range(GROUPS)]
        self.here.queue.submit(tasks)
        return tasks

    def begun_by(self, name):
        """Groups are asked for, and a gated worker has leased all of them and begun to play."""
        asked = self.begin()
        child = self.worker(name, gated=True)
        until(lambda: self.here.queue.status().held == {name: ALL})
        until(self.gate.with_name("reached").exists)
        return asked, child

    def expire(self):
        """Let time pass until all leases are over, also if a worker's last words were still on the way."""

        def over():
            self.now.seconds += 2 * LEASE_SECONDS
            return self.results.get("expired") == ALL

        until(over)

    def check(self, tasks):
        """Each attempt was played once, as the trainer itself would have played it."""
        for task, expected in zip(tasks, rollout_groups(self.here.policy, GuessEnv, tasks), strict=True):
            (played,) = self.here.queue.wait([task.id], 300)
            assert [one.turns for one in played.episodes] == [one.turns for one in expected.episodes]

    @property
    def results(self):
        return {name: count for name, count in self.here.queue.status().results.items() if count}


@pytest.fixture
def scene(tmp_path):
    options = {"env": ENV, "lease_seconds": LEASE_SECONDS, "limits": Limits(ping_seconds=600)}
    now = SimpleNamespace(seconds=0.0)
    with served(tmp_path / "run", clock=lambda: now.seconds, **options) as here:
        found = Scene(here, tmp_path, now)
        yield found
        found.close()


@pytest.mark.e2e
def test_a_worker_that_is_killed_loses_nothing(scene):
    asked, killed = scene.begun_by("killed")
    killed.kill()
    assert scene.ended(killed, "killed")[0] == -signal.SIGKILL
    scene.expire()
    scene.worker("next")
    scene.check(asked)
    assert scene.results == PLAYED_AGAIN | {"expired": ALL}


@pytest.mark.e2e
def test_a_worker_that_is_stopped_comes_too_late_and_works_on(scene):
    asked, stopped = scene.begun_by("stopped")
    os.kill(stopped.pid, signal.SIGSTOP)
    scene.expire()
    scene.worker("next")
    scene.check(asked)
    scene.gate.touch()
    os.kill(stopped.pid, signal.SIGCONT)
    until(lambda: scene.results.get("late", 0) + scene.results.get("duplicate", 0) == ALL)
    assert (scene.results["expired"], scene.results["accepted"]) == (ALL, ALL)
    scene.check(scene.begin(batch=1))
    assert scene.results["accepted"] == 2 * ALL


@pytest.mark.e2e
def test_sigterm_gives_the_leases_back_and_ends_well(scene):
    asked, child = scene.begun_by("asked")
    child.terminate()
    until(lambda: scene.results.get("released") == ALL)
    scene.gate.touch()
    scene.worker("next")
    code, output = scene.ended(child, "asked")
    assert code == 0
    assert "done: it got SIGTERM" in output
    scene.check(asked)
    assert scene.results == PLAYED_AGAIN | {"released": ALL}


@pytest.mark.e2e
def test_a_worker_whose_parent_is_gone_ends_itself(scene):
    code, output = scene.ended(scene.worker("orphan", **{PARENT_VARIABLE: "1"}), "orphan")
    assert code == 0
    assert "done: its parent is gone" in output
