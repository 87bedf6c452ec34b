"""An environment inside verifiers: played and scored by its own machinery, against a scripted model."""

import asyncio
import sys

import gymnasium as gym
import numpy as np
import pytest

import art_gym  # noqa: F401

pytest.importorskip("verifiers")

from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from tests.wrappers.judging.judge_server import JudgeServer, says

SEED = 3
CASES = [("art/2048-v0", "greedy"), ("art/Email-v0", "bm25")]


@pytest.fixture(autouse=True)
def plugin(tmp_path, monkeypatch):
    """The one line that gives the taskset a top-level name."""
    (tmp_path / "art_tasks.py").write_text(
        "from art_gym.servers.verifiers import *\nfrom art_gym.servers.verifiers import __all__\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MODEL_KEY", "secret")
    yield
    sys.modules.pop("art_tasks", None)


@pytest.fixture
def endpoint():
    """An OpenAI-compatible model that says what its ``act`` says to the latest user turn."""
    server = JudgeServer(lambda _, request: says(server.act(request["messages"][-1]["content"])))
    yield server
    server.close()


def player(env_id, name):
    """A baseline that needs an environment only for its tools."""
    env = gym.make(env_id)
    env.reset(seed=SEED)
    return env.unwrapped.baselines[name](env.unwrapped, np.random.default_rng(0))


def play_directly(env_id, act, turns):
    """What the environment says and pays without verifiers."""
    env = gym.make(env_id)
    observation, _ = env.reset(seed=SEED)
    observations, total, info = [observation], 0.0, {}
    for _ in range(turns):
        observation, reward, terminated, truncated, info = env.step(act(observation))
        total += reward
        observations.append(observation)
        if terminated or truncated:
            break
    return observations, total, info


async def play(env_id, endpoint, **seat):
    """The episode that verifiers plays."""
    config = resolve_env_config({"taskset": {"id": "art_tasks", "env": env_id, "seed": SEED}, "player": seat})
    env = load_environment(config)
    task = next(iter(env.taskset))
    client = EvalClientConfig(base_url=endpoint.url, api_key_var="MODEL_KEY")
    async with env.serving():
        (slot,) = env.slots(task)
        return await env.run_slot(slot, ModelContext("scripted", client, SamplingConfig()))


@pytest.mark.parametrize(("env_id", "name"), CASES)
def test_the_same_seed_gives_the_same_episode(endpoint, env_id, name):
    """An episode of 2048 and of email is the one played without it, reward and metrics included."""
    turns = 12
    endpoint.act = player(env_id, name)
    episode = asyncio.run(play(env_id, endpoint, max_turns=turns))
    assert episode.errors == []
    (trace,) = episode.traces
    observations, total, info = play_directly(env_id, player(env_id, name), turns)
    told = [message["content"] for message in endpoint.requests[-1]["messages"] if message["role"] == "user"]
    assert told == observations[: len(told)]
    assert len(endpoint.requests) == len(observations) - 1
    assert sum(reward.score for reward in trace.rewards.values()) == pytest.approx(total)
    if "success" in info:
        assert trace.metrics["success"] == info["success"]
        assert {key: trace.metrics[key] for key in info["metrics"]} == info["metrics"]


def test_a_reply_that_is_no_call_is_answered_and_charged(endpoint):
    """A reply that is no call is answered and charged as it is without verifiers, and so is leaving early."""
    endpoint.act = lambda observation: "I would rather not."
    episode = asyncio.run(play("art/Email-v0", endpoint, max_turns=3))
    (trace,) = episode.traces
    assert episode.errors == []
    _, total, _ = play_directly("art/Email-v0", endpoint.act, 3)
    assert trace.rewards["invalid_action"].score == pytest.approx(total)
    assert total < 0
    assert trace.rewards["no_answer"].score == -0.5
    assert trace.metrics["success"] == 0


def test_tasks_are_beginnings_that_can_be_taken_up_again(plugin):
    """An endless taskset, one task for each seed, with the first observation as its prompt."""
    import art_tasks

    config = art_tasks.ArtTaskset.__orig_bases__[0].__args__[1](id="art_tasks", env="art/Email-v0", seed=5)
    first, second = art_tasks.ArtTaskset(config).take(2)
    assert (first.data.seed, second.data.seed) == (5, 6)
    observation, info = gym.make("art/Email-v0").reset(seed=6)
    assert second.data.prompt == observation
    assert second.data.id.startswith(info["task_id"])
