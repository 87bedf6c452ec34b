"""TensorBoard: event files read back with its own reader, and a full disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from art_trainer.monitoring.events import EpisodesPlayed
from art_trainer.monitoring.monitor import Monitor
from art_trainer.monitoring.shown import shown_metrics
from art_trainer.monitoring.source import events_after
from art_trainer.monitoring.sync import sync_run
from art_trainer.monitoring.tensorboard_sink import TensorBoardSink
from tests.art_trainer.monitoring.sink_runs import QUICK, MadeRun
from tests.art_trainer.waiting import until


def _scalars(folder: Path) -> dict[tuple[str, int], float]:
    """Every value by name and step; fails where one is there twice."""
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    found: dict[tuple[str, int], float] = {}
    for name in read.Tags()["scalars"]:
        for event in read.Scalars(name):
            assert (name, event.step) not in found
            found[name, event.step] = event.value
    return found


def _expected(run: MadeRun) -> dict[tuple[str, int], float]:
    return {
        (name, int(line["step"])): float(np.float32(value))
        for line in run.metrics()
        for name, value in shown_metrics(line).items()
    }


def _play(run: MadeRun, first: int, last: int) -> None:
    monitor = Monitor(run.info, [TensorBoardSink()], say=pytest.fail, limits=QUICK, close_seconds=30.0)
    run.begin(monitor, step=first - 1)
    run.play(monitor, first=first, last=last)
    monitor.on_end("finished")
    assert monitor.statuses[0].complete


def test_the_event_files_hold_every_metric_once_also_of_a_resumed_run(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    _play(run, 1, 4)
    _play(run, 4, 6)  # step 4 again: its process was killed before it had saved
    found = _scalars(run.folder / "tensorboard")
    # What was delivered of step 4 stays; a real run comes to the same numbers again.
    expected = _expected(run)
    assert found.keys() == expected.keys()
    assert {k: v for k, v in found.items() if k[1] != 4} == {k: v for k, v in expected.items() if k[1] != 4}


def test_settings_and_first_episodes_are_texts(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", steps=2)
    _play(run, 1, 2)
    read = EventAccumulator(str(run.folder / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    texts: dict[str, Any] = {tag: read.Tensors(tag) for tag in read.Tags()["tensors"]}
    (settings,) = texts["settings"]
    assert b'"learning_rate": 0.001' in settings.tensor_proto.string_val[0]
    shown = [event.tensor_proto.string_val[0].decode() for event in texts["episode"]]
    played = [event for event in events_after(run.folder) if isinstance(event, EpisodesPlayed)]
    for text, event in zip(shown, played, strict=True):
        assert text.startswith(f"{event.episode_id(0)}: reward {event.episodes[0].reward:g}, terminated")
        assert event.episodes[0].turns[-1].reply in text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if mount is None or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_the_sinks_trouble_alone(tmp_path: Path, small_disk: Path) -> None:
    run = MadeRun(tmp_path / "run", steps=150)
    run.begin()
    (run.folder / "tensorboard").symlink_to(small_disk)
    words: list[str] = []
    monitor = Monitor(run.info, [TensorBoardSink()], say=words.append, limits=QUICK)
    (small_disk / "ballast").write_bytes(b"0" * 40_000)
    run.begin(monitor)
    run.play(monitor)
    monitor.on_end("finished")
    status = monitor.statuses[0]
    assert not status.complete
    assert status.failures > 0
    assert "No space left" in str(status.problem)
    assert len(run.metrics()) == 150
    # There is room again: what did not arrive, or may not have, is sent.
    (small_disk / "ballast").unlink()
    (run.folder / "tensorboard").unlink()
    shutil.copytree(small_disk, run.folder / "tensorboard")
    assert sync_run(run.folder, TensorBoardSink(), say=words.append).status.complete
    assert _scalars(run.folder / "tensorboard") == _expected(run)


def test_a_disk_that_has_room_again_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    run = MadeRun(tmp_path / "run", steps=60)
    run.begin()
    (run.folder / "tensorboard").symlink_to(small_disk)
    (small_disk / "ballast").write_bytes(b"0" * 60_000)
    words: list[str] = []
    monitor = Monitor(run.info, [TensorBoardSink()], say=words.append, limits=QUICK, close_seconds=30.0)
    run.begin(monitor)
    run.play(monitor, last=30)
    until(lambda: bool(words))
    (small_disk / "ballast").unlink()
    run.play(monitor, first=31)
    monitor.on_end("finished")
    assert monitor.statuses[0].complete
    assert words[-1].startswith("tensorboard: it works again")
    assert _scalars(run.folder / "tensorboard") == _expected(run)
