"""The Ray backend in real Ray clusters on this machine: what two scripts report of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.art_trainer.ray_backend.players import tasks

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='needs the package ray: pip install "art-gym[ray]"'
)
ROOT = Path(__file__).parents[3]


def scenario(name: str, folder: Path) -> dict[str, Any]:
    """What a script says, run with a home of its own: Ray writes a token there."""
    out = folder / "found.json"
    module = f"tests.art_trainer.ray_backend.scenario_{name}"
    ended = subprocess.run(
        [sys.executable, "-m", module, str(out)],
        cwd=ROOT,
        env={**os.environ, "HOME": str(folder), "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return dict(json.loads(out.read_text()))


def attempts(count: int) -> list[list[str]]:
    return [[str([*task.rng_seed, member]) for member in range(task.size)] for task in tasks(count)]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return scenario("local", tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return scenario("nodes", tmp_path_factory.mktemp("nodes"))


def test_a_private_cluster_is_open_to_this_machine_alone(local: dict[str, Any]) -> None:
    assert local["faults"]["open_to_all"] == []


def test_killed_and_stopped_actors_are_replaced_and_every_attempt_counts_once(local: dict[str, Any]) -> None:
    found = local["faults"]
    assert found["groups"] == attempts(6)
    assert found["whole"] == 6
    assert found["losses"] == {"died": 1, "silent": 1}
    assert found["results"]["accepted"] == 24
    assert found["results"]["expired"] >= 1
    assert any("actor is lost" in words or "is lost (died)" in words for words in found["said"])


def test_the_process_of_a_stopped_actor_is_ended(local: dict[str, Any]) -> None:
    assert local["faults"]["stopped_ended_within"] is not None


def test_an_actor_for_which_there_is_no_room_is_told_of_with_what_would_be_right(
    local: dict[str, Any],
) -> None:
    found = local["unplaced"]
    assert "found no place in the cluster: it did not start within 1.5 s" in found["words"]
    assert "asks for 1 CPU and 1 GPU, but none of the cluster's 1 nodes has as much" in found["words"]


def test_a_file_that_is_damaged_on_the_way_is_refused(local: dict[str, Any]) -> None:
    assert local["damaged"] == "weights.safetensors is damaged: its sha256 is not the manifest's"


def test_a_node_is_killed_in_the_middle_and_every_group_counts_once(nodes: dict[str, Any]) -> None:
    assert nodes["groups"] == attempts(24)
    assert nodes["heard"] == list(range(24))
    assert nodes["whole"] == 24
    assert nodes["results"]["accepted"] == 96
    assert nodes["results"]["failed"] >= 1
    assert nodes["losses"]["died"] == 2
