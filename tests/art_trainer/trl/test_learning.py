"""A model of random weights learns a toy environment in TRL's trainer, from a judge's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from art_gym.wrappers.judging import Attempt, Rubric, Score
from art_trainer.trl import environment_factory, free_text, ruler_reward, task_dataset
from tests.art_trainer.trl.trl_runs import QUIET, SAY_ID, logged, trainer, word_tokenizer

pytest.importorskip("trl", reason="TRL is not installed")

pytestmark = [*QUIET, pytest.mark.e2e]


def _right_first(group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
    """Likes what says one of the colours, the sooner the better."""
    return {a.id: Score(sum(s.error is None for s in a.steps) / len(a.steps)) for a in group}


def test_the_reward_rises(tmp_path: Path) -> None:
    rows, tokenizer = task_dataset(SAY_ID, size=64, free_text=True), free_text(word_tokenizer())
    factory = environment_factory(SAY_ID, max_completion_length=64, free_text=True)
    how = {"environment_factory": factory, "reward_funcs": ruler_reward(_right_first)}
    args = {
        "max_steps": 16, "learning_rate": 1e-2, "lr_scheduler_type": "constant", "num_generations": 8,
        "per_device_train_batch_size": 32, "max_completion_length": 64, "max_tool_calling_iterations": 2,
        "generation_kwargs": {"max_new_tokens": 1},
    }  # fmt: skip
    made = trainer(tmp_path, tokenizer, rows, args=args, **how)
    made.train()
    rewards = logged(made, "rewards/ruler/mean")
    assert len(rewards) == 16
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.25
