"""``art/Judge-v0``: its question is the judge's own, its reward the agreement with the true rewards."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import gymnasium as gym
import pytest

import art_gym  # noqa: F401 (registers the environments)
from art_gym.baselines import play, players
from art_gym.wrappers.adapters.judge_env import write_answer
from art_gym.wrappers.judging import LLMJudge, Score
from tests.wrappers.judging.judge_server import Bench, Reply, Request, says, shown

MAIL = {"difficulty": 1, "max_turns": 3}


def made(**options: Any) -> gym.Env[str, str]:
    return gym.make("art/Judge-v0", **{"env_args": MAIL, "max_turns": 1, **options})


def answer(env: gym.Env[str, str], values: list[float]) -> str:
    labels = env.unwrapped.question.prompt.labels  # type: ignore[attr-defined]
    return write_answer({label: Score(value) for label, value in zip(labels, values, strict=True)})


@pytest.fixture(scope="module")
def env() -> gym.Env[str, str]:
    return made()


def test_the_question_is_what_a_judge_asks(env: gym.Env[str, str]) -> None:
    def reply(number: int, request: Request) -> Reply:
        return says(write_answer(dict.fromkeys(shown(request), Score(0.5))))

    observation, info = env.reset(seed=3)
    with closing(Bench()) as bench:
        judge: LLMJudge = bench.judge(reply)
        judge(env.unwrapped.question.attempts)  # type: ignore[attr-defined]
    rules, material = (message["content"] for message in bench.requests[0]["messages"])
    assert (info["system"], observation) == (rules, f"{rules}\n\n{material}")


def test_the_reward_is_the_agreement_with_the_true_rewards(env: gym.Env[str, str]) -> None:
    env.reset(seed=3)
    rewards = env.unwrapped.question.rewards  # type: ignore[attr-defined]
    assert len(set(rewards)) > 1
    scaled = [(reward + 2) / 4 for reward in rewards]
    for values, tau, success in [
        (scaled, 1, True),
        ([1 - value for value in scaled], -1, False),
        ([0.5] * len(rewards), 0, False),
    ]:
        env.reset(seed=3)
        _, reward, terminated, _, info = env.step(answer(env, values))
        assert (reward, terminated, info["success"], "error" in info) == (tau, True, success, False)


@pytest.mark.parametrize("wrong", ["", "all are good", '{"scores": [{"id": "zzzzzz", "score": 1}]}', "half"])
def test_an_answer_that_cannot_be_read_costs_the_most(env: gym.Env[str, str], wrong: str) -> None:
    env.reset(seed=3)
    if wrong == "half":
        entries = json.loads(answer(env, [0.5] * len(env.unwrapped.question.rewards)))["scores"]  # type: ignore[attr-defined]
        wrong = json.dumps({"scores": entries[1:]})
    observation, reward, _, truncated, info = env.step(wrong)
    assert (reward, truncated, info["success"], info["error"]["kind"]) == (-1, True, False, "refused")
    assert observation.startswith("the environment refused this: ")


def test_its_players_its_splits_and_its_seeds(env: gym.Env[str, str]) -> None:
    assert list(players(env)) == ["random", "rubric", "reward"]
    best = play(env, "reward", episodes=8, split="test")
    assert best.reward == 1
    assert play(env, "rubric", episodes=8, split="test").reward < 0.9
    assert abs(play(env, "random", episodes=8, split="test").reward) < 0.6
    bare: Any = env.unwrapped
    tests = {task.id for task in bare.tasks.split("test")}
    for seed in range(3):
        first = env.reset(seed=seed, options={"split": "test"})
        assert first[1]["task_id"] in tests
        assert env.reset(seed=seed, options={"split": "test"}) == first


def test_the_list_of_tools_stands_in_the_question_once(env: gym.Env[str, str]) -> None:
    observation, _ = env.reset(seed=0)
    assert observation.count("Find mails by words") == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 1}, "size is at least 2"),
        ({"noise": 2}, "noise is a share"),
        ({"max_context_tokens": 10}, "at least 1,000"),
        ({"env": "CartPole-v1", "env_args": {}}, "no scripted players"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**wrong)
