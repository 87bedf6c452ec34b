import json
import re
import time

import pytest

from art_trainer.analysis.mixed_groups import mixed_starts, play_mixed_groups
from art_trainer.errors import ConfigError, EvaluationFailedError
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.tracking.run_dir import RunFolder
from tests.art_trainer.toy_envs import Echo
from tests.wrappers.judging.judge_server import answer_json, likes_short_attempts, says, shown

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
    options = ("--judge", "rubric", "--without-facts", "--groups", 6, "--size", 4)
    output = judge_eval(*options, "--json", "found.json")
    assert "6 groups, 95% intervals" in output
    assert "Cost of a group" not in output
    data = json.loads((tmp_path / "found.json").read_text())
    assert [one["judge"] for one in data["judges"]] == ["rubric", "rubric without facts"]
    assert data["judges"][0]["tau"]["value"] >= data["judges"][1]["tau"]["value"]
    groups = data["judges"][0]["groups"]
    assert len(groups) == 6
    players = {name for group in groups for name in group["players"]}
    assert players == {"scripted", "random", "scripted with noise"}
    for seed, equal in ((0, True), (1, False)):
        judge_eval(*options, "--seed", seed, "--json", "other.json")
        other = json.loads((tmp_path / "other.json").read_text())
        assert (other["judges"][0]["groups"] == groups) is equal


def test_players_can_be_chosen_and_play_without_noise(judge_eval, tmp_path):
    judge_eval("--policies", "scripted", "--noise", 0, "--groups", 2, "--size", 2, "--json", "f")
    (judge,) = json.loads((tmp_path / "f").read_text())["judges"]
    assert {tuple(group["players"]) for group in judge["groups"]} == {("scripted", "scripted")}
    assert judge["tau"] is None  # nobody did better than anybody


def test_recorded_episodes_are_judged_in_place_of_played_ones(invoke, tmp_path):
    policies = [ScriptedPolicy("scripted"), ScriptedPolicy("random")]
    groups = play_mixed_groups(policies, Echo, mixed_starts(Echo, groups=5, size=4))
    RunFolder(tmp_path / "run").path.mkdir()
    RunFolder(tmp_path / "run").write_episodes(7, [one.group for one in groups], 100)
    invoke("judge", "eval", "--judge", "rubric", "--episodes", "run", "--groups", 3, "--json", "f")
    data = json.loads((tmp_path / "f").read_text())
    (judge,) = data["judges"]
    rest = {name: data[name] for name in data if name != "judges"}
    assert rest == {"env": groups[0].group.episodes[0].env_id, "recorded": "run"}
    rewards = [pytest.approx(one.group.rewards) for one in groups[:3]]
    assert [group["rewards"] for group in judge["groups"]] == rewards
    assert judge["groups"][0]["players"] == ["step-000007"] * 4


def test_a_judge_model_over_http_with_its_cost(judge_eval, tmp_path, serve):
    server = serve(likes_short_attempts)
    options = ["--judge", f"openai:tiny@{server.url}", "--groups", 4, "--size", 4]
    options += ["--judge-args", "cache=judge.db"]
    output = judge_eval(*options, "--json", "f")
    (judge,) = json.loads((tmp_path / "f").read_text())["judges"]
    usage = judge["usage"]
    assert (usage["groups"], usage["requests"]) == (4, 4)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (400, 80)
    assert "120" in output  # tokens a group
    asked = len(server.requests)
    judge_eval(*options, "--json", "g")
    (again,) = json.loads((tmp_path / "g").read_text())["judges"]
    assert again["usage"]["requests"] == 0
    assert len(server.requests) == asked
    assert [group["scores"] for group in again["groups"]] == [group["scores"] for group in judge["groups"]]


def test_a_model_on_this_machine_is_served_and_asked(judge_eval):
    options = ["--groups", 2, "--size", 2]
    options += ["--judge-args", "max_answer_tokens=8", "--judge-args", "max_repairs=0"]
    with pytest.raises(EvaluationFailedError, match=r"`art-tiny` at http.*it was cut off at the most tokens"):
        judge_eval("--judge", "art-tiny", *options)


def test_a_judge_model_that_fails_is_counted_and_one_that_only_fails_is_given_up(judge_eval, serve, invoke):
    def answer(number, request):
        return says("no idea" if number % 2 else answer_json(dict.fromkeys(shown(request), 0.5)))

    def judge(server):
        return "--judge", f"openai:tiny@{server.url}", "--judge-args", "max_repairs=0"

    assert "1 malformed" in judge_eval(*judge(serve(answer)), "--groups", 2, "--size", 2)

    def dead_answer(number, request):
        time.sleep(0.1 if number > 8 else 0)  # on a busy machine, too, it is given up before all are answered
        return says("no idea")

    dead = serve(dead_answer)
    with pytest.raises(EvaluationFailedError, match="it failed for the first 8 groups: "):
        judge_eval(*judge(dead), "--groups", 40, "--size", 2)
    assert len(dead.requests) < 40  # how many more were on their way is up to the threads
    both = invoke(
        "judge", "eval", "--env", ENV, "--judge", "rubric", *judge(dead), "--groups", 9, "--size", 2
    )
    assert both.exit_code == 1
    assert "9 groups, 95% intervals" in both.output
    assert "it failed for the first 8 groups" in both.output


def test_a_group_with_a_fault_is_left_out_and_counted(judge_eval):
    output = judge_eval("--env-args", "fragile=true", "--groups", 6)
    assert "5 groups, 95% intervals" in output
    assert "Left out, because a fault ended an attempt: 1." in re.sub(r"\s+", " ", output)


def test_no_whole_group_is_an_error_with_the_fault_in_it(judge_eval):
    def task(seed):
        return mixed_starts(Echo, groups=1, size=2, seed=seed)[0].options["task"]

    seed = next(seed for seed in range(100) if task(seed) == "test-1")
    with pytest.raises(ConfigError, match="every group, such as: RuntimeError: out of paint"):
        judge_eval("--env-args", "fragile=true", "--groups", 1, "--seed", seed)
