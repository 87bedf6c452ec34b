"""All three environments in TRL's trainer, a step each."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import art_gym  # noqa: F401 (registers the environments)
from art_trainer.trl import environment_factory, free_text, task_dataset
from tests.art_trainer.trl.trl_runs import QUIET, TOOLS_TEMPLATE, byte_chat, logged, tiny, trainer

pytest.importorskip("trl", reason="TRL is not installed")

pytestmark = [*QUIET, pytest.mark.e2e]

# Arguments, and the tool that a turn's words go to if the environment's own tools are TRL's.
ENVIRONMENTS = {
    "art/Email-v0": ({"max_turns": 2}, "search", "query"),
    "art/2048-v0": ({"max_turns": 3}, "move", "direction"),
    "art/Coding-v0": ({"level": 0, "max_turns": 2}, "test", "code"),
}


@pytest.mark.parametrize("way", ["tools", "free text"])
@pytest.mark.parametrize("env", list(ENVIRONMENTS))
def test_a_step_of_training(env: str, way: str, tmp_path: Path) -> None:
    env_args, tool, argument = ENVIRONMENTS[env]
    options = {"env_args": env_args, "free_text": way == "free text"}
    rows, tokenizer = task_dataset(env, size=2, **options), byte_chat()
    tokenizer.chat_template = TOOLS_TEMPLATE
    tokenizer = free_text(tokenizer)
    factory = environment_factory(env, max_completion_length=700, **options)
    if way == "tools":
        call = {"name": tool, "arguments": {argument: "{content}"}}
        tokenizer.response_template["fields"]["tool_calls"]["transform"]["function"] = call
    args = {
        "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 700,
        "generation_kwargs": {"max_new_tokens": 3}, "learning_rate": 1e-3, "max_tool_calling_iterations": 10,
    }  # fmt: skip
    made = trainer(
        tmp_path, tokenizer, rows, model=tiny(tokenizer, hidden=16), args=args, environment_factory=factory
    )
    made.train()
    (reward,) = logged(made, "reward")
    assert math.isfinite(reward)
    assert all(weight.isfinite().all() for weight in made.model.parameters())
    attempts = [environment._attempt() for environment in made.environments]
    assert all(attempt.ending != "unfinished" for attempt in attempts)
    # Every reply is a call, and none is sampled or trained on after the episode's end.
    steps = sum(len(attempt.steps) for attempt in attempts) / len(attempts)
    assert logged(made, "tools/call_frequency") == [steps]
    assert logged(made, "tools/failure_frequency") == [0.0]
    first, other = (environment._recorder.attempt("it") for environment in made.environments)
    assert first.task == other.task
