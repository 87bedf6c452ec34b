"""Failures fail: one line, an exit code that is not 0, and before the work where that can be known before."""

import errno
import io
import json
import os
import sys
from pathlib import Path
from unittest.mock import Mock

import openai
import pytest
import torch
from openai import OpenAI
from safetensors import SafetensorError

from art_trainer.cli import run_config
from art_trainer.cli.eval import stop_at_faults
from art_trainer.cli.main import main, user_error
from art_trainer.cli.run_config import claimed_folder, env_of_policies, gather_settings
from art_trainer.cli.training_run import hint_at_success, reported
from art_trainer.errors import ConfigError, EvaluationFailedError, StalledError
from art_trainer.tracking import run_dir
from art_trainer.tracking.run_dir import RunFolder, require_writable

ENV = ("--env", "tests.art_trainer.toy_envs:toy/Echo-v0")
WRITING = {
    "train": ("train", *ENV, "--output-dir"),
    "serve": ("serve", *ENV, "--output-dir"),
    "export": ("export", "RUN"),
    "export-data": ("export-data", "RUN"),
    "eval": ("eval", *ENV, "--policy", "random", "--json"),
    "judge eval": ("judge", "eval", *ENV, "--json"),
    "analyze": ("analyze", "RUN", "--json"),
}
"""Commands that write; what they write comes last."""


@pytest.mark.parametrize("name", WRITING)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(name, refused, trained_run, monkeypatch):
    command = [str(trained_run) if word == "RUN" else word for word in WRITING[name]]
    Path("file").touch()
    target = "x.jsonl" if name == "export-data" else "x"
    assert "/file is not a folder" in refused(*command, f"file/{target}")
    fault = OSError(errno.EROFS, "Read-only file system")
    monkeypatch.setattr(run_dir, "TemporaryFile", Mock(side_effect=fault))
    assert f"cannot write {target}: Read-only file system in {Path.cwd()}" in refused(*command, target)
    assert os.listdir() == ["file"]


def test_runs_that_start_together_have_folders_of_their_own_and_a_refused_one_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (gather_settings({"env": ENV[1]}, overrides={}) for _ in range(2))
    with claimed_folder(first) as one, claimed_folder(second) as other:
        assert [run.folder.path.name[-2:] for run in (one, other)] == ["-1", "-2"]
        one.folder.write_settings({"env": ENV[1]})
        again = gather_settings({}, overrides={}, resume=one.folder.path)
        with pytest.raises(ConfigError, match="-1: another process trains this run"), claimed_folder(again):
            pass
    assert os.listdir("runs") == [one.folder.path.name]


def test_a_file_that_has_moved_is_the_same_setting(tmp_path):
    (tmp_path / "box.py").touch()
    for was, same in (("/gone/box.py", True), ("/gone/old.py", False), ("box", False)):
        assert run_config._means_same({"file": was}, {"file": f"{tmp_path}/box.py"}) == same
        assert run_config._means_same(f"{was}:mine/Box-v0", f"{tmp_path}/box.py:mine/Box-v0") == same


def test_a_resume_keeps_the_tasks_and_the_reward_function_of_its_evaluations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl", "a.py", "b.py"):
        Path(name).touch()
    given = {"agent": "true", "tasks": "a.jsonl", "reward": "a.py", "model": "m"}
    for run, more in (("run", {}), ("own", {"eval_tasks": "a.jsonl"})):
        RunFolder(run).write_settings(gather_settings({**given, **more}, overrides={}).to_mapping())
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    for run, name, ending in (("run", "tasks", "jsonl"), ("run", "reward", "py"), ("own", "reward", "py")):
        with pytest.raises(ConfigError, match=f"{name} was {tmp_path}/a.*, not {tmp_path}/b.{ending}: the"):
            gather_settings({name: f"../b.{ending}"}, overrides={}, resume=Path("..", run))
    changed = gather_settings({"tasks": "../b.jsonl"}, overrides={}, resume=Path("../own"))
    assert (changed.run.tasks, changed.run.reward) == (f"{tmp_path}/b.jsonl", f"{tmp_path}/a.py")


def test_a_folder_is_no_place_for_a_file(tmp_path):
    require_writable(tmp_path, folder=True)
    require_writable(tmp_path / "new" / "file.json")
    with pytest.raises(ConfigError, match="it is a folder, name a file in it"):
        require_writable(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is not a folder"):
        require_writable(tmp_path / "file", folder=True)


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ("No space left on device", 1)),
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), ("Permission denied: a/b", 1)),
        (FileNotFoundError("no such file: x"), ("no such file: x", 2)),
        (SafetensorError("I/O error: No space left"), ("I/O error: No space left", 1)),
        (ConfigError("two\n  lines"), ("two lines", 2)),
        (StalledError("no gradient"), ("no gradient", 3)),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), None),
        (ValueError("a bug"), None),
        (ModuleNotFoundError(name="fastapi"), ('this needs fastapi; run: pip install "art-gym[serve]"', 2)),
        (ModuleNotFoundError(name="a_bug"), None),
    ],
)
def test_what_a_user_can_mend_is_a_line_and_a_code_and_a_bug_is_not(error, found):
    assert user_error(error) == found


def test_damaged_settings_are_one_line(refused):
    Path("run").mkdir()
    for text, words in (("env: [\nmodel: }", ""), ("a: {b: 1, b: 2}", ': the key `b` is there twice in "<')):
        Path("run/run.yaml").write_text(text)
        for command in (("train", "--resume", "run"), ("analyze", "run")):
            assert f"run/run.yaml is not YAML{words}" in refused(*command)


NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("nonsense", "device is 'nonsense': Expected one of cpu, cuda"),
        pytest.param("cuda", "device is 'cuda': ", marks=NO_CUDA),
    ],
)
def test_a_device_that_is_not_there_is_refused_before_the_work(device, words, refused, model):
    assert words in refused("train", *ENV, "--model", model, "--set", f"device={device}")
    assert not Path("runs").exists()
    assert words in refused("eval", *ENV, "--policy", "random", "--policy", model, "--device", device)


def test_a_policy_whose_server_is_dead_is_given_up_after_a_few_faults(invoke, monkeypatch):
    monkeypatch.setattr(openai, "OpenAI", lambda **options: OpenAI(**{**options, "max_retries": 0}))
    dead = ("--policy", "openai:none@http://127.0.0.1:9/v1")
    with pytest.raises(EvaluationFailedError, match=r"^openai:none@.*first episodes: .*Connection error"):
        invoke("eval", *ENV, *dead, "--samples", 9, "--json", "f.json")
    assert not Path("f.json").exists()
    both = invoke("eval", *ENV, "--policy", "random", *dead, "--compare", "--json", "f.json")
    assert both.exit_code == 1
    assert "test split, 6 episodes" in both.output
    assert "openai:none@http://127.0.0.1:9/v1: nothing was evaluated" in both.output
    assert [one["policy"] for one in json.loads(Path("f.json").read_text())["policies"]] == ["random"]


def test_faults_are_too_many_if_they_come_first_or_are_all():
    played = []

    def feed(endings, episodes):
        limit = stop_at_faults("it", episodes, played.append)
        for number, failed in enumerate(endings):
            try:
                limit(Mock(failed=failed, error="no room"))
            except EvaluationFailedError as error:
                return number + 1, str(error)
        return None

    assert feed([True] * 99, 99) == (
        8,
        "it: nothing was evaluated, a fault ended its first episodes: no room",
    )
    assert feed([True] * 3, 3) is not None
    assert feed([True] * 7 + [False] + [True] * 99, 107) is None
    assert len(played) == 8 + 3 + 107


BROKEN = '''
from art_gym import Outcome, TextEnv, tool

class DeskEnv(TextEnv):
    instructions = "Answer."

    @tool(ends=True)
    def answer(self) -> Outcome:
        """Answer."""
        return Outcome({}["desk"])
'''


def test_training_on_an_environment_that_only_fails_stops_with_its_fault(invoke):
    Path("broken_desk.py").write_text(BROKEN)
    with pytest.raises(
        EvaluationFailedError, match=r"^baseline-random: .*KeyError: 'desk' \(broken_desk.py, line 10\)"
    ):
        invoke("train", "--env", "broken_desk.py", "--model", "scratch", "--max-steps", 1)


def test_a_report_that_fails_hides_no_error_of_its_run(tmp_path, caplog):
    folder = RunFolder(tmp_path / "run")
    folder.costs_file.mkdir(parents=True)
    with pytest.raises(StalledError, match="no gradient"), reported(folder, "train"):
        raise StalledError("no gradient")
    assert f"No report: [Errno 21] Is a directory: '{folder.costs_file}'" in caplog.text
    with pytest.raises(IsADirectoryError), reported(folder, "train"):
        pass


@pytest.mark.parametrize(("success", "told"), [(False, True), (None, False), (True, False)])
def test_a_run_in_which_nothing_succeeds_asks_where_success_comes_from(success, told, caplog):
    results = [Mock(success=success, reward=reward, fault=False) for reward in (0.0, 1.0)]
    with caplog.at_level("INFO"):
        hint_at_success([("before", Mock(results=results))], [{"success": 0.0}])
    assert ("Outcome(success=True)" in caplog.text) == told


def test_the_environment_of_a_policy_is_that_of_its_run_or_of_its_checkpoints_run(tmp_path, monkeypatch):
    checkpoint = tmp_path / "run/checkpoints/step-000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    settings = tmp_path / "run/run.yaml"
    settings.write_text("env: toy/Echo-v0\nenv_args: {words: 2}")
    monkeypatch.chdir(checkpoint)
    for policy in (str(tmp_path / "run"), str(checkpoint), "."):
        assert env_of_policies(["random", policy]) == ("toy/Echo-v0", {"words": 2})
    (tmp_path / "run/metrics.jsonl").touch()
    for text in ("max_steps: 3", "env: ''\ntasks: tasks.jsonl", None):
        settings.unlink() if text is None else settings.write_text(text)
        with pytest.raises(ConfigError, match="names no environment: give --env"):
            env_of_policies([str(tmp_path / "run")])


def test_a_message_is_printed_as_it_is_and_in_any_encoding(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(SystemExit):
        main(["train", "--config", "openai:x: – [bold]"])
    stream.flush()
    assert b"openai:x: ? [bold]" in stream.buffer.getvalue()
