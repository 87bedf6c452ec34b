"""A disk that is full when a server writes its second checkpoint: a real one, as small as a tmpfs can be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from art_trainer.distributed.server import RunProgress
from art_trainer.errors import CheckpointError
from art_trainer.tracking.run_dir import list_checkpoints
from art_trainer.training.checkpoint import checkpoint_to_resume, verify_checkpoint
from tests.art_trainer.distributed.test_server_training import learned_from, local, running, weights

Mount = Callable[[str], None]


def checkpoints_bytes(run: Path) -> int:
    """What the checkpoints take of a tmpfs, which gives out whole pages."""
    files = [path for path in (run / "checkpoints").rglob("*") if path.is_file()]
    return sum(-(-file.stat().st_size // 4096) * 4096 for file in files)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Mount]]:
    """A run's folder whose checkpoints lie on a tmpfs, and what gives that another size."""
    place = tmp_path / "run" / "checkpoints"
    place.mkdir(parents=True)

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr)

    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        mount("size=1m")
    except OSError as fault:
        pytest.skip(f"needs the right to mount a tmpfs: {fault}")
    yield tmp_path / "run", mount
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_ends_the_run_and_its_continuation_uses_every_result_once(
    disk: tuple[Path, Mount], tmp_path: Path
) -> None:
    folder, mount = disk
    straight = local(tmp_path / "straight", save_steps=1, save_total_limit=1)
    mount(f"remount,size={3 * checkpoints_bytes(tmp_path / 'straight') // 2}")  # of two, one and a half
    progress = RunProgress("run", 3)
    with running(folder, callbacks=(progress,), save_steps=1, save_total_limit=1) as run:
        with pytest.raises(CheckpointError, match="No space left on device") as full:
            run.trainer.train()
        first = folder / "checkpoints" / "step-000001"
        assert f"{folder}/checkpoints/step-000002 cannot be written" in str(full.value)
        assert str(full.value).endswith(f"the newest whole one is {first} (step 1)")
        assert (run.trainer.step, progress.state) == (2, "failed")
        assert run.backend.status().results["accepted"] == 32
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000001"]
    assert list_checkpoints(folder / "checkpoints") == [first]
    verify_checkpoint(first)

    mount("remount,size=4m")  # somebody has made room
    with running(folder, workers=0, save_steps=1, save_total_limit=1) as again:
        found = checkpoint_to_resume(folder / "checkpoints")
        assert found == first
        again.trainer.load_checkpoint(first)
        again.add_worker()
        again.trainer.train()
        results = again.backend.status().results
    # What was played for the second step is in the journal; only the third is played.
    assert (results["resumed"], results["accepted"]) == (16, 16)
    assert torch.allclose(weights(straight), weights(again.trainer), atol=1e-5)
    trained = [group.episodes[0].seed for _, groups in learned_from(folder) for group in groups]
    assert len(trained) == len(set(trained)) == 12
