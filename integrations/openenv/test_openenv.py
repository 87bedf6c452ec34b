"""An environment served by OpenEnv's own server, played by its own client."""

from contextlib import contextmanager

import gymnasium as gym
import numpy as np
import pytest

import art_gym  # noqa: F401

pytest.importorskip("openenv")

import httpx
from openenv import GenericEnvClient

from art_gym.servers.openenv import OpenEnvEnvironment, ReplyAction, openenv_app
from art_gym.servers.tool_episode import OVER
from art_trainer.serving.http.server import ServerThread

SEED = 3
CASES = [("art/2048-v0", "greedy"), ("art/Email-v0", "bm25")]


@contextmanager
def serving(app):
    """The address of a server."""
    server = ServerThread(app, "127.0.0.1", 0, name="openenv", ws="auto", lifespan="auto")
    try:
        yield server.url
    finally:
        server.stop()


def begun(env_id, name, **options):
    """An environment, its first observation, and a player."""
    env = gym.make(env_id)
    observation, info = env.reset(seed=SEED, options=options)
    return env, observation, info, env.unwrapped.baselines[name](env.unwrapped, np.random.default_rng(0))


@pytest.mark.parametrize(("env_id", "name"), CASES)
def test_the_same_seed_gives_the_same_episode(env_id, name):
    """An episode of 2048 and of email through its server and client is the episode played without them."""
    env, observation, _, act = begun(env_id, name)
    with serving(openenv_app(env_id)) as url, GenericEnvClient(base_url=url).sync() as client:
        result = client.reset(seed=SEED)
        assert result.observation["text"] == observation
        for _ in range(25):
            reply = act(observation)
            observation, reward, terminated, truncated, info = env.step(reply)
            result = client.step({"reply": reply})
            assert result.observation["text"] == observation
            assert result.reward == pytest.approx(reward)
            assert result.done == (terminated or truncated)
            assert "facts" not in result.metadata
            if result.done:
                assert result.metadata["metrics"] == info["metrics"]
                assert client.step({"reply": reply}).observation["text"] == OVER
                break


def test_two_sessions_do_not_touch_each_other():
    """Sessions side by side, each with an instance of its own."""
    env, observation, _, act = begun("art/2048-v0", "greedy")
    with (
        serving(openenv_app("art/2048-v0")) as url,
        GenericEnvClient(base_url=url).sync() as one,
        GenericEnvClient(base_url=url).sync() as two,
    ):
        one.reset(seed=SEED)
        two.reset(seed=SEED + 1)
        for _ in range(5):
            reply = act(observation)
            observation = env.step(reply)[0]
            assert one.step({"reply": reply}).observation["text"] == observation
            two.step({"reply": "left"})
        assert one.state()["step_count"] == 5


def test_tasks_are_listed_without_what_they_know():
    """Its task routes: splits, counts, and a task by its place, without the answer."""
    tasks = gym.make("art/Email-v0").unwrapped.tasks
    with serving(openenv_app("art/Email-v0")) as url:
        splits = [split["name"] for split in httpx.get(f"{url}/art-Email-v0/splits").json()]
        assert splits == list(tasks.splits)
        counted = httpx.post(f"{url}/art-Email-v0/num_tasks", json={"split": "test"}).json()
        assert counted["num_tasks"] == len(tasks.split("test"))
        found = httpx.post(f"{url}/art-Email-v0/task", json={"split": "test", "index": 2}).json()["task"]
        assert found == {"id": tasks.split("test")[2].id, "index": 2}
        missing = httpx.post(f"{url}/art-Email-v0/task", json={"split": "test", "index": 10**6})
        assert missing.status_code == 400
        with GenericEnvClient(base_url=url).sync() as client:
            chosen = client.reset(seed=1, split="test", index=2)
    assert chosen.metadata["task_id"] == found["id"]


def test_a_reply_that_is_no_call_is_answered_and_charged():
    """A reply that is no call is answered and charged as it is without OpenEnv."""
    env = OpenEnvEnvironment("art/Email-v0")
    env.reset(seed=SEED)
    answered = env.step(ReplyAction(reply="I would rather not."))
    assert answered.reward < 0
    assert not answered.done
    assert "error" in answered.metadata
    with pytest.raises(ValueError, match="of which split"):
        env.reset(index=1)
    env.close()
