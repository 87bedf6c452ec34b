"""trackio: a project's database, read back through its storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trackio")
from trackio import sqlite_storage

from art_trainer.monitoring.events import EpisodesPlayed
from art_trainer.monitoring.monitor import Monitor
from art_trainer.monitoring.shown import episode_rows, shown_metrics
from art_trainer.monitoring.source import events_after
from art_trainer.monitoring.trackio_sink import TrackioSink
from tests.art_trainer.monitoring.sink_runs import QUICK, MadeRun


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # trackio reads TRACKIO_DIR once, when it is imported.
    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio")


def _play(run: MadeRun, first: int, last: int) -> None:
    monitor = Monitor(run.info, [TrackioSink()], say=pytest.fail, limits=QUICK, close_seconds=30.0)
    run.begin(monitor, step=first - 1)
    run.play(monitor, first=first, last=last)
    monitor.on_end("finished")
    assert monitor.statuses[0].complete


def _logs() -> list[dict[str, Any]]:
    logs: list[dict[str, Any]] = sqlite_storage.SQLiteStorage.get_logs("art-tests", "run")
    return logs


def test_the_database_holds_every_step_once_also_of_a_resumed_run(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    _play(run, 1, 3)
    _play(run, 4, 6)
    assert sqlite_storage.SQLiteStorage.get_runs("art-tests") == ["run"]
    logs = [{k: v for k, v in row.items() if k != "timestamp"} for row in _logs()]
    metrics = [row for row in logs if "episodes" not in row]
    assert metrics == [shown_metrics(line) | {"step": int(line["step"])} for line in run.metrics()]
    tables = [row["episodes"]["_value"] for row in logs if "episodes" in row]
    played = [event for event in events_after(run.folder) if isinstance(event, EpisodesPlayed)]
    assert tables == [[row._asdict() for row in episode_rows(event, run.info)] for event in played]
    config = sqlite_storage.SQLiteStorage.get_run_config("art-tests", "run")
    assert config is not None
    assert (config["learning_rate"], config["tags"]) == (0.001, ["ART", "GRPO", "art-tiny"])


def test_what_comes_twice_is_kept_once(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", steps=2)
    run.begin()
    run.play()
    sink = TrackioSink()
    sink.open(run.info, resume=None)
    for event in (*events_after(run.folder), *events_after(run.folder)):
        sink.deliver(event)
    assert len(_logs()) == 4
