"""Runs that were really trained: a reward that pays for length, and evaluations of checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import analyze_rates
import pytest

from art_trainer.analysis import Confidence, analyze
from art_trainer.analysis.detectors import RELIABILITY
from art_trainer.analysis.report import write_report
from art_trainer.config import GRPOConfig
from art_trainer.rollout.evaluate import Evaluation
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.tracking.full_disk import full_disk

ROOT = Path(__file__).parents[3]


def test_a_trained_policy_that_is_paid_for_length_is_found_out(tmp_path: Path) -> None:
    analyze_rates.make_run(analyze_rates.KINDS["faults"]["length pays"], tmp_path, {"seed": 0})
    run = analyze(tmp_path).runs[0]
    findings = {finding.name: finding.confidence for finding in run.findings}
    assert run.windows[-1].means["reply_length"] > 1.5 * run.windows[0].means["reply_length"]
    planted = ("reward_without_success", "dominant_term", "longer_replies")
    assert all(findings[name].rank >= Confidence.LIKELY.rank for name in planted)
    assert run.verdict.confidence is Confidence.STRONG
    assert run.verdict.learned.startswith("Not by more than chance")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "the evidence is strong" in page
    assert "<code>detail</code> went from" in page
    found, _, not_found = page.partition("Not found, or not measured")
    assert "One term brings the gain" in found
    assert "Entropy collapses" in not_found


@pytest.mark.e2e
def test_the_rates_of_all_signs_are_measured(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/analyze_rates.py", "--quick", "--json", str(tmp_path / "rates")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "rates").read_text())["signs"].keys() == {*RELIABILITY, "stall"}


def test_an_honestly_trained_run_raises_no_alarm(trained_run: Path) -> None:
    run = analyze(trained_run).runs[0]
    signs = [finding.confidence for finding in run.findings if finding.reward_hacking]
    assert signs.count(Confidence.NONE) >= 5
    assert set(signs) <= {Confidence.NONE, Confidence.UNKNOWN}
    assert run.verdict.confidence is Confidence.NONE


def guess_trained(folder: Path, *, resumed_from: int | None = None) -> None:
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

    guess_trained(tmp_path)
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
    guess_trained(tmp_path, resumed_from=2)
    assert kept() == ["before", "step-000000", "step-000002", "step-000004"]
    assert (run.evaluations / "step-000002.json").read_text() == first
    assert json.loads(later.read_text())["seed"] != 99


def test_a_disk_that_is_full_leaves_no_half_an_evaluation(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.evaluations.mkdir()
    whole = run.evaluations / "before.json"
    whole.write_text("whole")
    with full_disk(10), pytest.raises(OSError, match=f"too large: '{whole}'"):
        run.write_evaluation("before", Evaluation("p", "toy/Env-v0", None, 0, (), 1.0))
    assert (list(run.evaluations.iterdir()), whole.read_text()) == ([whole], "whole")
    with full_disk(10), pytest.raises(OSError, match="too large"):
        run.write_metrics({"step": 1.0})
    assert not run.metrics_file.read_text()
