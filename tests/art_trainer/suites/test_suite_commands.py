import json

import huggingface_hub
import pytest
import yaml
from typer.testing import CliRunner

import tests.art_trainer.toy_envs  # noqa: F401 (registers toy/Echo-v0)
from art_trainer.cli import app, main
from art_trainer.commands.suite_words import command_for, files_of
from art_trainer.suites import Suite, load_suite, read_record
from tests.art_trainer.chat_servers import serving_words
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model

ENV = "toy/Echo-v0"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model("qwen2").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run ``art-trainer`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")

    def run(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def echo_suite(invoke):
    """A suite of one's own, in the working folder."""
    assert (
        invoke("make-suite", "echo.yaml", "--env", ENV, "--episodes", 4, "--about", "Say it.").exit_code == 0
    )
    return "echo.yaml"


def test_the_suites_are_listed(invoke):
    listed = invoke("suites").output
    assert "email-v0-test" in listed
    assert "265" in listed


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
    assert "scripted minus random, success: +" in played.output
    assert "random → scripted: Starts won 4, lost 0, solved by both 4, by neither 0." in played.output
    assert "random → scripted: Won: test-0, test-1" in played.output
    assert ", p " in played.output
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
        ["--suite", echo_suite, "--temperature", "0.5"],
        [
            "--env",
            ENV,
            "--env-args",
            "words=2",
            "--env-args",
            "max_turns=1",
            "--split",
            "train",
            "--episodes",
            "5",
        ],
        ["--env", ENV, "--samples", "3", "--seed", "9"],
    ):
        assert invoke("eval", *flags, "--policy", "random", "--json", "first.json").exit_code == 0
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
    data["policies"][1]["evaluation"]["results"][2]["reward"] += 0.25
    data["made_with"]["packages"]["numpy"] = "0.9"
    (tmp_path / "a.json").write_text(json.dumps(data))
    result = invoke("eval", "--verify", "a.json")
    assert result.exit_code == 1
    assert "random: all 4 episodes are the same." in result.output
    assert "scripted: 1 of 4 episodes differ." in result.output
    assert "episode 2 (test-2): reward 1.15 → 0.9" in result.output
    assert "changed: numpy: 0.9 then, " in result.output


def test_a_policy_that_is_not_here_is_named_and_the_others_are_played_again(invoke, echo_suite, tmp_path):
    invoke("eval", "--suite", echo_suite, "--policy", "random", "--policy", "scripted", "--json", "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    data["policies"][0]["policy"] = "runs/trained"
    (tmp_path / "a.json").write_text(json.dumps(data))
    result = invoke("eval", "--verify", "a.json")
    assert result.exit_code == 1
    assert "runs/trained: not played again, no model at 'runs/trained'" in result.output
    assert "scripted: all 4 episodes are the same." in result.output


def test_results_that_are_the_same_under_other_versions_are_the_same(invoke, echo_suite, tmp_path):
    invoke("eval", "--suite", echo_suite, "--policy", "scripted", "--json", "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    data["made_with"]["python"] = "3.9.0"
    (tmp_path / "a.json").write_text(json.dumps(data))
    result = invoke("eval", "--verify", "a.json")
    assert result.exit_code == 0
    assert "changed: python: 3.9.0 then" in result.output


def test_tasks_that_have_changed_are_noticed(invoke, echo_suite, tmp_path, monkeypatch, capsys):
    invoke("eval", "--suite", echo_suite, "--policy", "scripted", "--json", "a.json")
    suite = yaml.safe_load((tmp_path / echo_suite).read_text())
    suite["task_list_sha256"] = "0" * 64
    (tmp_path / echo_suite).write_text(yaml.safe_dump(suite))
    with pytest.raises(SystemExit) as exit_:
        main(["eval", "--suite", echo_suite, "--policy", "scripted"])
    assert exit_.value.code == 2
    assert "graded with has changed" in capsys.readouterr().err
    data = json.loads((tmp_path / "a.json").read_text())
    data["suite"]["task_list_sha256"] = "0" * 64
    (tmp_path / "a.json").write_text(json.dumps(data))
    result = invoke("eval", "--verify", "a.json")
    assert result.exit_code == 1
    assert "The tasks are others" in result.output


def test_a_model_is_repeated_to_the_bit_and_other_weights_are_told(invoke, model, tmp_path):
    import torch

    threads = torch.get_num_threads()
    flags = ["--env", ENV, "--episodes", 3, "--temperature", 1, "--max-completion-length", 4]
    assert invoke("eval", *flags, "--policy", model, "--json", "a.json").exit_code == 0
    record = read_record(tmp_path / "a.json")
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(record.policies[0].files)
    assert record.made_with["threads"] == threads
    same = invoke("eval", "--verify", "a.json")
    assert same.exit_code == 0
    assert "all 3 episodes are the same" in same.output
    data = json.loads((tmp_path / "a.json").read_text())
    data["policies"][0]["files_sha256"] |= {"model.safetensors": "00", "config.json": "11"}
    data["policies"][0]["evaluation"]["results"][0]["tokens"] += 1
    (tmp_path / "a.json").write_text(json.dumps(data))
    other = invoke("eval", "--verify", "a.json")
    assert other.exit_code == 1
    assert "the weights are others (model.safetensors)" in other.output
    assert "other files of the model have changed (config.json)" in other.output


def test_a_hub_models_files_are_those_in_the_cache(model, monkeypatch):
    asked = []

    def snapshot(name, *, local_files_only):
        asked.append((name, local_files_only))
        return str(model)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert "model.safetensors" in files_of("some-org/some-model", object())
    assert asked == [("some-org/some-model", True)]


def test_the_leaderboard_is_made_of_result_files(invoke, echo_suite, tmp_path):
    for policy in ("random", "scripted"):
        invoke("eval", "--suite", echo_suite, "--policy", policy, "--json", f"{policy}.json")
    made = invoke("leaderboard", "random.json", "scripted.json", "--name", "scripted=the teacher")
    assert made.exit_code == 0
    page = (tmp_path / "docs" / "leaderboard.md").read_text()
    assert "| the teacher | 100% (51 to 100) | 4 |" in page
    assert page.index("the teacher") < page.index("| random |")
    assert "`art-trainer eval --suite echo.yaml --policy scripted`" in page


def test_a_metric_of_the_environment_is_told(invoke):
    invoke("make-suite", "m.yaml", "--env", ENV, "--episodes", 2, "--metric", "turns")
    assert "turns of scripted: 1.000" in invoke("eval", "--suite", "m.yaml", "--policy", "scripted").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["eval"], "nothing to evaluate"),
        (["eval", "--suite", "email-v0-tset", "--policy", "bm25"], "did you mean `email-v0-test`"),
        (["eval", "--suite", "s", "--env", ENV, "--seed", "0", "--policy", "bm25"], "--env and --seed"),
        (["eval", "--verify", "a.json", "--policy", "bm25"], "give no other flag"),
        (["eval", "--verify", "a.json"], "a.json cannot be read"),
        (["eval", "--env", ENV, "--policy", "random", "--by", "wrod"], "Echo-v0 tell no `wrod`"),
        (["make-suite", "mine.txt", "--env", ENV], "ends in .yaml"),
        (["make-suite", "mine.yaml", "--env", ENV, "--split", "tset"], "did you mean `test`"),
        (["leaderboard", "gone.json"], "gone.json cannot be read"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_of_words(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert words in capsys.readouterr().err


def test_a_name_for_a_policy_that_is_not_there_is_refused(invoke, echo_suite, capsys):
    invoke("eval", "--suite", echo_suite, "--policy", "random", "--json", "a.json")
    for pair in ("scripted=x", "random", "random="):
        with pytest.raises(SystemExit):
            main(["leaderboard", "a.json", "--name", pair])
        assert f"a policy of the files (random), got '{pair}'" in capsys.readouterr().err


def test_a_served_model_that_answers_otherwise_is_told(invoke, tmp_path):
    with serving_words(lambda asked, number: "red" if number < 3 else "I will not.") as url:
        flags = ["--env", ENV, "--env-args", "words=1", "--episodes", 3, "--policy", f"openai:m@{url}"]
        assert invoke("eval", *flags, "--json", "a.json").exit_code == 0
        result = invoke("eval", "--verify", "a.json")
    assert read_record(tmp_path / "a.json").policies[0].files == {}
    assert result.exit_code == 1
    assert "3 of 3 episodes differ" in result.output


def test_arguments_that_look_like_json_keep_their_type_in_the_command():
    suite = Suite(
        "e", (("a", 1),), env_args={"a": "5", "b": 5, "c": "x y", "d": None, "e": [1]}, split="test"
    )
    command = command_for(suite, "p", device="cpu", max_batch=8)
    assert (
        "--env-args 'a=\"5\"' --env-args b=5 --env-args 'c=x y' --env-args d=null --env-args 'e=[1]'"
        in command
    )
    assert command.endswith("--device cpu --max-batch 8 --policy p")
