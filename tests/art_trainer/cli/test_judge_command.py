import json
import re

import pytest

from art_trainer.analysis.mixed_groups import mixed_starts, play_mixed_groups
from art_trainer.errors import ConfigError
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.tracking.run_dir import RunFolder
from tests.art_trainer.toy_envs import Echo
from tests.wrappers.judging.judge_server import JudgeServer, answer_json, says, shown

ENV = "tests.art_trainer.toy_envs:toy/Echo-v0"


@pytest.fixture
def judge_eval(invoke):
    """Run ``art-trainer judge eval`` on the toy environment in an empty folder; returns the output."""

    def run(*arguments):
        result = invoke("judge", "eval", "--env", ENV, *arguments)
        assert result.exit_code == 0, result.output
        return result.output

    return run


def test_rates_the_rubric_and_writes_the_files(judge_eval, tmp_path):
    output = judge_eval(
        "--judge", "rubric", "--without-facts", "--groups", 6, "--size", 4,
        "--checks", 2, "--json", "found.json",
    )  # fmt: skip
    data = json.loads((tmp_path / "found.json").read_text())
    assert [one["judge"] for one in data["judges"]] == ["rubric", "rubric without facts"]
    assert data["judges"][0]["tau"]["value"] >= data["judges"][1]["tau"]["value"]
    assert len(data["judges"][0]["groups"]) == 6
    assert {"scripted", "random", "scripted with noise"} == {
        name for group in data["judges"][0]["groups"] for name in group["players"]
    }
    assert "6 groups, 95% intervals" in output
    assert "in other orders (2 groups)" in output


def test_the_same_seed_gives_the_same_groups(judge_eval, tmp_path):
    for name in ("one", "two"):
        judge_eval("--groups", 4, "--size", 3, "--json", name)
    judge_eval("--groups", 4, "--size", 3, "--seed", 1, "--json", "three")
    one, two, three = [(tmp_path / name).read_text() for name in ("one", "two", "three")]
    assert one == two
    assert json.loads(one)["judges"] != json.loads(three)["judges"]


def test_players_can_be_chosen_and_play_without_noise(judge_eval, tmp_path):
    judge_eval("--policies", "scripted", "--noise", 0, "--groups", 2, "--size", 2, "--json", "f")
    (judge,) = json.loads((tmp_path / "f").read_text())["judges"]
    assert {tuple(group["players"]) for group in judge["groups"]} == {("scripted", "scripted")}
    assert judge["tau"] is None  # nobody did better than anybody


def test_recorded_episodes_are_judged_in_place_of_played_ones(judge_eval, tmp_path):
    policies = [ScriptedPolicy("scripted"), ScriptedPolicy("random")]
    groups = play_mixed_groups(policies, Echo, mixed_starts(Echo, groups=5), 4)
    RunFolder(tmp_path / "run").path.mkdir()
    RunFolder(tmp_path / "run").write_episodes(7, [one.group for one in groups], 100)
    judge_eval("--judge", "rubric", "--episodes", "run", "--groups", 3, "--json", "f")
    data = json.loads((tmp_path / "f").read_text())
    (judge,) = data["judges"]
    assert data["recorded"] == "run"
    assert [group["rewards"] for group in judge["groups"]] == [
        pytest.approx(one.group.rewards) for one in groups[:3]
    ]
    assert judge["groups"][0]["players"] == ["step-000007"] * 4


@pytest.fixture
def server():
    """A judge model that likes short attempts, and a little more what it is shown first."""

    def answer(number, request):
        texts = shown(request)
        scores = {
            label: max(0.0, 1 - len(text) / 2000 - 0.01 * place)
            for place, (label, text) in enumerate(texts.items())
        }
        return says(answer_json(scores))

    server = JudgeServer(answer)
    yield server
    server.close()


def test_a_judge_model_over_http_with_its_cost_and_its_bias(judge_eval, tmp_path, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    words = f"openai:tiny@{server.url}"
    options = ["--judge", words, "--groups", 4, "--size", 4, "--checks", 2, "--orders", 4]
    options += ["--judge-args", "cache=judge.db"]
    output = judge_eval(*options, "--json", "f")
    (judge,) = json.loads((tmp_path / "f").read_text())["judges"]
    usage = judge["usage"]
    assert (usage["groups"], usage["requests"]) == (4, 4)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (400, 80)
    assert judge["order_slope"] < 0
    assert judge["order_spread"] > 0
    assert judge["repeat_difference"] == 0
    assert "120" in output  # tokens a group
    asked = len(server.requests)
    judge_eval(*options, "--json", "g")
    (again,) = json.loads((tmp_path / "g").read_text())["judges"]
    assert again["usage"]["requests"] == 0
    # Only the second asks, which have no cache, went out again.
    assert len(server.requests) == asked + 2
    assert [group["scores"] for group in again["groups"]] == [group["scores"] for group in judge["groups"]]


def test_a_judge_model_that_fails_is_counted(judge_eval, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    server = JudgeServer(lambda number, request: says("no idea"))
    try:
        output = judge_eval(
            "--judge", f"openai:tiny@{server.url}", "--judge-args", "max_repairs=0", "--groups", 2,
            "--size", 2,
        )  # fmt: skip
    finally:
        server.close()
    assert "2 malformed" in output


def test_a_group_with_a_fault_is_left_out_and_counted(judge_eval):
    output = judge_eval("--env-args", "fragile=true", "--groups", 6)
    assert "5 groups, 95% intervals" in output
    assert "Left out, because a fault ended an attempt: 1." in re.sub(r"\s+", " ", output)


def test_no_whole_group_is_an_error_with_the_fault_in_it(judge_eval):
    def task(seed):
        return mixed_starts(Echo, groups=1, seed=seed)[0].options["task"]

    seed = next(seed for seed in range(100) if task(seed) == "test-1")
    with pytest.raises(ConfigError, match="every group, such as: RuntimeError: out of paint"):
        judge_eval("--env-args", "fragile=true", "--groups", 1, "--seed", seed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--judge", "rubrik"], "no judge 'rubrik'; did you mean `rubric`"),
        (["--judge", "rubric", "--judge", "rubric"], "--judge rubric is given twice"),
        (["--policies", "scriptd"], "scriptd"),
        (["--policies", "random", "--policies", "random"], "--policies random is given twice"),
        (["--env", "toy/Nothing-v0"], "no environment 'toy/Nothing-v0'"),
        (["--episodes", "."], "no two recorded episodes"),
        (["--judge", "openai:m@http://localhost:1/v1", "--judge-args", "sed=1"], "unexpected keyword"),
    ],
)
def test_wrong_flags_are_refused(judge_eval, arguments, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        judge_eval(*arguments)
