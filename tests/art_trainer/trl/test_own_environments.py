"""All three environments in TRL's trainer, by both ways, a step each."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import art_gym  # noqa: F401 (registers the environments)
from art_trainer.trl import GymRollout, env_reward, environment_factory, free_text, task_dataset
from tests.art_trainer.trl.trl_runs import QUIET, TOOLS_TEMPLATE, byte_chat, logged, tiny, trainer

pytest.importorskip("trl", reason="TRL is not installed")

pytestmark = [*QUIET, pytest.mark.e2e]

# The tool that a turn's words go to, where the environment's own tools are TRL's.
ENVIRONMENTS = {
    "art/Email-v0": ({"max_turns": 2}, "search", "query"),
    "art/2048-v0": ({"max_turns": 3}, "move", "direction"),
    "art/Coding-v0": ({"level": 0, "max_turns": 2}, "test", "code"),
}


def one_step(folder: Path, env: str, tokenizer: Any, **how: Any) -> Any:
    """Train a step; returns the trainer."""
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
    made.train()
    (reward,) = logged(made, "reward")
    assert math.isfinite(reward)
    assert all(weight.isfinite().all() for weight in made.model.parameters())
    return made


@pytest.mark.parametrize("env", list(ENVIRONMENTS))
def test_as_a_rollout(env: str, tmp_path: Path) -> None:
    made = one_step(tmp_path, env, byte_chat(), rollout=True)
    assert logged(made, "completions/mean_length")[0] >= 3


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("env", list(ENVIRONMENTS))
def test_with_tools(env: str, free: bool, tmp_path: Path) -> None:
    env_args, tool, argument = ENVIRONMENTS[env]
    tokenizer = byte_chat()
    tokenizer.chat_template = TOOLS_TEMPLATE
    tokenizer = free_text(tokenizer)
    if not free:
        call = {"name": tool, "arguments": {argument: "{content}"}}
        tokenizer.response_template["fields"]["tool_calls"]["transform"]["function"] = call
    factory = environment_factory(env, env_args=env_args, free_text=free)
    made = one_step(tmp_path, env, tokenizer, environment_factory=factory)
    assert logged(made, "tools/call_frequency")[0] >= 2
    assert logged(made, "tools/failure_frequency") == [0.0]
    first, other = (environment._recorder.attempt("it") for environment in made.environments)
    assert first.task == other.task
    assert first.steps
    assert other.steps
