"""The trainer with actors of a real Ray cluster on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from integrations.ray.training import ENV
from tests.art_trainer.distributed.ray.test_ray_cluster import run_module


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script says that trains."""
    out = tmp_path_factory.mktemp("training") / "found.json"
    run_module(out.parent, "integrations.ray.training", str(out))
    return dict(json.loads(out.read_text()))


def test_training_takes_the_steps_that_it_would_take_here(found: dict[str, Any]) -> None:
    """A trainer with actors takes the steps that it takes without."""
    steps, there = found["compared"], found["there"]
    assert [step["same"] for step in steps] == [step["episodes"] for step in steps] == [16, 16, 16]
    assert max(step["logprob_difference"] for step in steps) < 1e-4
    assert len({tuple(step["words"]) for step in steps}) == 3  # the weights did change
    assert there["versions"] == [[0], [1], [2]]
    assert there["results"]["accepted"] == there["results"]["leased"] == 48


def test_the_next_batch_is_played_while_one_is_learned_from(found: dict[str, Any]) -> None:
    """With ``max_staleness`` actors play the next batch while one is learned from."""
    ahead = found["ahead"]
    assert ahead["versions"][0] == [0]
    assert 0 in ahead["versions"][1]
    assert set(ahead["versions"][2]) <= {1, 2}
    assert ahead["results"]["accepted"] == ahead["results"]["leased"] == 48


def test_the_command_trains_with_actors(tmp_path: Path) -> None:
    """``art-trainer train --backend ray``."""
    small = ["ray_actors=1", "max_steps=1", "eval_episodes=2", "baselines=[]"]
    flags = [part for one in (*small, "scratch={layers: 1, hidden_size: 32}") for part in ("--set", one)]
    flags += ["--env", ENV, "--model", "scratch", "--backend", "ray", "--output-dir", str(tmp_path / "run")]
    shown = run_module(tmp_path, "art_trainer", "train", *flags)
    assert "Ray actors: 1, in a new cluster on this machine." in shown
    assert "step 1/1" in shown
