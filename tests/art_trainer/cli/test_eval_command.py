"""``art-trainer eval``: tables, comparisons, and the file that says how a result is made again."""

import json
import subprocess

import pytest
import torch
from rich.console import Console

import tests.art_trainer.toy_envs  # noqa: F401 (registers toy/Echo-v0)
from art_trainer.cli.console import strata_table
from art_trainer.cli.eval import command_of, git_state
from art_trainer.rollout.evaluate import EpisodeResult, Evaluation
from art_trainer.types import Ending

ENV = "toy/Echo-v0"


def test_policies_are_compared_and_every_episode_is_written(invoke, tmp_path):
    played = invoke(
        "eval", "--env", ENV, "--episodes", 6, "--policy", "random", "--policy", "scripted", "--samples", 2,
        "--compare", "--by", "word", "--json", "out/a.json",
    )  # fmt: skip
    assert played.exit_code == 0
    assert "test split, 12 episodes (2 attempts at each start)" in played.output
    assert "pass@2" in played.output
    assert "success by word" in played.output
    assert "random minus scripted, success: -" in played.output
    assert "random against scripted: Episodes won 0, lost 6, solved by both 6, by neither 0" in played.output
    assert "random against scripted: Lost: test-0, test-1" in played.output
    record = json.loads((tmp_path / "out" / "a.json").read_text())
    assert record["command"] == (
        f"art-trainer eval --policy random --policy scripted --env {ENV} --episodes 6 --samples 2"
    )
    assert [one["policy"] for one in record["policies"]] == ["random", "scripted"]
    evaluation = Evaluation.from_json(record["policies"][1]["evaluation"])
    assert (evaluation.success.value, evaluation.samples) == (1.0, 2)
    assert [one.task_id for one in evaluation.results[::2]] == [f"test-{k}" for k in range(6)]
    made_with = record["made_with"]
    assert {"gymnasium", "numpy", "torch", "transformers"} <= set(made_with["packages"])
    assert made_with["threads"] == torch.get_num_threads()
    few = invoke("eval", "--env", ENV, *"--split train --episodes 40 --policy random".split()).output
    assert "train split, 40 episodes of 6 tasks, 95% intervals" in " ".join(few.split())


@pytest.mark.parametrize(
    "words",
    [
        f"--env {ENV} --env-args words=2 --env-args max_turns=1 --split train --episodes 5 --policy random",
        f"--env {ENV} --samples 3 --seed 9 --policy random --policy scripted",
        f"--env {ENV} --episodes 3 --temperature 1 --max-completion-length 4 --policy MODEL",
    ],
)
def test_the_command_of_a_result_makes_it_again(invoke, tmp_path, model, words):
    def results(*arguments):
        assert invoke(*arguments, "--json", "a.json").exit_code == 0
        record = json.loads((tmp_path / "a.json").read_text())
        return record["command"], [one["evaluation"]["results"] for one in record["policies"]]

    first = results("eval", *words.replace("MODEL", str(model)).split())
    assert results(*first[0].split()[1:]) == first


def test_arguments_keep_their_type_in_the_command():
    given = {"policy": ("p",), "env_args": {"a": "5", "b": 5, "d": None}, "device": "cpu", "compare": True}
    assert command_of(given) == (
        "art-trainer eval --policy p --env-args 'a=\"5\"' --env-args b=5 --env-args d=null --device cpu"
    )


def test_results_by_a_field_are_rewards_where_no_success_is_reported(capsys):
    results = [EpisodeResult(f"t{k}", k, Ending.TERMINATED, None, k, {}, {}, 1, 0, 0) for k in range(4)]
    tasks = {f"t{k}": {"level": k // 2} for k in range(4)}
    evaluation = Evaluation("p", "e", None, 0, tuple(results), 1.0, tasks=tasks)
    Console().print(strata_table([("p", evaluation)], "level"))
    output = capsys.readouterr().out
    assert "reward by level" in output
    assert " 0.500 " in output
    assert " 2.500 " in output


def test_the_commit_and_uncommitted_changes_are_recorded(tmp_path):
    def git(*words):
        identity = ["-c", "user.name=A", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    assert git_state(tmp_path) is None
    git("init")
    assert git_state(tmp_path) is None  # nothing is committed
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "first")
    state = git_state(tmp_path)
    assert len(state) == 40
    (tmp_path / "new").write_text("not tracked")
    assert git_state(tmp_path) == state
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path) == f"{state}-dirty"
