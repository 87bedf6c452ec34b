"""``art-trainer worker``: what it refuses to import, and how it watches over several processes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import typer

from art_trainer.cli import worker as working
from art_trainer.cli.access import read_token
from art_trainer.cli.main import main
from art_trainer.cli.worker import Inference, WorkerJob, allowed_environments, cache_folder, run_workers
from art_trainer.distributed.worker.connection import RefusedError
from art_trainer.errors import ConfigError
from tests.art_trainer.distributed.server_helpers import served


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


def test_several_workers_get_the_token_by_the_environment(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(working, "run_workers", lambda *given: begun.append(given) or 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    file = tmp_path / "token"
    file.write_text("a-secret-of-two")
    with pytest.raises(typer.Exit) as ended:
        working.worker(
            server="http://127.0.0.1:1",
            token_file=file,
            capacity=7,
            workers=2,
            inference=Inference.OWN,
            id_="ann",
            cache=tmp_path,
            allow_module=["mine"],
            device="cpu",
            env_threads=1,
            patience=5.0,
        )
    assert ended.value.exit_code == 0
    ((words, environment, count, name),) = begun
    command = " ".join(words)
    assert (count, name) == (2, "ann")
    assert "a-secret-of-two" not in command
    assert environment["ART_SERVER_TOKEN"] == "a-secret-of-two"
    assert int(environment["OMP_NUM_THREADS"]) >= 1
    for flag in ("--capacity 7", f"--cache {tmp_path}", "--allow-module mine", "--device cpu"):
        assert flag in command


def test_a_worker_that_dies_is_restarted_under_a_new_name_and_later_each_time(caplog):
    job = WorkerJob(0, ["worker"], "ann", 0.5)
    for number, pause in ((1, 0.5), (2, 1.0), (3, 2.0)):
        assert job.start() == ["worker", "--id", f"ann-0.{number}"]
        assert job.end(-9, "was killed") == pause
    assert len(caplog.messages) == 3
    assert WorkerJob(0, ["worker"], None, 0.5).start() == ["worker"], "it chooses its name"


@pytest.mark.parametrize("code", [0, 2])
def test_a_worker_that_is_done_or_refused_is_not_restarted(tmp_path, caplog, code):
    starts = tmp_path / "starts"
    script = f"import sys; open({str(starts)!r}, 'a').write('x'); sys.exit({code})"
    command = [sys.executable, "-I", "-S", "-c", script]
    assert run_workers(command, {"PATH": os.environ["PATH"]}, 2, None, first_pause=0.01) == code
    assert starts.read_text() == "xx"
    assert caplog.messages == []
