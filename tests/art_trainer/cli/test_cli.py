"""``art-trainer`` in process: settings, ``train`` from start to report, ``eval``, ``play``, wrong input."""

import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock
from urllib.request import proxy_bypass

import pytest
import yaml
from typer.testing import CliRunner

from art_gym.cli.app import app as gym_app
from art_trainer.cli import training_run
from art_trainer.cli.main import app, main
from art_trainer.cli.options import first_sentence
from art_trainer.cli.run_config import parse_pairs, setting_doc
from art_trainer.errors import CheckpointError, ConfigError
from art_trainer.formatting import duration
from art_trainer.tracking.episode_schema import LEFT_OUT
from art_trainer.tracking.episode_store import iter_episodes, iter_steps
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.training import run_setup
from art_trainer.training.checkpoint import write_warm_start
from art_trainer.training.run_settings import DEFAULT, SETTINGS, Layer, merge_settings
from tests.wrappers.judging.judge_server import says

ROOT = Path(__file__).resolve().parents[3]
ENV = "tests.art_trainer.toy_envs:toy/Echo-v0"
EVAL = ("eval", "--env", ENV, "--policy")
TRAIN = ("train", "--env", ENV)
QUICK = ["--max-steps", "2", "--groups-per-step", "2", "--num-generations", "2", "--eval-episodes", "6"]
QUICK += ["--set", "max_completion_length=4", "--threads", "1"]
COMMANDS = (
    "train", "self-play", "serve", "worker", "dash", "eval", "play", "export", "analyze",
    "runs", "top", "episodes", "export-data", "config", "judge eval",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(invoke, command):
    assert f"art-trainer {command}" in invoke(*command.split(), "--help").output.partition("Options")[2]


@pytest.mark.parametrize("app", [app, gym_app], ids=["art-trainer", "art-gym"])
def test_the_version_is_printed(app):
    assert CliRunner().invoke(app, ["--version"]).output == f"art-gym {metadata.version('art-gym')}\n"


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_a_text(name):
    sentence = first_sentence(setting_doc(name))
    assert sentence.endswith((".", "``"))
    assert ":func:" not in sentence
    assert " see " not in sentence


@pytest.mark.parametrize("modules", ["cli.main", "cli.console, art_trainer.analysis.report"])
def test_the_command_and_what_reads_runs_load_no_pytorch(modules):
    code = f"import sys, art_trainer.{modules}; print({{'torch', 'transformers'}} & sys.modules.keys())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize(("given", "policy"), [(None, "PASSIVE"), ("active", "ACTIVE")])
def test_threads_wait_without_a_core_unless_the_user_says_so(given, policy):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_DISPLAY_ENV": "true"}
    environment.pop("OMP_WAIT_POLICY", None)
    if given:
        environment["OMP_WAIT_POLICY"] = given
    code = "import art_trainer.cli.main, torch"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr  # as OpenMP, which PyTorch loads, reads it


@pytest.mark.parametrize("given", ["", "intranet", "*"])
def test_this_machine_is_reached_without_the_users_proxy(given, monkeypatch):
    for name, value in (("http_proxy", "http://127.0.0.1:9"), ("no_proxy", ""), ("NO_PROXY", given)):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert [bool(proxy_bypass(host)) for host in ("127.0.0.1:80", "intranet")] == [True, bool(given)]


def test_eval_of_environment_arguments_models_servers_and_faults(invoke, model, serve):
    small = ("--env-args", "words=1", "--env-args", "max_turns=1", "--split", "train", "--episodes", "3")
    assert "train split, 3 episodes" in invoke(*EVAL, "scripted", *small).output
    of_folder = invoke(*EVAL, model, "--episodes", "3", "--max-completion-length", "4")
    assert "0 to 56" in of_folder.output
    last_word = re.compile(r".*Say (\w+)!", re.DOTALL)
    answer = lambda n, request: says(last_word.match(request["messages"][-1]["content"])[1])  # noqa: E731
    assert "61 to 100" in invoke(*EVAL, f"openai:org/m@v2@{serve(answer).url}").output
    fragile = invoke(*EVAL, "scripted", "--env-args", "fragile=true")
    assert "The first: RuntimeError: out of paint" in fragile.output
    assert "57 to 100" in fragile.output


def test_a_policy_is_watched(invoke):
    shown = invoke("play", "--env", ENV, "--task", "test-2", "--policy", "scripted").output
    assert "› blue" in shown
    assert shown.rstrip().endswith("Solved: reward 0.900 in 1 turn (word +1, speed -0.1)")


def test_later_layers_override_earlier_ones_and_sources_are_kept():
    settings = merge_settings([
        Layer("recipe", {"learning_rate": 0.5, "max_steps": 9, "seed": 1, "env_args": {"a": 1, "words": 1}}),
        Layer("run.yaml", {"learning_rate": "1e-3", "env_args": {"words": 2}, "max_steps": 8}),
        Layer("flag", {"max_steps": 7, "warm_start_learning_rate": "2e-3"}),
    ])  # fmt: skip
    assert (settings.config.max_steps, settings.config.learning_rate, settings.config.seed) == (7, 0.001, 1)
    assert settings.run.env_args == {"a": 1, "words": 2}, "of mappings a layer overrides single entries"
    assert settings.run.warm_start_learning_rate == 2e-3
    names = ("max_steps", "learning_rate", "seed", "beta")
    assert [settings.sources[name] for name in names] == ["flag", "run.yaml", "recipe", DEFAULT]
    again = merge_settings([Layer("saved", settings.to_mapping())])
    assert (again.run, again.config) == (settings.run, settings.config)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"modle": "x"}, "run.yaml: no setting `modle`; did you mean `model`?"),
        ({"lora": "sixteen"}, r"lora is 'sixteen' \(str\): set a value of type int or null"),
        ({"lora": True}, "lora is True"),
        ({"lora": 0}, "lora is 0: set at least 1"),
        ({"warm_start_noise": 1.5}, r"warm_start_noise is 1\.5: set a number from 0 to 1"),
        ({"warm_start_rounds": 0}, "warm_start_rounds is 0: set at least 1"),
        ({"warm_start_learning_rate": 0.0}, "set a finite number above 0"),
        ({"history_window": 0}, "history_window is 0: set at least 1"),
        ({"env_args": [1]}, "set a value of type dict"),
        ({"dtype": "float16"}, "set one of 'auto', 'bfloat16', 'float32'"),
        ({"scratch": {"layer": 2}}, "scratch: no `layer`; did you mean `layers`"),
        ({"max_steps": "many"}, r"max_steps is 'many'.* \(max_steps from run.yaml\)"),
    ],
)
def test_errors_name_the_setting_and_its_source(values, words):
    with pytest.raises(ConfigError, match=words):
        merge_settings([Layer("run.yaml", values)])


def test_pairs_are_json_or_text():
    read = parse_pairs(["a=1", "b=x=y", "c=[1, 2]", "d=true", "e="], "--env-args")
    assert read == {"a": 1, "b": "x=y", "c": [1, 2], "d": True, "e": ""}
    assert parse_pairs(["a=null", "b=no thing"], "--set", as_yaml=True) == {"a": None, "b": "no thing"}
    with pytest.raises(ConfigError, match=r"--set a=\[: the value is not YAML"):
        parse_pairs(["a=["], "--set", as_yaml=True)


def test_a_run_may_leave_out_what_the_environment_showed(invoke, refused, tmp_path, model):
    run = tmp_path / "runs" / "Echo-v0-tiny-1"
    invoke(*TRAIN, "--model", model, *QUICK, "--log", "tensorboard", "--set", "log_observations=false")
    episodes = [one.episode for one in iter_episodes(run)] + RunFolder(run).transcripts("after")
    seen = [(one.observation, *(turn.observation for turn in one.turns)) for one in episodes]
    shown = {text for texts in seen for text in texts}
    assert (len(episodes), shown) == (14, {LEFT_OUT})
    assert all(span.logprobs for one in episodes for history in one.histories for span in history.spans)
    texts = [file for file in run.rglob("*") if file.is_file() and "checkpoints" not in file.parts]
    assert not [file for file in texts if b"Say the word" in file.read_bytes()]
    assert "recorded with log_observations: false" in refused("export-data", run, "rows.jsonl")


def test_train_from_beginning_to_report_and_on(invoke, tmp_path, model):
    Path("my.yaml").write_text(yaml.safe_dump({"learning_rate": 0.5, "seed": 5, "env_args": {"words": 2}}))
    result = invoke(
        *TRAIN, "--model", model, *QUICK, "--config", "my.yaml", "--learning-rate", "1e-3",
        "--set", "lr_scheduler_type=constant", "--price-per-hour", "7200",
    )  # fmt: skip
    for row in (("learning_rate", "0.001", "flag"), ("seed", "5", "my.yaml"), ("lr_scheduler_type", "--set")):
        line = next(line for line in result.output.splitlines() if f" {row[0]} " in line)
        assert all(cell in line for cell in row)
    folder = RunFolder(tmp_path / "runs" / "Echo-v0-tiny-1")
    cost = folder.cost()
    assert 0 < cost["price"] == pytest.approx(2 * cost["seconds"])
    assert cost["cpu_seconds"] > 0
    spent = f"Cost: {duration(cost['seconds'])}, {cost['cpu_seconds']:,.0f} CPU-seconds, price "
    assert spent in result.output
    assert spent in folder.report_file.read_text()
    for text in ("step 2/2", "baseline scripted", "Success went from", "run.yaml, or --verbose"):
        assert text in result.output
    assert "adam_epsilon" not in result.output
    assert len(folder.metrics().records) == 2
    assert set(folder.baselines()) == {"random", "scripted"}
    before, after = folder.evaluation("before"), folder.evaluation("after")
    assert [result.seed for result in before.results] == [result.seed for result in after.results]
    assert len(folder.transcripts("after")) == 6
    assert "art-trainer train --config run.yaml" in folder.report_file.read_text()
    assert folder.settings()["env_args"] == {"words": 2}
    texts = (folder.report_file, folder.path / "episodes.jsonl.zst", *folder.evaluations.iterdir())
    assert not [file for file in (folder.path, *texts) if file.stat().st_mode & 0o077]

    with pytest.raises(ConfigError, match="already holds a run: resume it with --resume"):
        invoke(*TRAIN, "--model", model, *QUICK, "--output-dir", folder.path)
    kept = (folder.evaluations / "before.json").read_text()
    resumed = invoke("train", "--resume", folder.path, "--max-steps", "3", "--verbose").output
    assert "Resuming after step 2." in resumed
    assert "adam_epsilon" in resumed
    assert folder.cost()["seconds"] > cost["seconds"]
    assert "the resumed run" in resumed
    assert [record["step"] for record in folder.metrics().records] == [1, 2, 3]
    assert (folder.evaluations / "before.json").read_text() == kept
    evaluated = invoke(*EVAL, folder.path, "--episodes", "2", "--max-completion-length", "4")
    assert evaluated.exit_code == 0


def test_a_model_made_from_scratch_is_warmed_up_trained_and_resumed(invoke, tmp_path):
    small = ["--set", "scratch={layers: 1, hidden_size: 16, heads: 2, vocabulary_size: 400}"]
    small += ["--warm-start", "scripted", "--set", "warm_start_episodes=6", "--history-window", "1"]
    result = invoke(*TRAIN, *QUICK, *small, "--train-env-args", "words=1")
    assert "6 replies of scripted in 6 episodes that it played" in result.output
    run = tmp_path / "runs" / "Echo-v0-scratch-1"
    assert RunFolder(run).settings()["train_env_args"] == {"words": 1}
    assert RunFolder(run).settings()["max_completion_length"] < 24
    resumed = invoke("train", "--resume", run, "--max-steps", "3").output
    assert "Resuming after step 2." in resumed
    assert "warm start:" not in resumed
    assert "the resumed run" not in resumed
    assert invoke(*EVAL, run, "--episodes", "2").exit_code == 0


def test_a_warm_start_that_was_stopped_continues_after_its_last_round(invoke, tmp_path, monkeypatch):
    small = ["--set", "scratch={layers: 1, hidden_size: 16, heads: 2, vocabulary_size: 400}"]
    small += ["--warm-start", "scripted", "--set", "warm_start_episodes=6", "--set", "warm_start_rounds=3"]
    invoke(*TRAIN, *QUICK, *small, "--output-dir", "whole")

    def stop_and_write(*arguments):
        signal.raise_signal(signal.SIGINT)
        write_warm_start(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run_setup, "write_warm_start", stop_and_write)
        assert invoke(*TRAIN, *QUICK, *small, "--output-dir", "stopped").exit_code == 130
        patch.setattr(training_run, "prepare_policy", Mock(side_effect=KeyboardInterrupt))
        loading = invoke("train", "--resume", "stopped")
        assert (loading.exit_code, loading.output.splitlines()[-1]) == (130, "Stopped.")
    with pytest.raises(ConfigError, match="the run stopped has no checkpoint yet: resume it with --resume"):
        invoke(*EVAL, "stopped")
    resumed = invoke("train", "--resume", "stopped").output
    assert "Resuming the warm start after round 1." in resumed
    assert [f"round {number} of 3" in resumed for number in (1, 2, 3)] == [False, True, True]
    one, other = (tmp_path / run / "checkpoints/step-000002/model" for run in ("whole", "stopped"))
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_lora_trains_an_adapter_only_and_is_evaluated_before_it_imitates(invoke, tmp_path, model):
    warm = "--warm-start scripted --set warm_start_episodes=4 --set warm_start_keep=successes".split()
    result = invoke(*TRAIN, "--model", model, *QUICK, "--lora", "2", *warm, "--output-dir", "out")
    assert "4 replies of scripted in 4 episodes that it played" in result.output
    folder = RunFolder(tmp_path / "out")
    assert folder.evaluation("untrained").invalid_rate == 1
    assert list(folder.checkpoints.glob("*/model/adapter_model.safetensors"))
    # A resume that is refused leaves the run's settings as they are, so that the next one works.
    kept = folder.settings_file.read_bytes()
    with pytest.raises(CheckpointError, match=r"another model or rank: .*lora_A.* has shape \(2, "):
        invoke("train", "--resume", "out", "--lora", "4")
    for given, was in (("seed 7", "seed was 42, not 7"), ("env-args a=1", "env_args was {}, not {'a': 1}")):
        with pytest.raises(ConfigError, match=f"{was}: .* Leave it out, or start"):
            invoke("train", "--resume", "out", *f"--{given}".split())
    with pytest.raises(ConfigError, match=r"the run's adapter is of the model .*, not of art-tiny"):
        invoke("train", "--resume", "out", "--model", "art-tiny")
    assert folder.settings_file.read_bytes() == kept


def test_resume_step_goes_back_to_an_older_checkpoint(invoke, model, tmp_path, monkeypatch):
    settings = [*QUICK, "--set", "save_steps=1", "--set", "save_total_limit=5", "--set", "baselines=[]"]
    invoke(*TRAIN, "--model", model, "--output-dir", "run", *settings)
    newest = tmp_path / "run" / "checkpoints" / "step-000002" / "model" / "model.safetensors"
    weights = newest.read_bytes()
    newest.write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged.*whole one is .*step-000001"):
        invoke("train", "--resume", "run")
    assert "Resuming after step 1." in invoke("train", "--resume", "run", "--resume-step", 1).output
    # The same step came out again, and is there once.
    assert newest.read_bytes() == weights
    # The evaluation after it stays until another is whole, unless the run trains on.
    after = tmp_path / "run" / "evaluations" / "after.json"
    monkeypatch.setattr(RunFolder, "write_evaluation", Mock(side_effect=KeyboardInterrupt))
    for steps, kept in ((2, True), (3, False)):
        assert invoke("train", "--resume", "run", "--max-steps", steps).exit_code == 130
        assert after.exists() == kept
    with pytest.raises(CheckpointError, match="has no adapter: its run trained all weights, leave lora out"):
        invoke("train", "--resume", "run", "--lora", 2)
    assert [record.step for record in iter_steps(tmp_path / "run")] == [1, 2, 3]


def test_evaluations_on_tasks_that_are_trained_on_give_a_warning(invoke, model, tmp_path):
    text = "from art_gym import Task\nfrom tests.art_trainer.toy_envs import Echo\n\n\nclass Seen(Echo):\n"
    text += "    def begin(self, task):\n        return super().begin(task)\n\n    @property\n"
    text += "    def tasks(self):\n        return type(self._all)(self._all.split('train'))\n\n"
    text += "    @tasks.setter\n    def tasks(self, tasks):\n        self._all = tasks\n"
    (tmp_path / "seen.py").write_text(text)
    train = ("train", "--env", "seen.py", "--model", model, *QUICK, "--quiet", "--set", "baselines=[]")
    warning = "There is no split 'test': the evaluations before and after play the split 'train'"
    assert warning in " ".join(invoke(*train).output.split())
    assert warning not in " ".join(invoke(*train, "--set", "test_split=train").output.split())
