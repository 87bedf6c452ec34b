"""``art-trainer worker``: what it refuses to import, and how it watches over several processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import gymnasium as gym
import pytest
from rich.console import Console

from art_trainer.commands import working
from art_trainer.commands.tokens import read_token
from art_trainer.commands.worker_processes import Supervisor
from art_trainer.commands.working import WorkerRequest, allowed_environments, cache_folder, run_worker
from art_trainer.errors import ConfigError
from art_trainer.remote.worker_errors import RefusedError


def test_a_module_is_imported_only_where_it_is_allowed(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text(
        "import gymnasium as gym, pathlib\n"
        f"pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        "gym.register('stranger/Env-v0', 'art_gym.envs.mail.env:EmailEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for modules in ((), ("other",), ("stranger.more",)):
        with pytest.raises(RefusedError, match="--allow-module stranger if you trust it"):
            allowed_environments(modules)("stranger:stranger/Env-v0", {})
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ConfigError, match="cannot be made with no_such_argument"):
        allowed_environments(["stranger"])("stranger:stranger/Env-v0", {"no_such_argument": 1})
    assert (tmp_path / "ran").exists()
    gym.registry.pop("stranger/Env-v0")


def test_registered_environments_are_made():
    env = allowed_environments(())("art/2048-v0", {"board_size": 3})()
    env.reset(seed=0)
    env.close()
    with pytest.raises(ConfigError, match="no environment 'art/2084-v0'"):
        allowed_environments(())("art/2084-v0", {})


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
    assert cache_folder() == Path("/somewhere/worker")
    monkeypatch.delenv("ART_GYM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/art-gym/worker")


def test_several_workers_get_the_token_where_nobody_sees_it(tmp_path, monkeypatch):
    begun = []

    class Watched(Supervisor):
        def run(self):
            begun.append(self)
            return 0

    monkeypatch.setattr(working, "Supervisor", Watched)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    file = tmp_path / "token"
    file.write_text("a-secret-of-two")
    request = WorkerRequest(
        server="http://127.0.0.1:1",
        token_file=file,
        capacity=7,
        workers=2,
        inference="own",
        client_id="ann",
        cache=tmp_path,
        allow_modules=("mine",),
        device="cpu",
        env_threads=1,
        patience=5.0,
    )
    assert run_worker(request, Console()) == 0
    (watched,) = begun
    command = " ".join(watched._command)
    assert "a-secret-of-two" not in command
    assert watched._environment["ART_SERVER_TOKEN"] == "a-secret-of-two"
    assert int(watched._environment["OMP_NUM_THREADS"]) >= 1
    for words in ("--capacity 7", f"--cache {tmp_path}", "--allow-module mine", "--device cpu"):
        assert words in command


def supervised(script, count=1, name=None, **environment):
    """A supervisor of little Python programs, which find their name in ``sys.argv``."""
    said = []
    command = [sys.executable, "-I", "-S", "-c", script]
    environment = {"PATH": os.environ["PATH"], **environment}
    return Supervisor(command, environment, count, name, said.append, first_pause=0.01), said


COUNTED = """
import os, pathlib, sys
starts = pathlib.Path(os.environ["STARTS"])
with starts.open("a") as stream: stream.write(" ".join(sys.argv[1:]) + "\\n")
"""


def test_a_worker_that_dies_is_started_again_under_a_new_name(tmp_path):
    starts = tmp_path / "starts"
    script = COUNTED + "sys.exit(1 if len(starts.read_text().splitlines()) < 3 else 0)"
    supervisor, said = supervised(script, name="ann", STARTS=str(starts))
    assert supervisor.run() == 0
    assert starts.read_text().splitlines() == ["--id ann-0.1", "--id ann-0.2", "--id ann-0.3"]
    assert said == [
        "worker 0 ended with code 1; it is started again in 0.01 s",
        "worker 0 ended with code 1; it is started again in 0.02 s",
    ]


def test_a_worker_that_is_killed_is_started_again(tmp_path):
    starts = tmp_path / "starts"
    script = COUNTED + "len(starts.read_text().splitlines()) < 2 and os.kill(os.getpid(), 9)"
    supervisor, said = supervised(script, STARTS=str(starts))
    assert supervisor.run() == 0
    assert said == ["worker 0 was killed by signal 9; it is started again in 0.01 s"]


def test_a_worker_that_was_refused_is_not(tmp_path):
    starts = tmp_path / "starts"
    supervisor, said = supervised(COUNTED + "sys.exit(2)", count=2, STARTS=str(starts))
    assert supervisor.run() == 2
    assert len(starts.read_text().splitlines()) == 2
    assert said == []


def test_sigterm_is_passed_on_and_waited_for(tmp_path):
    starts = tmp_path / "starts"
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + COUNTED + "time.sleep(600)"
    )
    supervisor, _ = supervised(script, count=2, STARTS=str(starts))

    def end():
        while not starts.exists() or len(starts.read_text().splitlines()) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    before = signal.getsignal(signal.SIGTERM)
    assert supervisor.run() == 0
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
    assert all(place.process.returncode == 0 for place in supervisor._places)
