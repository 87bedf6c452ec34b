"""Everything runs on the model's device, and a decode step waits for it once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.e2e
@pytest.mark.skipif(torch.__version__ < "2.13", reason="the stand-in for a GPU needs PyTorch 2.13")
def test_on_a_stand_in_for_a_gpu_no_operation_mixes_devices_and_no_count_rises(tmp_path: Path) -> None:
    """A process of its own, since a device is registered for good."""
    command = [sys.executable, "benchmarks/bench_launches.py", "--check", "--json", str(tmp_path / "counts")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "counts").read_text())["counts"]
    assert found["operations on two devices"] == 0
    assert (found["waits a step"], found["copies a step"]) == (1, 1)
