import asyncio
import math
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from art_trainer.agent_server import AgentLimits, AgentRollouts, AgentServer, run_agents
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Ending, Episode, Group
from art_trainer.learner import Learner
from tests.art_trainer.agent_server.agent_helpers import tiny_policy, user
from tests.art_trainer.tiny_models import full_logprobs
from tests.art_trainer.waiting import until

TURNS = 2


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


@dataclass
class Asker:
    """An agent over plain HTTP: it asks twice, and is paid for capital letters."""

    http: httpx.Client
    __name__ = "asker"

    def __call__(self, base_url: str, api_key: str, task: Any) -> float:
        messages, share = [user(f"Capitals, please: {task}")], 0.0
        for _ in range(TURNS):
            reply = self.ask(base_url, api_key, messages)
            words = reply["content"] or " "
            share += sum("A" <= letter <= "Z" for letter in words) / len(words)
            messages += [reply, user("More.")]
        return share / TURNS

    def ask(self, base_url: str, api_key: str, messages: list[Any]) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {api_key}"}
        answer = self.http.post(f"{base_url}/chat/completions", json={"messages": messages}, headers=headers)
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()["choices"][0]["message"]
        return reply


def tokens_of(groups: list[Group]) -> list[Any]:
    return [[[h.token_ids for h in e.histories] for e in group.episodes] for group in groups]


def only(groups: list[Group]) -> Episode:
    ((episode,),) = (group.episodes for group in groups)
    return episode


def test_groups_of_attempts_come_back_in_order_with_rewards_and_tokens(http: httpx.Client) -> None:
    ended: list[Episode] = []
    with AgentRollouts(Asker(http), tiny_policy(), attempts=3) as rollouts:
        groups = rollouts.play([{"id": "a"}, "plain"], seed=(5, 1), on_episode=ended.append)
    assert [group.task_id for group in groups] == ["a", "task-1"]
    assert len(ended) == 6
    for group in groups:
        assert group.whole
        for episode in group.episodes:
            assert (episode.env_id, episode.seed, episode.ending) == ("asker", 5, Ending.TERMINATED)
            assert len(episode.turns) == TURNS
            assert episode.turns[0].observation == "More."
            assert episode.turns[0].reward == 0
            assert episode.facts == {"outcome": "rewarded"}
            assert len(episode.histories) == 1
            assert Episode.from_json(episode.to_json()) == episode
    assert len({tokens for group in tokens_of(groups) for (tokens,) in group}) == 6


def test_equal_seeds_give_equal_episodes_however_they_are_scheduled(http: httpx.Client) -> None:
    policy = tiny_policy()
    played = [
        run_agents(
            Asker(http), ["a", "b"], policy, attempts=3, seed=4, limits=AgentLimits(max_concurrent=workers)
        )
        for workers in (1, 6)
    ]
    assert tokens_of(played[0]) == tokens_of(played[1])
    assert tokens_of(played[0]) != tokens_of(run_agents(Asker(http), ["a", "b"], policy, attempts=3, seed=5))


def test_recorded_log_probs_are_the_models_own(http: httpx.Client) -> None:
    policy = tiny_policy(temperature=0.7)
    for group in run_agents(Asker(http), ["a", "b"], policy, attempts=4):
        for episode in group.episodes:
            (history,) = episode.histories
            expected = full_logprobs(policy.model, history.token_ids, temperature=0.7)
            sampled = np.array(history.action_mask)[1:]
            assert np.abs(expected[sampled] - history.logprobs).max() < 1e-4


def test_an_agent_of_somebody_elses_learns(http: httpx.Client) -> None:
    policy = tiny_policy(max_new_tokens=4)
    config = GRPOConfig(
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        scale_rewards="group",
        num_generations=24,
        max_completion_length=4,
    )
    learner = Learner(policy.model, config)
    rewards = []
    with AgentRollouts(Asker(http), policy, attempts=24) as rollouts:
        for step in range(8):
            metrics = learner.update(rollouts.play([0], seed=(1, step)))
            policy.version += 1
            rewards.append(metrics["reward"])
            assert metrics["kl"] == pytest.approx(0, abs=1e-6)  # what learns is what sampled
    assert rewards[0] < 0.15
    assert rewards[-1] > 0.5


def test_new_weights_are_used_and_named_from_the_next_request_on(http: httpx.Client) -> None:
    policy = tiny_policy()
    with AgentRollouts(Asker(http), policy, attempts=1) as rollouts:
        before = only(rollouts.play(["a"]))
        policy.sampling = replace(policy.sampling, temperature=0.0)
        policy.version = 9
        after = only(rollouts.play(["a"]))
    assert {span.policy_version for span in before.histories[0].spans} == {0}
    assert {span.policy_version for span in after.histories[0].spans} == {9}
    assert set(after.histories[0].logprobs) == {0.0}


def test_an_agent_may_be_a_coroutine_function_with_several_conversations_at_once() -> None:
    async def agent(base_url: str, api_key: str, task: str) -> float:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            asked = [
                client.chat.completions.create(model="m", messages=[user(f"{task} {part}")]) for part in "ab"
            ]
            answers = await asyncio.gather(*asked)
        return float(len(answers))

    episode = only(run_agents(agent, ["x"], tiny_policy(), attempts=1))
    assert (episode.reward, len(episode.turns), len(episode.histories)) == (2.0, 2, 2)


def test_a_reward_may_be_posted_by_another_program() -> None:
    program = (
        "import json, os, sys, urllib.request as u\n"
        "base, key = os.environ['OPENAI_BASE_URL'], os.environ['OPENAI_API_KEY']\n"
        "def post(url, body):\n"
        "    head = {'authorization': 'Bearer ' + key, 'content-type': 'application/json'}\n"
        "    return json.load(u.urlopen(u.Request(url, json.dumps(body).encode(), head)))\n"
        "post(base + '/chat/completions', {'messages': [{'role': 'user', 'content': sys.argv[1]}]})\n"
        "post(base.removesuffix('/v1') + '/reward', {'reward': 0.25, 'success': True, 'metrics': {'n': 1}})\n"
    )

    async def agent(base_url: str, api_key: str, task: str) -> None:
        environment = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", program, task, env=environment
        )
        assert await process.wait() == 0

    episode = only(run_agents(agent, ["hello"], tiny_policy(), attempts=1))
    assert (episode.reward, episode.success, episode.metrics) == (0.25, True, {"n": 1.0})
    assert episode.observation == "hello"


def test_what_goes_wrong_in_an_agent_is_data_and_drops_its_group(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, now = threading.Event(), [0.0]
    threads: list[threading.Thread] = []
    asker = Asker(http)
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    monkeypatch.setattr("art_trainer.agent_server.rollouts.time", clock)

    def agent(base_url: str, api_key: str, task: str) -> Any:
        threads.append(threading.current_thread())
        if task == "silent":
            return 1.0
        asker.ask(base_url, api_key, [user(task)])
        if task == "crashes":
            raise KeyError("no such thing")
        if task == "hangs":
            until(lambda: [thread.is_alive() for thread in threads].count(False) == 6)
            now[0] = 1e9  # the time of all is over
            stuck.wait(60)
        return {"nothing": None, "nan": math.nan, "words": "good", "fine": 1}.get(task)

    tasks = ["fine", "crashes", "hangs", "nothing", "nan", "words", "silent"]
    try:
        groups = run_agents(agent, tasks, tiny_policy(), attempts=1)
    finally:
        stuck.set()
    outcomes = {task: only([group]).facts["outcome"] for task, group in zip(tasks, groups, strict=True)}
    assert outcomes == {
        "fine": "rewarded",
        "crashes": "crashed",
        "hangs": "timed_out",
        "nothing": "no_reward",
        "nan": "crashed",
        "words": "crashed",
        "silent": "no_replies",
    }
    assert [group.whole for group in groups] == [True] + [False] * 6
    errors = [only([group]).error or "" for group in groups]
    assert "KeyError: 'no such thing'" in errors[1]
    assert "a finite number, or None" in errors[4]
    assert "'good'" in errors[5]


def test_an_agent_left_behind_gets_no_more_replies(http: httpx.Client) -> None:
    told: list[int] = []
    late, asked_late = threading.Event(), threading.Event()

    def agent(base_url: str, api_key: str, task: str) -> None:
        late.wait(60)
        answer = http.post(
            f"{base_url}/chat/completions",
            json={"messages": [user("late")]},
            headers={"authorization": f"Bearer {api_key}"},
        )
        told.append(answer.status_code)
        asked_late.set()

    with AgentRollouts(agent, tiny_policy(), attempts=1, limits=AgentLimits(timeout=0.1)) as rollouts:
        episode = only(rollouts.play(["x"]))
        late.set()
        assert asked_late.wait(60)
    assert episode.facts["outcome"] == "timed_out"
    assert told == [401]


def test_an_agent_that_dies_of_a_full_context_is_learned_from_and_worth_nothing() -> None:
    def agent(base_url: str, api_key: str, task: str) -> float:
        with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
            messages: list[Any] = [user(task)]
            while True:
                reply = client.chat.completions.create(model="m", messages=messages).choices[0].message
                messages += [{"role": "assistant", "content": reply.content}, user("on " * 10)]

    episode = only(run_agents(agent, ["x"], tiny_policy(max_context=200), attempts=1))
    assert episode.ending is Ending.CONTEXT_FULL
    assert not episode.failed
    assert episode.reward == 0
    assert 1 < len(episode.turns) < 5
    assert len(episode.histories[0].token_ids) <= 200


def test_a_server_that_is_given_stays_open(http: httpx.Client) -> None:
    policy = tiny_policy()
    with AgentServer(policy) as server:
        for _ in range(2):
            with AgentRollouts(Asker(http), policy, attempts=1, server=server) as rollouts:
                assert only(rollouts.play(["x"])).ending is Ending.TERMINATED


@pytest.mark.parametrize(
    ("limits", "words"), [({"timeout": 0}, "timeout is 0"), ({"max_concurrent": 0}, "max_concurrent is 0")]
)
def test_limits_that_allow_nothing_are_refused(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AgentLimits(**limits)


def test_no_attempts_are_refused(http: httpx.Client) -> None:
    with pytest.raises(ValueError, match="attempts is 0"):
        AgentRollouts(Asker(http), tiny_policy(), attempts=0)
