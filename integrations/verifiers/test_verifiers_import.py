"""Environments written for verifiers as text environments here."""

import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

import art_gym  # noqa: F401

pytest.importorskip("verifiers")

from art_gym.testing import check_text_env
from art_gym.wrappers.adapters.verifiers_env import VerifiersTextEnv
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.evaluate import evaluate

SUMS = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str

class SumTask(vf.Task[Data]):
    @vf.reward(weight=0.8)
    async def right(self, trace: vf.Trace) -> float:
        return float(vf.extract_boxed_answer(trace.last_reply) == self.data.answer)

    @vf.reward(weight=0.2)
    async def boxed(self, trace: vf.Trace) -> float:
        return float("boxed" in trace.last_reply)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return len(trace.last_reply)

class Config(vf.TasksetConfig):
    split: str = "train"
    system: str | None = "Answer in a box."

class Sums(vf.Taskset[SumTask, Config]):
    def load(self):
        base = 0 if self.config.split == "train" else 100
        for number in range(base, base + 20):
            prompt = f"What is {number} + 1?"
            data = Data(prompt=prompt, system_prompt=self.config.system, answer=str(number + 1))
            yield SumTask(data, self.config.task)

__all__ = ["Sums"]
"""
GUESS = """
import random
import verifiers.v1 as vf

class Data(vf.TaskData):
    secret: int

class GuessState(vf.State):
    guesses: list[int] = []

class GuessTask(vf.Task[Data, GuessState]):
    async def setup(self, trace, runtime):
        trace.state.guesses = [0]

    @vf.stop
    async def gave_up(self, trace: vf.Trace) -> bool:
        return "give up" in trace.last_reply

    @vf.metric
    async def guesses(self, trace: vf.Trace) -> float:
        return len(trace.state.guesses) - 1

class EnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(max_turns=4)

class GuessEnv(vf.Env[EnvConfig]):
    async def run(self, task, agents):
        found = False
        async with agents.player.interaction(task) as talk:
            segment = await talk.turn("I think of a number from 1 to 9.")
            while not segment.terminated:
                text = segment.last_reply
                if not text.isdigit():
                    segment = await talk.turn([{"role": "user", "content": "A number, please."}])
                    continue
                talk.trace.state.guesses.append(int(text))
                found = int(text) == task.data.secret
                if found:
                    break
                hint = random.choice(["No", "Wrong"])
                side = "less" if int(text) > task.data.secret else "more"
                segment = await talk.turn(f"{hint}, it is {side} than {text}.")
        talk.trace.record_reward("found", float(found))

    async def finalize(self, task, episode):
        (trace,) = episode.traces
        trace.record_metric("asked", trace.num_turns)

class Numbers(vf.Taskset[GuessTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        number = 0
        while True:
            yield GuessTask(Data(secret=1 + number % 9, name=str(number)), self.config.task)
            number += 1

__all__ = ["GuessEnv", "Numbers"]
"""
TOOLS = SUMS.replace(
    "class SumTask(vf.Task[Data]):",
    """class Search(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def search(self, text: str) -> str:
        return text

class SumTask(vf.Task[Data]):
    NEEDS_CONTAINER = True

    @classmethod
    def toolsets(cls, config):
        return [Search(vf.ToolsetConfig())]
""",
)
SANDBOX = SUMS.replace(
    "    @vf.metric",
    """    async def finalize(self, trace, runtime):
        await runtime.run(["ls"], {})

    @vf.metric""",
)
SEATS = GUESS.replace(
    "AgentConfig(max_turns=4)", "AgentConfig()\n    judge: vf.AgentConfig = vf.AgentConfig()"
)
OURS = """
from art_gym.servers.verifiers import *
from art_gym.servers.verifiers import __all__
"""
MODULES = {
    "art_sums": SUMS, "art_guess": GUESS, "art_tools": TOOLS, "art_sandbox": SANDBOX, "art_seats": SEATS,
    "art_ours": OURS,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    """Where the environments are, as an author would install them."""
    folder = tmp_path_factory.mktemp("modules")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture
def make():
    """Makes environments and closes them."""
    made = []

    def make(env_id, **arguments):
        made.append(VerifiersTextEnv(env_id, **arguments))
        return made[-1]

    yield make
    for env in made:
        env.close()


def test_one_turn(make):
    """``verifiers/Env-v0``: a task of one turn, its weighted rewards as score terms, and its metrics."""
    env = make("art_sums")
    observation, info = env.reset(options={"task": "train-3"})
    assert info["system"] == "Answer in a box."
    number = int(observation.split()[-3])
    assert observation == f"Answer in a box.\n\nWhat is {number} + 1?"
    reply = f"I think \\boxed{{{number + 1}}}"
    _, reward, terminated, truncated, info = env.step(reply)
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert info["score_terms"] == {"boxed": 0.2, "right": 0.8}
    assert info["metrics"]["length"] == len(reply)
    assert info["facts"] == {"expected": str(number + 1)}
    env.reset(options={"task": "train-3"})
    _, reward, _, _, info = env.step("\\boxed{no}")
    assert (reward, info["success"]) == (0.2, False)


def test_splits(make):
    """``verifiers/Env-v0``: held-out tasks, a split that the taskset has or else a fifth of its tasks."""
    env = make("art_sums", test={"split": "test"})
    assert [len(env.tasks.split(name)) for name in ("train", "test")] == [20, 20]
    assert "100 + 1" in env.reset(options={"task": "test-0"})[0]
    kept = make("art_sums", settings={"system": None})
    asked = {task.id: kept.reset(options={"task": task.id})[0] for task in kept.tasks}
    assert [len(kept.tasks.split(name)) for name in ("train", "test")] == [16, 4]
    assert len(set(asked.values())) == 20
    found = evaluate(ScriptedPolicy("random"), lambda: make("art_sums"), split="test", episodes=8)
    assert found.success.value == 0


def test_several_turns(make):
    """``verifiers/Env-v0``: an author's loop of several turns, with state, a stop and a turn limit."""
    env = make("art_guess", most=45)
    observation, _ = env.reset(options={"task": "train-0"})
    assert observation == "I think of a number from 1 to 9."
    secret = env.env.task.data.secret
    assert env.step("seven")[0].startswith("A number, please.")
    assert "than" in env.step("9" if secret != 9 else "8")[0]
    _, reward, terminated, _, info = env.step(str(secret))
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert {"guesses": 2.0, "asked": 3.0}.items() <= info["metrics"].items()
    env.reset(options={"task": "train-0"})
    *_, terminated, truncated, info = [env.step("one") for _ in range(4)][-1]
    assert (terminated, truncated, info["success"]) == (False, True, False)
    assert info["score_terms"] == {"found": 0.0}
    env.reset(options={"task": "train-0"})
    assert env.step("I give up")[2]
    env.reset(options={"task": "train-0"})
    assert env.truncate()["score_terms"] == {"found": 0.0}


@pytest.mark.parametrize("name", ["art_sums", "art_guess"])
def test_contract(name):
    """``verifiers/Env-v0`` keeps all rules of ``art-gym check``; a snapshot is played again to its place."""
    with gym.make("verifiers/Env-v0", env_id=name, most=30) as env:
        check_text_env(env)


def test_round_trip(make):
    """An environment of ours that verifiers was given says and pays the same when it comes back."""
    back = make("art_ours", settings={"env": "art/Email-v0"}, most=5)
    ours = gym.make("art/Email-v0").unwrapped
    observation, _ = back.reset(options={"task": "train-1"})
    assert observation == ours.reset(seed=back.env.task.data.seed)[0]
    act, total = ours.baselines["bm25"](ours, np.random.default_rng(0)), 0.0
    terminated = False
    while not terminated:
        reply = act(observation)
        observation, paid, terminated, truncated, info = ours.step(reply)
        _, reward, ended, _, there = back.step(reply)
        total += paid
        terminated = terminated or truncated
        assert ended == terminated
    assert reward == pytest.approx(total)
    assert (there["success"], there["metrics"]["turns"]) == (info["success"], info["metrics"]["turns"])


def test_training(folder, tmp_path):
    """``art-trainer train --env verifiers/Env-v0 --env-args env_id=NAME``, a step of a small model."""
    words = "train --env verifiers/Env-v0 --env-args env_id=art_sums --model scratch --max-steps 1"
    words += " --groups-per-step 2 --num-generations 2 --eval-episodes 2 --threads 1"
    words += " --set max_completion_length=4 --output-dir"
    command = [sys.executable, "-m", "art_trainer", *words.split(), str(tmp_path / "run")]
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "step 1/1" in done.stdout


@pytest.mark.parametrize(
    ("name", "missing"),
    [("art_tools", "tools and a container"), ("art_seats", r"2 seats \(player, judge\)")],
)
def test_limit_seats_and_tools(name, missing):
    """``verifiers/Env-v0`` refuses several seats, tools, containers, judge models, programs as players."""
    with pytest.raises(ValueError, match=f"`{name}` needs {missing}"):
        VerifiersTextEnv(name, most=5)


def test_limit_sandbox(make):
    """``verifiers/Env-v0`` has no sandbox: a hook that uses one fails."""
    env = make("art_sandbox")
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match=r"runtime\.run"):
        env.step("5")
