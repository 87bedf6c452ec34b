"""All three environments in TRL's trainer, by both ways, a step each."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import art_gym  # noqa: F401 (registers the environments)
from art_trainer.trl import GymRollout, env_reward, environment_factory, free_text, task_dataset
from tests.art_trainer.trl.trl_runs import QUIET, byte_chat, logged, tiny, trainer

pytest.importorskip("trl", reason="TRL is not installed")

pytestmark = QUIET

# The tool that a turn's words go to, where the environment's own tools are TRL's.
ENVIRONMENTS = {
    "art/Email-v0": ({"max_turns": 2}, "search", "query"),
    "art/2048-v0": ({"max_turns": 3}, "move", "direction"),
    "art/Coding-v0": ({"level": 0, "max_turns": 2}, "test", "code"),
}
TOOLS_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m.get('tool_calls') or [] %}{{ c['function'] | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def one_step(folder: Path, env: str, tokenizer: Any, **how: Any) -> Any:
    env_args = ENVIRONMENTS[env][0]
    rows = task_dataset(env, size=2, env_args=env_args)
    if how.pop("rollout", False):
        how = {"rollout_func": GymRollout(rows), "reward_funcs": env_reward}
    args = {
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "max_completion_length": 700,
        "generation_kwargs": {"max_new_tokens": 3},
        "learning_rate": 1e-3,
    }
    made = trainer(folder, tokenizer, rows, model=tiny(tokenizer, hidden=16), args=args, **how)
    before = {name: weight.clone() for name, weight in made.model.named_parameters()}
    made.train()
    (reward,) = logged(made, "reward")
    assert math.isfinite(reward)
    assert all(weight.isfinite().all() for weight in made.model.parameters())
    return made, before


@pytest.mark.parametrize("env", list(ENVIRONMENTS))
def test_as_a_rollout(env: str, tmp_path: Path) -> None:
    made, _ = one_step(tmp_path, env, byte_chat(), rollout=True)
    assert logged(made, "completions/mean_length")[0] >= 3


@pytest.mark.parametrize("env", list(ENVIRONMENTS))
def test_with_its_own_tools_and_the_same_episode_as_outside(env: str, tmp_path: Path) -> None:
    env_args, tool, argument = ENVIRONMENTS[env]
    tokenizer = byte_chat()
    tokenizer.chat_template = TOOLS_TEMPLATE
    tokenizer = free_text(tokenizer)
    call = {"name": tool, "arguments": {argument: "{content}"}}
    tokenizer.response_template["fields"]["tool_calls"]["transform"]["function"] = call
    factory = environment_factory(env, env_args=env_args)
    made, _ = one_step(tmp_path, env, tokenizer, environment_factory=factory)
    assert logged(made, "tools/call_frequency")[0] >= 2
    assert logged(made, "tools/failure_frequency") == [0.0]
    first, other = (environment._recorder.attempt("it") for environment in made.environments)
    assert first.task == other.task
    outside = gym.make(env, **env_args)
    rows = task_dataset(env, size=2, env_args=env_args)
    row = next(row for row in rows if row["prompt"][-1]["content"] in first.task)
    options = None if row["task"] is None else {"task": row["task"]}
    observation, _ = outside.reset(seed=row["seed"], options=options)
    assert observation == first.task
    for step in first.steps:
        observation, reward, *_ = outside.step(step.reply)
        assert (observation, float(reward)) == (step.observation, step.reward)


@pytest.mark.parametrize("env", list(ENVIRONMENTS))
def test_with_free_text(env: str, tmp_path: Path) -> None:
    factory = environment_factory(env, env_args=ENVIRONMENTS[env][0], free_text=True)
    made, _ = one_step(tmp_path, env, free_text(byte_chat()), environment_factory=factory)
    assert logged(made, "tools/call_frequency")[0] >= 2
    assert all(environment._recorder.attempt("it").steps for environment in made.environments)
