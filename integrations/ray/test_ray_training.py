"""The trainer with actors of a real Ray cluster on this machine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.art_trainer.distributed.ray.test_ray_cluster import scenario


@pytest.fixture(scope="module")
def ray_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script says that trains."""
    return scenario("training", tmp_path_factory.mktemp("training"))


def test_training_takes_the_steps_that_it_would_take_here(ray_run: dict[str, Any]) -> None:
    """A trainer with actors takes the steps that it takes without."""
    steps, there = ray_run["training"]["compared"], ray_run["training"]["there"]
    assert [step["same"] for step in steps] == [step["episodes"] for step in steps] == [16, 16, 16]
    assert max(step["logprob_difference"] for step in steps) < 1e-4
    assert len({tuple(step["words"]) for step in steps}) == 3  # the weights did change
    assert there["versions"] == [[0], [1], [2]]
    assert there["results"]["accepted"] == there["results"]["leased"] == 48


def test_the_next_batch_is_played_while_one_is_learned_from(ray_run: dict[str, Any]) -> None:
    """With ``max_staleness`` actors play the next batch while one is learned from."""
    ahead = ray_run["training"]["ahead"]
    assert ahead["versions"][0] == [0]
    assert 0 in ahead["versions"][1]
    assert set(ahead["versions"][2]) <= {1, 2}
    assert ahead["results"]["accepted"] == ahead["results"]["leased"] == 48


def test_the_command_trains_with_actors(ray_run: dict[str, Any]) -> None:
    """``art-trainer train --backend ray``."""
    code, shown = ray_run["command"]
    assert code == 0, shown
    assert "Ray actors: 1, in a new cluster on this machine." in shown
    assert "step 1/1" in shown
