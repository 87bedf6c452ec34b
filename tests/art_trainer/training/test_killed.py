"""A run that is killed at any moment and resumed is, bit for bit, the run that was never killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.art_trainer.killed_runs import ENV
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model
from tests.art_trainer.updates import logged_metrics

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = [
    *("--env", ENV, "--max-steps", 3, "--groups-per-step", 2, "--num-generations", 2, "--threads", 1),
    *("--eval-episodes", 2, "--eval-steps", 2, "--save-steps", 1, "--beta", 0.05, "--learning-rate", 0.01),
    *("--set", "max_completion_length=4", "--set", "steps_per_generation=2", "--set", "save_total_limit=1"),
    # Whatever the rewards are, there is something to learn from each group.
    *("--set", "drop_zero_variance_groups=false", "--set", "entropy_coef=0.1"),
]
MOMENTS: dict[str, dict[str, Any]] = {
    "the evaluation before": {"event": "os.rename", "path": "before.json", "count": 1},
    "the settings are written": {"event": "os.rename", "path": "run.yaml", "count": 1},
    "the first rollout": {"call": "art_trainer.training.trainer:GRPOTrainer._on_episode", "count": 3},
    "the first checkpoint has no manifest yet": {
        "event": "open", "path": ".step-000001.partial/manifest.json", "count": 1,
    },
    "between the optimizer steps of step 2": {
        "call": "art_trainer.models.optim:UpdateGuard.step", "count": 4,
    },
    "the metrics of step 2 are written, its checkpoint is not": {
        "event": "os.mkdir", "path": ".step-000002.partial", "count": 1,
    },
    "checkpoint 2 gets its name": {
        "event": "os.rename", "path": "checkpoints/.step-000002.partial", "count": 1,
    },
    # The first of that name to be deleted is what the kill before left of checkpoint 2.
    "checkpoint 0 is half deleted": {"event": "os.remove", "path": "model.safetensors", "count": 2},
    "the evaluation after": {"event": "os.rename", "path": "after.episodes.jsonl", "count": 1},
    "checkpoint 3 is written again, and moved away": {
        "event": "os.rename", "path": "checkpoints/.step-000003.partial", "count": 1,
    },
}  # fmt: skip
"""Where one run is killed, one after the other, and resumed each time."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never killed, and one that was killed at every moment above."""
    folder = tmp_path_factory.mktemp("killed")
    tiny_model("qwen2", hidden=16).save_pretrained(folder / "tiny")
    byte_tokenizer().save_pretrained(folder / "tiny")
    runs = [
        {"name": name, "arguments": arguments(folder, name, start), "kill": kill}
        for name, start, kill in (
            ("whole", True, None),
            *(("killed", place == 0, moment) for place, moment in enumerate(MOMENTS.values())),
            ("killed", False, None),
        )
    ]
    (folder / "runs.json").write_text(json.dumps({"folder": str(folder), "runs": runs}))
    command = [sys.executable, "-m", "tests.art_trainer.killed_runs", str(folder / "runs.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (folder / "outcomes.json").write_text(done.stdout.splitlines()[-1])
    return folder


def arguments(folder: Path, name: str, start: bool) -> list[str]:
    """The arguments to start a run, or to resume it."""
    if not start:
        return ["train", "--resume", str(folder / name)]
    given = ["train", "--model", folder / "tiny", "--output-dir", folder / name, *SETTINGS]
    return [str(argument) for argument in given]


def test_the_weights_moments_and_counters_are_those_of_the_whole_run(folder: Path) -> None:
    whole, killed = (folder / name / "checkpoints" / "step-000003" for name in ("whole", "killed"))
    for file in ("model/model.safetensors", "optimizer.safetensors", "reference.safetensors"):
        assert (killed / file).read_bytes() == (whole / file).read_bytes(), file
    states = [json.loads((one / "state.json").read_text()) for one in (whole, killed)]
    for state in states:
        del state["config"]["output_dir"]
    assert states[0] == states[1]
    start = folder / "tiny" / "model.safetensors"
    assert (whole / "model/model.safetensors").read_bytes() != start.read_bytes()


def test_metrics_and_evaluations_are_those_of_the_whole_run(folder: Path) -> None:
    lines = logged_metrics(folder / "whole")
    # The evaluation at step 0 was made again, and is there once.
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert all(line["grad_norm"] > 0 for line in lines[1:])
    assert lines[3]["kl"] > 0
    assert logged_metrics(folder / "killed") == lines
    for when in ("before", "after"):
        files = [folder / name / "evaluations" / f"{when}.json" for name in ("whole", "killed")]
        whole, killed = (json.loads(file.read_text())["results"] for file in files)
        assert killed == whole
    files = [folder / name / "episodes.jsonl.zst" for name in ("whole", "killed")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_every_kill_leaves_the_newest_whole_checkpoint_and_the_run_ends_in_the_end(folder: Path) -> None:
    whole, *killed = json.loads((folder / "outcomes.json").read_text())
    statuses = [run["status"] for run in (whole, *killed)]
    assert statuses == [0, *[-signal.SIGKILL] * len(MOMENTS), 0]
    left = {moment: run["left"] for moment, run in zip([*MOMENTS, "the end"], killed, strict=True)}
    # The best one so far, by the evaluation, is kept beside the newest.
    assert left["the first rollout"] == ["step-000000"]
    assert left["the first checkpoint has no manifest yet"] == [".step-000001.partial", "step-000000"]
    assert left["between the optimizer steps of step 2"] == ["step-000000", "step-000001"]
    assert left["checkpoint 2 gets its name"] == [".step-000002.partial", "step-000000", "step-000001"]
    assert left["checkpoint 0 is half deleted"] == [".step-000000.deleted", "step-000001", "step-000002"]
    moved = left["checkpoint 3 is written again, and moved away"]
    assert moved == [".step-000003.partial", ".step-000003.retired", "step-000002"]
    assert left["the end"] == whole["left"] == ["step-000002", "step-000003"]


def test_steps_that_were_saved_are_not_done_again(folder: Path) -> None:
    # The last time it was resumed, from a checkpoint that was being replaced, nothing was left to train.
    killed = folder / "killed"
    started = (killed / "run.yaml").stat().st_mtime_ns
    assert (killed / "episodes.jsonl.zst").stat().st_mtime_ns < started
