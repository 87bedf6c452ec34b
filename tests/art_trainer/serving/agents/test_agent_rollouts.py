"""An agent's attempts as groups, and as the rollout backend of a trainer without an environment."""

import asyncio
import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.backend import SelfContainedBackend
from art_trainer.serving.agents import AgentBackend, AgentLimits, AgentServer, run_agents
from art_trainer.tracking.episode_schema import episode_from_json, episode_to_json
from art_trainer.tracking.run_dir import list_checkpoints
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Ending, Episode, Group, GroupSpec
from tests.art_trainer.guess import GuessEnv
from tests.art_trainer.serving.helpers import tiny_policy, user
from tests.art_trainer.tiny_models import full_logprobs
from tests.art_trainer.waiting import until

TASKS, HELD_OUT = ["a", "b", "c"], [{"id": "held", "words": "d"}, "e"]
ONE = GroupSpec(0, 1, (0,))
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "scale_rewards": "group",
    "groups_per_step": 2,
    "num_generations": 8,
    "max_completion_length": 4,
    "max_steps": 4,
    "eval_episodes": 4,
}


DIALECTS: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "chat/completions": ("messages", "max_tokens", lambda answer: answer["choices"][0]["message"]["content"]),
    "responses": ("input", "max_output_tokens", lambda answer: answer["output"][0]["content"][0]["text"]),
    "messages": ("messages", "max_tokens", lambda answer: answer["content"][0]["text"]),
}
"""By the path of each API: two fields of a request, and the reply in an answer."""


class Asker:
    """An agent over plain HTTP; its reward is the share of capital letters."""

    __name__ = "asker"

    def __init__(self) -> None:
        self.http = httpx.Client(timeout=300)
        self.path = "chat/completions"
        self.turns = 1
        self.tasks: list[Any] = []
        self.watch: Callable[[], float] = lambda: 0.0
        self.watched: list[float] = []

    def __call__(self, base_url: str, api_key: str, task: Any) -> float:
        self.tasks.append(task)
        if task == "fails":
            raise KeyError("no such thing")
        messages, share = [user(f"Capitals, please: {task}")], 0.0
        for _ in range(self.turns):
            self.watched.append(self.watch())
            reply = self.ask(base_url, api_key, messages)
            words = reply["content"] or " "
            share += sum("A" <= letter <= "Z" for letter in words) / len(words)
            messages += [reply, user("More.")]
        return share / self.turns

    def ask(self, base_url: str, api_key: str, messages: list[Any]) -> dict[str, Any]:
        field, limit, reply = DIALECTS[self.path]
        answer = self.post(f"{base_url}/{self.path}", api_key, {field: messages, limit: 4})
        assert answer.status_code == 200, answer.text
        return {"role": "assistant", "content": reply(answer.json())}

    def post(self, url: str, api_key: str, body: dict[str, Any]) -> httpx.Response:
        return self.http.post(url, json=body, headers={"authorization": f"Bearer {api_key}"})


@pytest.fixture
def asker() -> Iterator[Asker]:
    agent = Asker()
    yield agent
    agent.http.close()


@pytest.fixture
def make_backend(asker: Asker, request: pytest.FixtureRequest) -> Callable[..., AgentBackend]:
    def make(policy: TransformersPolicy, tasks: Sequence[Any] = TASKS, **options: Any) -> AgentBackend:
        backend = AgentBackend(asker, tasks, policy, **{"eval_tasks": HELD_OUT, **options})
        request.addfinalizer(backend.close)
        return backend

    return make


@pytest.fixture
def make_trainer(make_backend: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    def make(tasks: Sequence[Any] = TASKS, **settings: Any) -> GRPOTrainer:
        policy = tiny_policy()
        config = GRPOConfig(output_dir=str(tmp_path / "run"), **{**SETTINGS, **settings})
        trainer = GRPOTrainer(policy, None, config, backend=make_backend(policy, tasks))
        request.addfinalizer(trainer.close)
        return trainer

    return make


def tokens_of(groups: list[Group]) -> list[Any]:
    return [[[h.token_ids for h in e.histories] for e in group.episodes] for group in groups]


def only(groups: list[Group]) -> Episode:
    ((episode,),) = (group.episodes for group in groups)
    return episode


def play(agent: Any, policy: TransformersPolicy | None = None, **limits: Any) -> Episode:
    """One attempt at one task."""
    return only(run_agents(agent, ["x"], policy or tiny_policy(), attempts=1, limits=AgentLimits(**limits)))


def test_groups_are_attempts_at_the_task_that_their_seed_picks(make_backend: Any, asker: Asker) -> None:
    asker.turns = 2
    backend = make_backend(tiny_policy(), [{"id": "a"}, "b", "c"])
    assert isinstance(backend, SelfContainedBackend)
    wanted = [GroupSpec(7, 3, (1, 0)), GroupSpec(7, 2, (1, 1)), GroupSpec(3, 1, (1, 2))]
    ended: list[Episode] = []
    whole: dict[int, Group] = {}
    groups = backend.collect(wanted, on_episode=ended.append, on_group=whole.__setitem__)
    assert [group.task_id for group in groups] == ["task-1", "task-1", "a"]
    assert [[e.seed for e in group.episodes] for group in groups] == [[7] * 3, [7] * 2, [3]]
    assert [whole[place] for place in range(3)] == groups
    assert sorted(map(id, ended)) == sorted(id(e) for group in groups for e in group.episodes)
    for episode in ended:
        assert (episode.env_id, episode.ending) == ("asker", Ending.TERMINATED)
        assert [turn.observation for turn in episode.turns] == ["More.", ""]
        assert episode.turns[0].reward == 0
        assert episode.facts == {"outcome": "rewarded"}
        assert len(episode.histories) == 1
        assert episode_from_json(episode_to_json(episode)) == episode
    assert len({tokens for group in tokens_of(groups) for (tokens,) in group}) == 6
    # Played alone and again, a group is the same.
    again = backend.collect(wanted[1:2], on_episode=ended.append)
    assert tokens_of(again) == tokens_of(groups[1:2])


@pytest.mark.parametrize("path", DIALECTS)
def test_equal_seeds_give_equal_episodes_with_the_models_own_log_probs(path: str, asker: Asker) -> None:
    asker.path, asker.turns = path, 2
    policy = tiny_policy(temperature=0.7)

    def played(workers: int, seed: int) -> list[Group]:
        limits = AgentLimits(max_concurrent=workers)
        return run_agents(asker, ["a", "b"], policy, attempts=3, seed=seed, limits=limits)

    groups = played(1, 4)
    assert tokens_of(groups) == tokens_of(played(6, 4)), "however they are scheduled"
    assert tokens_of(groups) != tokens_of(played(6, 5))
    for episode in (episode for group in groups for episode in group.episodes):
        (history,) = episode.histories
        expected = full_logprobs(policy.model, history.token_ids, temperature=0.7)
        sampled = np.array(history.action_mask)[1:]
        assert np.abs(expected[sampled] - history.logprobs).max() < 1e-4


def test_new_weights_are_used_and_named_from_the_next_request_on(make_backend: Any, asker: Asker) -> None:
    asker.turns = 2
    policy = tiny_policy()
    backend = make_backend(policy)
    before = backend.collect([ONE], on_episode=lambda _: None)
    policy.sampling = replace(policy.sampling, temperature=0.0)
    policy.version = 9
    after = only(backend.collect([ONE], on_episode=lambda _: None))
    assert {span.policy_version for span in only(before).histories[0].spans} == {0}
    assert {span.policy_version for span in after.histories[0].spans} == {9}
    assert set(after.histories[0].logprobs) == {0.0}


def test_an_agent_may_be_a_coroutine_with_several_conversations_at_once() -> None:
    async def agent(base_url: str, api_key: str, task: str) -> float:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            create = client.chat.completions.create
            answers = await asyncio.gather(*(create(model="m", messages=[user(part)]) for part in "ab"))
        return float(len(answers))

    episode = play(agent)
    assert (episode.reward, len(episode.turns), len(episode.histories)) == (2.0, 2, 2)


def test_coroutines_may_share_a_client_over_all_batches_and_one_that_exits_ends_only_its_attempt() -> None:
    shared = openai.AsyncOpenAI(api_key="none")

    async def agent(base_url: str, api_key: str, task: str) -> float:
        client = shared.with_options(base_url=base_url, api_key=api_key)
        await client.chat.completions.create(model="m", messages=[user(task)])
        if task == "exits":
            raise SystemExit(task)
        return 1.0

    policy = tiny_policy()
    with AgentServer(policy) as server:
        for _ in range(3):
            groups = run_agents(agent, ["a", "exits", "b"], policy, attempts=2, server=server)
            outcomes = [{episode.facts["outcome"] for episode in group.episodes} for group in groups]
            assert outcomes == [{"rewarded"}, {"crashed"}, {"rewarded"}]

        async def close(base_url: str, api_key: str, task: str) -> float:
            await shared.close()
            return 0.0

        run_agents(close, ["x"], policy, attempts=1, server=server)


def test_a_step_in_which_every_group_failed_is_told_without_a_callback(
    make_trainer: Any, asker: Asker, caplog: pytest.LogCaptureFixture
) -> None:
    make_trainer(["fails"], max_steps=1).train()
    assert (
        "step 1: nothing was learned, every group failed (2). The first fault: KeyError: 'no such"
        in caplog.text
    )


def test_a_reward_may_be_posted_by_another_program(asker: Asker) -> None:
    def agent(base_url: str, api_key: str, task: str) -> None:
        asker.ask(base_url, api_key, [user(task)])
        reward = {"reward": 0.25, "success": True, "metrics": {"n": 1}}
        asker.post(f"{base_url.removesuffix('/v1')}/reward", api_key, reward)

    episode = play(agent)
    assert (episode.reward, episode.success, episode.metrics) == (0.25, True, {"n": 1.0})
    assert episode.observation == "x"


def test_an_agent_whose_reward_nobody_else_may_post_has_to_return_one() -> None:
    def agent(base_url: str, api_key: str, task: str) -> None:
        pass

    agent.posts_reward = False  # type: ignore[attr-defined]
    episode = play(agent)
    assert episode.facts["outcome"] == "crashed"
    assert "return a number" in str(episode.error)


def test_a_failing_agent_is_recorded_without_its_group(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, now = threading.Event(), [0.0]
    threads: list[threading.Thread] = []
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr("art_trainer.serving.agents.rollouts.time", clock)
    tasks: dict[str, tuple[object, str, str]] = {  # what the agent raises or returns, and what becomes of it
        "fine": (1, "rewarded", "None"),
        "crashes": (KeyError("no such thing"), "crashed", "KeyError: 'no such thing'"),
        "exits": (SystemExit("done"), "crashed", "SystemExit: done"),
        "cancels": (asyncio.CancelledError(), "crashed", "CancelledError"),
        "hangs": (None, "timed_out", "time limit"),
        "nothing": (None, "no_reward", "None"),
        "nan": (math.nan, "crashed", "nan"),
        "huge": (10**400, "crashed", "a finite number"),
        "words": ("good", "crashed", "'good'"),
        "silent": (1, "no_replies", "no reply"),
    }

    def agent(base_url: str, api_key: str, task: str) -> Any:
        threads.append(threading.current_thread())
        if task != "silent":
            asker.ask(base_url, api_key, [user(task)])
        if task == "hangs":
            until(lambda: [thread.is_alive() for thread in threads].count(False) == len(tasks) - 1)
            now[0] = 1e9  # the time of all is over
            stuck.wait(300)
        ended = tasks[task][0]
        if isinstance(ended, BaseException):
            raise ended
        return ended

    try:
        groups = run_agents(agent, list(tasks), tiny_policy(), attempts=1)
    finally:
        stuck.set()
    for (task, (_, outcome, error)), group in zip(tasks.items(), groups, strict=True):
        episode = only([group])
        assert episode.facts["outcome"] == outcome
        assert error in str(episode.error)
        assert group.whole == (task == "fine")
    assert caplog.text.count("waits up to 600 s for another program to post the reward") == 1


def test_an_agent_left_behind_gets_no_more_replies(asker: Asker) -> None:
    late, seen = threading.Event(), queue.Queue[int]()

    def agent(base_url: str, api_key: str, task: str) -> None:
        late.wait(300)
        seen.put(asker.post(f"{base_url}/chat/completions", api_key, {}).status_code)

    policy = tiny_policy()
    with AgentServer(policy) as server:
        limits = AgentLimits(timeout=0.1)
        episode = only(run_agents(agent, ["x"], policy, attempts=1, limits=limits, server=server))
        late.set()
        assert seen.get(timeout=300) == 401
    assert episode.facts["outcome"] == "timed_out"


def test_a_coroutine_left_behind_is_cancelled() -> None:
    cancelled = threading.Event()

    async def agent(base_url: str, api_key: str, task: str) -> None:
        try:
            await asyncio.sleep(300)
        finally:
            cancelled.set()

    assert play(agent, timeout=0.1).facts["outcome"] == "timed_out"
    assert cancelled.wait(60)


def test_an_attempt_that_fills_its_context_is_trained_on_with_reward_0(asker: Asker) -> None:
    def agent(base_url: str, api_key: str, task: str) -> float:
        messages = [user(task)]
        while True:  # until the server refuses
            messages += [asker.ask(base_url, api_key, messages), user("on " * 10)]

    episode = play(agent, tiny_policy(max_context=200))
    assert (episode.ending, episode.failed, episode.reward) == (Ending.CONTEXT_FULL, False, 0)
    assert 1 < len(episode.turns) < 5
    assert len(episode.histories[0].token_ids) <= 200


@pytest.mark.parametrize("limits", [{"timeout": 0}, {"max_concurrent": 0}])
def test_limits_that_allow_nothing_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=min(limits)):
        AgentLimits(**limits)


def test_a_trainer_without_an_environment_learns_and_is_evaluated(make_trainer: Any, asker: Asker) -> None:
    trainer = make_trainer(max_steps=8, num_generations=16, eval_steps=4, save_steps=4)
    trainer.train()
    log = trainer.log.metrics().records
    assert [line["step"] for line in log if "eval_reward" in line] == [0, 4, 8]
    assert log[1]["reward"] < 0.2
    assert log[-1]["reward"] > 0.5
    assert log[-1]["eval_reward"] > 0.5
    assert [path.name for path in list_checkpoints(trainer.log.checkpoints)] == ["step-000004", "step-000008"]
    assert {str(task) for task in asker.tasks} == {str(task) for task in [*TASKS, *HELD_OUT]}
    assert sum(task in HELD_OUT for task in asker.tasks) == 3 * SETTINGS["eval_episodes"]


def test_evaluations_are_greedy(make_trainer: Any, make_backend: Any, asker: Asker) -> None:
    trainer = make_trainer()
    asker.watch = lambda: trainer.policy.sampling.temperature
    assert trainer.evaluate() == trainer.evaluate()
    assert asker.watched == [0.0] * 2 * SETTINGS["eval_episodes"]
    trainer.collect_episodes()
    assert asker.watched[-1] == 1.0
    result = trainer.backend.evaluate(episodes=3, seed=5)
    assert [one.task_id for one in result.results] == ["held", "task-1", "held"]
    assert (result.env_id, result.policy, result.faults) == ("asker", "tiny", 0)
    result = make_backend(trainer.policy, eval_tasks=["fails", "b"]).evaluate(episodes=4, seed=0)
    assert (result.faults, len(result.counted)) == (2, 2)


def test_settings_of_environments_are_refused(make_backend: Any, tmp_path: Path) -> None:
    policy = tiny_policy()
    backend, config = make_backend(policy), GRPOConfig(output_dir=str(tmp_path))
    for options, changes, field in (
        ({}, {}, "env is None"),
        ({"backend": backend}, {"train_split": "train"}, "train_split"),
        ({"backend": backend}, {"advantage_estimator": "gigpo"}, "step_states"),
        ({"backend": backend, "eval_env": GuessEnv}, {}, "eval_env"),
    ):
        with pytest.raises(ConfigError, match=field):
            GRPOTrainer(policy, None, replace(config, **changes), **options)
    with pytest.raises(ConfigError, match="tasks is empty"):
        make_backend(policy, [])
    with pytest.raises(ConfigError, match="eval_tasks"):
        make_backend(policy, eval_tasks=[]).evaluate(episodes=1, seed=0)
