"""Which tasks were won and which lost from one checkpoint of a run to another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from art_trainer.analysis import analyze
from art_trainer.config import GRPOConfig
from art_trainer.rollout.evaluate import Evaluation
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.tracking.full_disk import full_disk


def _trained(folder: Path, *, resumed_from: int | None = None) -> None:
    config = GRPOConfig(
        output_dir=str(folder), max_steps=4, groups_per_step=2, num_generations=4, eval_steps=2,
        eval_episodes=16, max_completion_length=2, learning_rate=1e-2, save_steps=2,
    )  # fmt: skip
    trainer = GRPOTrainer(guess_policy(hidden=16), GuessEnv, config)
    if resumed_from is not None:
        trainer.load_checkpoint(folder / "checkpoints" / f"step-{resumed_from:06d}")
    trainer.train()
    trainer.close()


def test_evaluations_in_training_are_kept_and_written_again_by_a_resumed_run(tmp_path: Path) -> None:
    def kept() -> list[str]:
        return sorted(file.stem for file in (tmp_path / "evaluations").iterdir())

    _trained(tmp_path)
    run = RunFolder(tmp_path)
    assert kept() == ["step-000000", "step-000002", "step-000004"]
    lines = {line["step"]: line for line in run.metrics().records}
    for step in (0, 2, 4):
        found = run.evaluation(f"step-{step:06d}")
        assert found is not None
        assert found.success is not None
        assert found.success.value == lines[step]["eval_success"]
    change = analyze(tmp_path, between=("step-000000", "step-000004")).runs[0].change
    assert change is not None
    assert change.won + change.lost + change.both + change.neither == 16
    later = run.evaluations / "step-000004.json"
    for name in ("before", "step-000009"):
        (run.evaluations / f"{name}.json").write_text(later.read_text())
    first = (run.evaluations / "step-000002.json").read_text()
    later.write_text(json.dumps(json.loads(later.read_text()) | {"seed": 99}))
    _trained(tmp_path, resumed_from=2)
    assert kept() == ["before", "step-000000", "step-000002", "step-000004"]
    assert (run.evaluations / "step-000002.json").read_text() == first
    assert json.loads(later.read_text())["seed"] != 99


def test_a_disk_that_is_full_leaves_no_half_an_evaluation(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.evaluations.mkdir()
    (run.evaluations / "before.json").write_text("whole")
    with full_disk(10), pytest.raises(OSError, match="too large"):
        run.write_evaluation("before", Evaluation("p", "toy/Env-v0", None, 0, (), 1.0))
    assert (run.evaluations / "before.json").read_text() == "whole"
