"""Environments behind OpenEnv servers as text environments here."""

import importlib
import random
import subprocess
import sys

import gymnasium as gym
import pytest

import art_gym  # noqa: F401

pytest.importorskip("openenv")

from openenv.core.env_server import Action, Environment, Observation, State, create_app

from art_gym.servers.openenv import openenv_app
from art_gym.testing import check_text_env
from art_gym.wrappers.adapters.openenv_env import OpenEnvTextEnv
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.evaluate import evaluate
from integrations.openenv.test_openenv import serving


class Move(Action):
    """Two fields, so that one has to be named."""

    number: int
    note: str = ""


class Seen(Observation):
    """No text among its fields."""

    more: bool = False
    tries: int = 0


class GuessEnvironment(Environment):
    """A server's environment with numbers alone: guess the number from 1 to 9."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **more):
        """Hide a number."""
        self.hidden, self.tries = random.Random(seed).randint(1, 9), 0
        return Seen()

    def step(self, action, timeout_s=None, **more):
        """Take a guess."""
        self.tries += 1
        right = action.number == self.hidden
        return Seen(more=action.number < self.hidden, tries=self.tries, done=right, reward=float(right))

    @property
    def state(self):
        """Nothing to tell."""
        return State()


@pytest.fixture(scope="module")
def guess():
    """The address of a server that says nothing in words."""
    with serving(create_app(GuessEnvironment, Move, Seen, env_name="guess", max_concurrent_envs=64)) as url:
        yield url


@pytest.fixture(scope="module")
def email():
    """The address of a server of ours."""
    with serving(openenv_app("art/Email-v0", max_sessions=64)) as url:
        yield url


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    """The address of the example that ``openenv init`` writes."""
    folder = tmp_path_factory.mktemp("example")
    command = [sys.executable, "-m", "openenv.cli", "init", "echo_env", "--output-dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    sys.path.insert(0, str(folder))
    models = importlib.import_module("echo_env.models")
    server = importlib.import_module("echo_env.server.echo_env_environment")
    kinds = server.EchoEnvironment, models.EchoAction, models.EchoObservation
    with serving(create_app(*kinds, env_name="echo_env", max_concurrent_envs=64)) as url:
        yield url
    sys.path.remove(str(folder))


def test_ours(email):
    """``openenv/Env-v0`` plays a server of ours: its listed tasks, and the episode as without a server."""
    ours = gym.make("art/Email-v0").unwrapped
    with gym.make("openenv/Env-v0", url=email, max_turns=8) as env:
        tasks = env.unwrapped.tasks
        assert {name: len(tasks.split(name)) for name in tasks.splits} == {
            name: len(ours.tasks.split(name)) for name in ours.tasks.splits
        }
        observation, _ = env.reset(seed=3, options={"task": "test-2"})
        assert observation == ours.reset(seed=3, options={"task": ours.tasks.split("test")[2].id})[0]
        for reply in ("I would rather not.", 'search("lease")', 'answer("unknown")'):
            here, there = env.step(reply), ours.step(reply)
            assert here[0].startswith(there[0])
            assert here[1:4] == pytest.approx(there[1:4])
        assert here[4]["success"] == there[4]["success"]


def test_example(echo):
    """``openenv/Env-v0`` plays the example of ``openenv init``: its fields are found in the schema."""
    with gym.make("openenv/Env-v0", url=echo, max_turns=5) as env:
        assert env.reset(seed=1)[0] == "Echo Env environment ready!"
        observation, reward, *_ = env.step("Hello")
        assert (observation, reward) == ("Hello", 0.5)


def test_fields(guess):
    """``openenv/Env-v0`` plays a server without texts: JSON is shown, the action's field is named."""
    env = OpenEnvTextEnv(guess, action="number")
    assert env.reset(seed=4)[0] == '{"more": false, "tries": 0}'
    observation, reward, *_, info = env.step("seven")
    assert "the environment refused this" in observation
    assert (reward, info["error"]["kind"]) == (-0.1, "refused")
    paid = [env.step(str(number)) for number in range(1, random.Random(4).randint(1, 9) + 1)][-1]
    assert paid[1:3] == (1.0, True)
    assert paid[4]["success"]
    env.close()


@pytest.mark.parametrize("name", ["email", "echo", "guess"])
def test_contract(name, request):
    """``openenv/Env-v0`` keeps all rules of ``art-gym check``; a snapshot is played again to its place."""
    more = {"action": "number"} if name == "guess" else {}
    url = request.getfixturevalue(name)
    with gym.make("openenv/Env-v0", url=url, max_turns=8, **more) as env:
        check_text_env(env)


def test_evaluation(email):
    """``openenv/Env-v0``: an evaluation on the server's held-out tasks."""
    found = evaluate(ScriptedPolicy("random"), lambda: OpenEnvTextEnv(email), split="test", episodes=4)
    assert found.success.value == 0


def test_limit_several_fields(guess):
    """``openenv/Env-v0``: actions that need several fields."""
    with pytest.raises(ValueError, match="fields number, note: which takes"):
        OpenEnvTextEnv(guess)
