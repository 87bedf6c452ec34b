"""Which tasks were won and which lost from one checkpoint of a run to another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from art_trainer.analysis import analyze
from art_trainer.cli import app
from art_trainer.config import GRPOConfig
from art_trainer.run_folder import RunFolder
from art_trainer.trainer import GRPOTrainer
from tests.art_trainer.guess import GuessEnv, guess_policy

EPISODES = 16


def _trained(folder: Path, *, max_steps: int = 4, resumed_from: int | None = None) -> None:
    config = GRPOConfig(
        output_dir=str(folder), max_steps=max_steps, groups_per_step=2, num_generations=4, eval_steps=2,
        eval_episodes=EPISODES, max_completion_length=2, learning_rate=1e-2, save_steps=2,
    )  # fmt: skip
    trainer = GRPOTrainer(guess_policy(hidden=16), GuessEnv, config)
    if resumed_from is not None:
        trainer.load_checkpoint(folder / "checkpoints" / f"step-{resumed_from:06d}")
    trainer.train()
    trainer.close()


def _kept(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "evaluations").iterdir())


def test_each_evaluation_in_training_is_kept_and_two_can_be_told_apart(tmp_path: Path) -> None:
    _trained(tmp_path)
    assert _kept(tmp_path) == ["step-000000.json", "step-000002.json", "step-000004.json"]
    lines = {line["step"]: line for line in RunFolder(tmp_path).metrics().records}
    for step in (0, 2, 4):
        found = RunFolder(tmp_path).evaluation(f"step-{step:06d}")
        assert found is not None
        assert found.success is not None
        assert found.success.value == lines[step]["eval_success"]
    change = analyze(tmp_path, between=("step-000000", "step-000004")).runs[0].change
    assert change is not None
    assert change.paired
    assert change.won + change.lost + change.both + change.neither == EPISODES
    words = ["analyze", str(tmp_path), "--between", "step-000000", "step-000004"]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "120"}).output
    assert f"Starts won {change.won}, lost {change.lost}, solved by both {change.both}" in shown


def test_a_resumed_run_has_no_evaluations_of_steps_it_does_again(tmp_path: Path) -> None:
    _trained(tmp_path)
    later = tmp_path / "evaluations" / "step-000004.json"
    before = tmp_path / "evaluations" / "before.json"
    before.write_text(later.read_text())
    (tmp_path / "evaluations" / "step-000009.json").write_text(later.read_text())
    first = (tmp_path / "evaluations" / "step-000002.json").read_text()
    changed = json.loads(later.read_text()) | {"seed": 99}
    later.write_text(json.dumps(changed))
    _trained(tmp_path, resumed_from=2)
    assert _kept(tmp_path) == ["before.json", "step-000000.json", "step-000002.json", "step-000004.json"]
    assert (tmp_path / "evaluations" / "step-000002.json").read_text() == first
    assert json.loads(later.read_text())["seed"] != 99


def test_a_disk_that_is_full_leaves_no_half_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _trained(tmp_path, max_steps=2)
    whole = (tmp_path / "evaluations" / "step-000002.json").read_text()

    def full(self: Path, text: str, **how: str) -> int:
        self.write_bytes(text.encode()[:10])
        raise OSError(28, "no space left on device")

    found = RunFolder(tmp_path).evaluation("step-000002")
    assert found is not None
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space left"):
        RunFolder(tmp_path).write_evaluation("step-000002", found)
    assert (tmp_path / "evaluations" / "step-000002.json").read_text() == whole
