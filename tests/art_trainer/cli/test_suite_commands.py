"""``art-trainer eval`` with suites, ``eval --verify`` and ``make-suite``."""

import json
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch

import tests.art_trainer.toy_envs  # noqa: F401 (registers toy/Echo-v0)
from art_trainer.analysis.result_files import read_record
from art_trainer.analysis.suites import load_suite
from art_trainer.cli.eval import command_of, files_of

ENV = "toy/Echo-v0"


@pytest.fixture
def echo_suite(invoke):
    """A suite of one's own, in the working folder."""
    invoke("make-suite", "echo.yaml", "--env", ENV, "--episodes", 4, "--about", "Say it.")
    return "echo.yaml"


def test_a_suite_is_played_and_repeated(invoke, echo_suite, tmp_path):
    played = invoke(
        "eval", "--suite", echo_suite, "--policy", "random", "--policy", "scripted", "--samples", 2,
        "--compare", "--by", "word", "--json", "out/a.json",
    )  # fmt: skip
    assert played.exit_code == 0
    assert "Suite echo: Say it." in played.output
    assert "8 episodes (2 attempts at each start)" in played.output
    assert "pass@2" in played.output
    assert "success by word" in played.output
    assert "random minus scripted, success: -" in played.output
    assert "random against scripted: Episodes won 0, lost 4, solved by both 4, by neither 0" in played.output
    assert "random against scripted: Lost: test-0, test-1" in played.output
    record = read_record(tmp_path / "out" / "a.json")
    assert record.suite.samples == 2
    assert record.suite.task_list_sha256 == load_suite(echo_suite).task_list_sha256
    assert record.policies[1].command == "art-trainer eval --suite echo.yaml --samples 2 --policy scripted"
    again = invoke("eval", "--verify", "out/a.json")
    assert again.exit_code == 0
    assert "random: all 8 episodes are the same." in again.output
    assert "Versions, commit and machine are the same." in again.output


def test_the_command_of_a_result_makes_it_again(invoke, echo_suite, tmp_path):
    for flags in (
        f"--suite {echo_suite} --temperature 0.5",
        f"--env {ENV} --env-args words=2 --env-args max_turns=1 --split train --episodes 5",
        f"--env {ENV} --samples 3 --seed 9",
    ):
        assert invoke("eval", *flags.split(), "--policy", "random", "--json", "first.json").exit_code == 0
        first = read_record(tmp_path / "first.json")
        words = first.policies[0].command.split()[1:]
        assert invoke(*words, "--json", "second.json").exit_code == 0
        second = read_record(tmp_path / "second.json")
        assert second.suite == first.suite
        assert second.policies[0].command == first.policies[0].command
        assert second.policies[0].evaluation.results == first.policies[0].evaluation.results


def test_a_changed_result_is_found_and_its_exit_code_is_1(invoke, echo_suite, tmp_path):
    invoke("eval", "--suite", echo_suite, "--policy", "random", "--policy", "scripted", "--json", "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    data["policies"].append({**data["policies"][0], "policy": "runs/trained"})
    data["policies"][1]["evaluation"]["results"][2]["reward"] += 0.25
    data["made_with"]["packages"]["numpy"] = "0.9"
    (tmp_path / "a.json").write_text(json.dumps(data))
    result = invoke("eval", "--verify", "a.json")
    assert result.exit_code == 1
    assert "random: all 4 episodes are the same." in result.output
    assert "scripted: 1 of 4 episodes differ." in result.output
    assert "runs/trained: not played again, no model at 'runs/trained'" in result.output
    assert "episode 2 (test-2): reward 1.15 → 0.9" in result.output
    assert "changed: numpy: 0.9 then, " in result.output


def test_tasks_that_have_changed_are_noticed(invoke, echo_suite, tmp_path):
    invoke("eval", "--suite", echo_suite, "--policy", "scripted", "--json", "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    data["suite"]["task_list_sha256"] = "0" * 64
    (tmp_path / "a.json").write_text(json.dumps(data))
    result = invoke("eval", "--verify", "a.json")
    assert (result.exit_code, "The tasks have changed" in result.output) == (1, True)


def test_a_model_is_repeated_bit_for_bit_and_other_weights_are_named(invoke, model, tmp_path):
    flags = ["--env", ENV, "--episodes", 3, "--temperature", 1, "--max-completion-length", 4]
    assert invoke("eval", *flags, "--policy", model, "--json", "a.json").exit_code == 0
    record = read_record(tmp_path / "a.json")
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(record.policies[0].files)
    assert record.made_with["threads"] == torch.get_num_threads()
    same = invoke("eval", "--verify", "a.json")
    assert same.exit_code == 0
    assert "all 3 episodes are the same" in same.output
    data = json.loads((tmp_path / "a.json").read_text())
    data["policies"][0]["files_sha256"] |= {"model.safetensors": "00", "config.json": "11"}
    data["policies"][0]["evaluation"]["results"][0]["tokens"] += 1
    (tmp_path / "a.json").write_text(json.dumps(data))
    other = invoke("eval", "--verify", "a.json")
    assert other.exit_code == 1
    assert "the weights have changed (model.safetensors)" in other.output
    assert "other files of the model have changed (config.json)" in other.output


def test_a_hub_models_files_are_those_in_the_cache(model, monkeypatch):
    snapshot = Mock(return_value=model)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert "model.safetensors" in files_of("some-org/some-model", object())
    snapshot.assert_called_once_with("some-org/some-model", local_files_only=True)
    assert files_of("openai:m@http://localhost/v1", object()) == {}


def test_a_metric_of_the_environment_is_printed(invoke):
    invoke("make-suite", "m.yaml", "--env", ENV, "--episodes", 2, "--metric", "turns")
    assert "turns of scripted: 1.000" in invoke("eval", "--suite", "m.yaml", "--policy", "scripted").output


def test_arguments_keep_their_type_in_the_command():
    given = {"policy": ("p",), "env_args": {"a": "5", "b": 5, "d": None}, "device": "cpu", "compare": True}
    assert command_of(given) == (
        "art-trainer eval --env-args 'a=\"5\"' --env-args b=5 --env-args d=null --device cpu"
    )
