"""A model of random weights learns a toy environment in TRL's trainer, by both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from art_trainer.trl import GymRollout, env_reward, environment_factory, free_text, task_dataset
from tests.art_trainer.trl.trl_runs import QUIET, SAY_ID, logged, trainer, word_tokenizer

pytest.importorskip("trl", reason="TRL is not installed")

pytestmark = QUIET


@pytest.mark.parametrize("way", ["rollout_func", "environment_factory"])
def test_the_reward_rises(way: str, tmp_path: Path) -> None:
    rows, tokenizer = task_dataset(SAY_ID, size=64), word_tokenizer()
    if way == "rollout_func":
        how: dict[str, Any] = {"rollout_func": GymRollout(rows), "reward_funcs": env_reward}
    else:
        tokenizer = free_text(tokenizer)
        how = {"environment_factory": environment_factory(SAY_ID, free_text=True)}
    args = {
        "max_steps": 40,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 32,
        "num_generations": 8,
        "max_completion_length": 64,
        "max_tool_calling_iterations": 2,
        "generation_kwargs": {"max_new_tokens": 1},
    }
    made = trainer(tmp_path, tokenizer, rows, args=args, **how)
    made.train()
    rewards = logged(made, "reward")
    assert len(rewards) == 40
    assert sum(rewards[:5]) / 5 < 0.1
    assert sum(rewards[-5:]) / 5 > 0.35
