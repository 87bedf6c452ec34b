import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from art_trainer.cli import app, main
from art_trainer.commands.settings import DEFAULT, Layer, merge_settings, parse_pairs
from art_trainer.errors import CheckpointError, ConfigError
from art_trainer.records import iter_steps
from art_trainer.run_folder import RunFolder
from tests.art_trainer.chat_servers import serving_words
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model

ROOT = Path(__file__).resolve().parents[2]
ENV = "tests.art_trainer.toy_envs:toy/Echo-v0"
QUICK = ["--max-steps", "2", "--groups-per-step", "2", "--num-generations", "2", "--eval-episodes", "6"]
QUICK += ["--set", "max_completion_length=4", "--threads", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model("qwen2").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run ``art-trainer`` in an empty folder; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")

    def run(*arguments, stdin=""):
        result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def test_help_teaches_with_examples(invoke):
    assert all(name in invoke("--help").output for name in ("train", "eval", "play"))
    for command in ("train", "eval", "play"):
        assert f"art-trainer {command} --" in invoke(command, "--help").output


def test_eval_prints_the_table_and_the_paired_difference(invoke, tmp_path):
    result = invoke(
        "eval",
        "--env",
        ENV,
        "--policy",
        "random",
        "--policy",
        "baseline:scripted",
        "--compare",
        "--json",
        "out.json",
    )
    assert result.exit_code == 0
    assert "test split, 6 episodes" in result.output
    assert "100%" in result.output
    assert "61 to 100" in result.output
    assert "scripted minus random, success: +" in result.output
    saved = json.loads((tmp_path / "out.json").read_text())
    assert [one["policy"] for one in saved["policies"]] == ["random", "baseline:scripted"]
    assert len(saved["policies"][0]["evaluation"]["results"]) == 6


def test_eval_takes_env_arguments_split_and_episodes(invoke):
    result = invoke(
        "eval", "--env", ENV, "--policy", "scripted", "--env-args", "words=1", "--env-args", "max_turns=1",
        "--split", "train", "--episodes", "3",
    )  # fmt: skip
    assert "train split, 3 episodes" in result.output


def test_eval_of_a_model_in_a_folder(invoke, model):
    result = invoke(
        "eval", "--env", ENV, "--policy", model, "--episodes", "3", "--max-completion-length", "4"
    )
    assert result.exit_code == 0
    assert "0 to 56" in result.output


def say_it(asked, number):
    """The word that it was asked to say."""
    return asked.rpartition("Say ")[2].strip().split("!")[0]


def test_eval_of_a_model_behind_a_server(invoke):
    with serving_words(say_it) as url:
        result = invoke("eval", "--env", ENV, "--policy", f"openai:org/m@v2@{url}")
    assert "61 to 100" in result.output


def test_eval_tells_faults_apart(invoke):
    result = invoke("eval", "--env", ENV, "--policy", "scripted", "--env-args", "fragile=true")
    assert "first fault of scripted: RuntimeError: out of paint" in result.output
    assert "57 to 100" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["eval", "--env", "art/Emial-v0", "--policy", "random"], "no environment 'art/Emial-v0'"),
        (["eval", "--env", ENV, "--policy", "random", "--env-args", "wrods=2"], "wrods=2"),
        (["eval", "--env", ENV, "--policy", "random", "--env-args", "words=9"], "must be 1 to 3, not 9"),
        (["eval", "--env", ENV, "--policy", "random", "--env-args", "words"], "--env-args takes key=value"),
        (["eval", "--env", ENV, "--policy", "baseline:scriptd"], "did you mean `scripted`?"),
        (["eval", "--env", ENV, "--policy", "random", "--split", "tset"], "did you mean `test`?"),
        (["eval", "--env", ENV, "--policy", "random", "--compare"], "--compare needs at least two"),
        (["eval", "--env", ENV, "--policy", "scriptde"], "no policy 'scriptde'; did you mean `scripted`?"),
        (["eval", "--env", ENV, "--policy", "./runs/gone"], "no model at './runs/gone'"),
        (["eval", "--env", ENV, "--policy", "openai:"], "write openai:MODEL@URL"),
        (["train", "--env", ENV, "--set", "lerning_rate=1"], "--set: no setting `lerning_rate`; did you"),
        (["train", "--env", ENV, "--num-generations", "1"], "num_generations from flag"),
        (["train", "--config", "missing.yaml"], "--config: no such file: missing.yaml"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_of_words_and_exit_code_2(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert words in capsys.readouterr().err


def test_a_folder_without_a_model_names_what_was_tried(capsys, tmp_path):
    with pytest.raises(SystemExit) as exit_:
        main(["eval", "--env", ENV, "--policy", str(tmp_path)])
    assert exit_.value.code == 2
    assert "no folder with a model, no baseline of the environment" in capsys.readouterr().err


def test_play_reads_replies_from_a_pipe(invoke):
    result = invoke("play", "--env", ENV, "--task", "test-2", stdin="red\nblue\n")
    assert result.exit_code == 0
    assert "Wrong." in result.output
    assert "› blue" in result.output
    assert "Solved: reward 0.800 in 2 turns" in result.output


def test_play_ends_politely_when_the_input_ends(invoke):
    result = invoke("play", "--env", ENV, "--task", "test-2", stdin="red\n")
    assert result.exit_code == 0
    assert "You left before the end" in result.output


def test_play_watches_a_policy(invoke):
    result = invoke("play", "--env", ENV, "--task", "test-2", "--policy", "scripted")
    assert "› blue" in result.output
    assert "Solved" in result.output


def test_later_layers_hide_earlier_ones_and_sources_are_kept():
    settings = merge_settings([
        Layer("preset", {"learning_rate": 0.5, "max_steps": 9, "seed": 1}),
        Layer("run.yaml", {"learning_rate": "1e-3", "env_args": {"words": 2}, "max_steps": 8}),
        Layer("flag", {"max_steps": 7}),
    ])  # fmt: skip
    assert (settings.config.max_steps, settings.config.learning_rate, settings.config.seed) == (7, 0.001, 1)
    sources = settings.sources
    assert [sources[n] for n in ("max_steps", "learning_rate", "seed", "beta")] == [
        "flag",
        "run.yaml",
        "preset",
        DEFAULT,
    ]
    again = merge_settings([Layer("saved", settings.to_mapping())])
    assert (again.run, again.config) == (settings.run, settings.config)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"modle": "x"}, "run.yaml: no setting `modle`; did you mean `model`?"),
        ({"lora": "sixteen"}, "run.yaml: lora is 'sixteen'; set a value of type int or null"),
        ({"lora": True}, "lora is True"),
        ({"lora": 0}, "lora is 0: set at least 1"),
        ({"env_args": [1]}, "set a value of type dict"),
        ({"warm_start_noise": 1.5}, r"warm_start_noise is 1\.5: set a share from 0 to 1"),
        ({"warm_start_learning_rate": 0.0}, "set a finite number above 0"),
        ({"scratch": {"layer": 2}}, "scratch: no `layer`; did you mean `layers`"),
        ({"history_window": 0}, "history_window is 0: set at least 1"),
        ({"max_steps": "many"}, r"max_steps is 'many'.* \(max_steps from run.yaml\)"),
    ],
)
def test_wrong_settings_say_what_and_where(values, words):
    with pytest.raises(ConfigError, match=words):
        merge_settings([Layer("run.yaml", values)])


def test_of_mappings_a_layer_hides_single_entries():
    layers = [Layer("preset", {"env_args": {"a": 1, "b": 2}}), Layer("flag", {"env_args": {"b": 3, "c": 4}})]
    assert merge_settings(layers).run.env_args == {"a": 1, "b": 3, "c": 4}


def test_numbers_that_yaml_takes_for_text_are_numbers():
    assert (
        merge_settings([Layer("--set", {"warm_start_learning_rate": "2e-3"})]).run.warm_start_learning_rate
        == 2e-3
    )


def test_pairs_are_json_or_text():
    read = parse_pairs(["a=1", "b=x=y", "c=[1, 2]", "d=true", "e="], "--env-args")
    assert read == {"a": 1, "b": "x=y", "c": [1, 2], "d": True, "e": ""}
    assert parse_pairs(["a=null", "b=no thing"], "--set", as_yaml=True) == {"a": None, "b": "no thing"}


def test_train_from_beginning_to_report(invoke, tmp_path, model):
    Path("my.yaml").write_text(yaml.safe_dump({"learning_rate": 0.5, "seed": 5, "env_args": {"words": 2}}))
    result = invoke(
        "train", "--env", ENV, "--model", model, *QUICK, "--config", "my.yaml", "--learning-rate", "1e-3",
        "--set", "lr_scheduler_type=constant", "--output-dir", "out",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for name, value, source in [
        ("learning_rate", "0.001", "flag"),
        ("seed", "5", "my.yaml"),
        ("lr_scheduler_type", "constant", "--set"),
    ]:
        row = next(line for line in result.output.splitlines() if f" {name} " in line)
        assert value in row
        assert source in row
    assert "step 2/2" in result.output
    assert "baseline scripted" in result.output
    assert "Success went from" in result.output
    folder = RunFolder(tmp_path / "out")
    assert len(folder.metrics().records) == 2
    assert set(folder.baselines()) == {"random", "scripted"}
    assert [r.seed for r in folder.evaluation("before").results] == [
        r.seed for r in folder.evaluation("after").results
    ]
    assert len(folder.transcripts("after")) == 6
    assert list(folder.checkpoints.iterdir())
    assert "art-trainer train --config run.yaml" in folder.report_file.read_text()
    assert folder.settings()["env_args"] == {"words": 2}


def test_a_second_run_does_not_touch_the_first_and_a_longer_one_goes_on(invoke, tmp_path, model, capsys):
    assert invoke("train", "--env", ENV, "--model", model, *QUICK).exit_code == 0
    run = tmp_path / "runs" / "Echo-v0-tiny-1"
    assert run.is_dir()
    before = (run / "evaluations" / "before.json").read_text()
    with pytest.raises(ConfigError, match="already holds a run: go on with it by --resume"):
        invoke("train", "--env", ENV, "--model", model, *QUICK, "--output-dir", run)
    result = invoke("train", "--resume", run, "--max-steps", "3")
    assert result.exit_code == 0
    assert "Going on after step 2." in result.output
    assert [record["step"] for record in RunFolder(run).metrics().records] == [1, 2, 3]
    assert (run / "evaluations" / "before.json").read_text() == before
    evaluated = invoke(
        "eval", "--env", ENV, "--policy", run, "--episodes", "2", "--max-completion-length", "4"
    )
    assert evaluated.exit_code == 0


def test_a_model_made_from_nothing_is_warmed_up_trained_and_gone_on_with(invoke, tmp_path):
    small = ["--set", "scratch={layers: 1, hidden_size: 16, heads: 2, vocabulary_size: 400}"]
    small += ["--warm-start", "scripted", "--set", "warm_start_episodes=6", "--history-window", "1"]
    result = invoke("train", "--env", ENV, *QUICK, *small, "--train-env-args", "words=1")
    assert result.exit_code == 0, result.output
    assert "warm start: 6 replies in 6 episodes of scripted" in result.output
    run = tmp_path / "runs" / "Echo-v0-scratch-1"
    assert RunFolder(run).settings()["train_env_args"] == {"words": 1}
    result = invoke("train", "--resume", run, "--max-steps", "3")
    assert result.exit_code == 0, result.output
    assert "warm start:" not in result.output
    assert "Going on after step 2." in result.output
    assert invoke("eval", "--env", ENV, "--policy", run, "--episodes", "2").exit_code == 0


def test_a_player_to_imitate_must_exist(invoke):
    with pytest.raises(
        ConfigError, match="warm_start: the environment has no player `scritped`; did you mean"
    ):
        invoke("train", "--env", ENV, *QUICK, "--warm-start", "scritped")


# Raised between two libraries: PEFT reads a property that Transformers has renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_lora_trains_an_adapter_only(invoke, tmp_path, model):
    result = invoke("train", "--env", ENV, "--model", model, *QUICK, "--lora", "2", "--output-dir", "out")
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "out" / "checkpoints").glob("*/model/adapter_model.safetensors"))


def test_ctrl_c_saves_a_checkpoint_and_a_report_and_says_how_to_go_on(tmp_path, model):
    command = [sys.executable, "-m", "art_trainer.cli", "train", "--env", ENV, "--model", model, *QUICK]
    command += ["--max-steps", "100000", "--output-dir", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    told = []
    for line in process.stdout:
        told.append(line)
        if line.startswith("step "):
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, "".join(told) + rest
    assert f"art-trainer train --resume {tmp_path / 'out'}" in rest
    assert "Traceback" not in rest
    folder = RunFolder(tmp_path / "out")
    assert list(folder.checkpoints.iterdir())
    assert "had not finished" in folder.report_file.read_text()


def test_the_command_runs_as_a_process(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "from art_trainer.cli import main; main()", "play", "--env", ENV]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, input="purple\n", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "You left before the end" in done.stdout


def test_without_the_extra_the_words_say_what_to_install(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "art_trainer.cli"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert 'pip install "art-gym[train]"' in done.stderr


def test_resume_goes_back_to_an_older_checkpoint_only_where_it_is_told_to(invoke, model, tmp_path):
    settings = [*QUICK, "--set", "save_steps=1", "--set", "save_total_limit=5", "--set", "baselines=[]"]
    assert invoke("train", "--env", ENV, "--model", model, "--output-dir", "run", *settings).exit_code == 0
    checkpoints = tmp_path / "run" / "checkpoints"
    newest = checkpoints / "step-000002" / "model" / "model.safetensors"
    weights = newest.read_bytes()
    newest.write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged.*whole one is .*step-000001"):
        invoke("train", "--resume", "run")
    with pytest.raises(CheckpointError, match="no checkpoint of step 7: there are those of 1, 2"):
        invoke("train", "--resume", "run", "--resume-step", 7)
    with pytest.raises(ConfigError, match="add --resume RUN"):
        invoke("train", "--resume-step", 1)
    again = invoke("train", "--resume", "run", "--resume-step", 1)
    assert again.exit_code == 0
    assert "Going on after step 1." in again.output
    # The same step came out again, and is there once.
    assert newest.read_bytes() == weights
    assert [record.step for record in iter_steps(tmp_path / "run")] == [1, 2]
    assert invoke("replay", "run", "--step", 2).exit_code == 0
