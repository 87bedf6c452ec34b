"""The Ray backend in real Ray clusters on this machine: what a script of scenarios reports of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason='needs the package ray: pip install "art-gym[ray]"'
    ),
]
ROOT = Path(__file__).parents[4]


def run_module(folder: Path, *words: str) -> str:
    """Run a module with a home of its own, where Ray writes a token; return what it printed."""
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    ended = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, **settings, "HOME": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    shown = ended.stdout + ended.stderr
    assert ended.returncode == 0, shown[-8000:]
    return shown


def scenario(name: str, folder: Path) -> dict[str, Any]:
    """What a scenario reports."""
    run_module(folder, "tests.art_trainer.distributed.ray.scenarios", name, str(folder / "found.json"))
    return dict(json.loads((folder / "found.json").read_text()))


def test_lost_actors_are_replaced_and_every_attempt_counts_once(tmp_path: Path) -> None:
    found = scenario("local", tmp_path)
    faults = found["faults"]
    assert faults["open_to_all"] == []
    assert faults["seeds"] == [[100 + n] * 4 for n in range(6)]
    assert faults["whole"] == 6
    assert faults["failures"] == {"died": 1, "unresponsive": 1}
    assert faults["results"]["accepted"] == 24
    assert faults["results"]["expired"] >= 1
    assert faults["stopped_ended"]
    assert "asks for 1 CPU and 1 GPU, but none of the cluster's 1 nodes has as much" in found["unschedulable"]


def test_a_node_is_killed_in_the_middle_and_every_group_counts_once(tmp_path: Path) -> None:
    found = scenario("nodes", tmp_path)
    assert found["seeds"] == [[100 + n] * 4 for n in range(24)]
    assert found["heard"] == list(range(24))
    assert found["whole"] == 24
    assert found["results"]["accepted"] == 96 + 16
    assert found["failures"]["died"] >= 1
    assert found["later"] == 4
