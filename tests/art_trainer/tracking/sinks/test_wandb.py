"""Weights & Biases: real offline runs, read back and compared with the run folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import wandb

from art_trainer.tracking.sinks.backfill import events_after
from art_trainer.tracking.sinks.base import Cursor, EpisodesPlayed, SinkUnavailableError
from art_trainer.tracking.sinks.delivery import sync_run
from art_trainer.tracking.sinks.rows import action_rows, dashboard_metrics, episode_rows
from art_trainer.tracking.sinks.wandb import WandbSink
from tests.art_trainer.tracking.sinks.services import Service
from tests.art_trainer.tracking.sinks.sink_runs import MadeRun
from tests.art_trainer.tracking.sinks.wandb_files import WandbRun, read_wandb

# W&B's own temporary folders are removed when the interpreter ends, not before.
pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
_OWN = ("_step", "_runtime", "_timestamp")


@pytest.fixture(autouse=True)
def _offline(make_service: Callable[[str], Service]) -> None:
    make_service("wandb")


def played(folder: Path, steps: int = 3) -> MadeRun:
    run = MadeRun(folder / "run", steps=steps)
    run.begin()
    run.play()
    return run


def delivered(run: MadeRun, sink: WandbSink) -> WandbRun:
    sink.open(run.info, resume=None)
    for event in events_after(run.folder):
        sink.deliver(event)
    sink.close("finished")
    assert sink.state()["unlogged"] == []
    return read_wandb(run.folder)


def assert_same_as_folder(run: MadeRun, found: WandbRun) -> None:
    """Whatever the folder has is there once, and nothing else."""
    rows = [row for row in found.history if not {"episodes", "actions"} & set(row)]
    plain = [{name: value for name, value in row.items() if name not in _OWN} for row in rows]
    assert plain == [{"step": line["step"], **dashboard_metrics(line)} for line in run.metrics()]
    events = [event for event in events_after(run.folder) if isinstance(event, EpisodesPlayed)]
    assert found.tables["episodes"] == [list(row) for e in events for row in episode_rows(e, run.info)]
    assert found.tables["actions"] == [list(row) for e in events for row in action_rows(e)]


def test_a_resumed_run_continues_in_the_same_wandb_run(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "mail-run")
    run.deliver(WandbSink({}), last=3, outcome="interrupted")
    run.deliver(WandbSink({}), first=4)
    found = read_wandb(run.folder)
    assert len(found.ids) == 1
    tags = {"ART", "GRPO", "art-tiny"}
    assert found.about == {"project": "art-tests", "name": "mail-run", "tags": tags}
    assert {k: v for k, v in found.config.items() if k != "_wandb"} == dict(run.info.config)
    assert_same_as_folder(run, found)
    names = ["episode_id", "total_reward", "steps", "success", "accuracy", "efficiency"]
    assert found.columns["episodes"][1:] == names
    assert found.models == [
        ("mail-run-model", frozenset({"latest", "step-3"}), ("weights",)),
        ("mail-run-model", frozenset({"latest", "step-6"}), ("weights",)),
    ]
    assert found.exits == [130, 0]


@pytest.mark.parametrize("seconds", [0, 1000])
def test_more_rows_than_a_log_takes_are_logged_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    monkeypatch.setattr(wandb.Table, "MAX_ROWS", 3)
    run, sink = played(tmp_path), WandbSink({"ART_LOG_TABLE_SECONDS": str(seconds)})
    assert_same_as_folder(run, delivered(run, sink))
    assert not any(row for table in sink._tables.values() for row in table.data)  # freed


def test_the_tables_show_the_first_episodes_of_each_step(tmp_path: Path) -> None:
    tables = delivered(played(tmp_path, steps=2), WandbSink({"ART_LOG_TABLE_EPISODES": "1"})).tables
    shown = ["000001-0000", "000002-0000"]
    assert sorted(row[1] for row in tables["episodes"]) == shown
    assert sorted({row[1] for row in tables["actions"]}) == shown


def test_tables_that_failed_to_be_logged_are_not_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sink = played(tmp_path, steps=2), WandbSink({})
    sink.open(run.info, resume=None)
    log, failed = sink._wandb.log, []

    def log_badly(row: dict[str, object]) -> None:
        if "episodes" in row and not failed:
            failed.append(row)
            raise OSError("no space left on device")
        log(row)

    monkeypatch.setattr(sink._wandb, "log", log_badly)
    for event in events_after(run.folder):
        try:
            sink.deliver(event)
        except OSError:
            sink.deliver(event)
    sink.close("finished")
    assert failed
    assert_same_as_folder(run, read_wandb(run.folder))


@pytest.mark.parametrize("resumed", [False, True], ids=["sync", "resumed run"])
def test_rows_that_a_killed_process_held_back_are_logged_by_the_next(tmp_path: Path, resumed: bool) -> None:
    run = MadeRun(tmp_path / "run", steps=5)
    run.begin()
    run.play(last=3 if resumed else 5)
    killed = WandbSink({"ART_LOG_TABLE_SECONDS": "1000"})
    killed.open(run.info, resume=None)
    for event in events_after(run.folder):
        killed.deliver(event)
    state = json.loads(json.dumps(killed.state()))
    assert state["unlogged"] == ([2, 3] if resumed else [2, 3, 4, 5])
    killed._wandb.finish()
    sink = WandbSink({"ART_LOG_TABLE_SECONDS": "0"})
    if resumed:  # its checkpoint was after step 1: what the sink was handed is in no file by now
        shutil.rmtree(run.folder / "checkpoints")
        run.begin(step=1)
    sink.open(run.info, resume=state)
    if resumed:
        run.play(first=2)
        for event in events_after(run.folder, Cursor(3, 2)):
            sink.deliver(event)
    sink.close("finished")
    assert sink.state()["unlogged"] == []
    rows = sorted(read_wandb(run.folder).tables["episodes"], key=lambda row: row[1])
    events = [event for event in events_after(run.folder) if isinstance(event, EpisodesPlayed)]
    wanted = [list(row) for event in events for row in episode_rows(event, run.info)]
    assert [row[:2] for row in rows] == [row[:2] for row in wanted]


def test_an_invalid_key_is_refused_for_good(tmp_path: Path) -> None:
    sink = WandbSink({"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9"})
    with pytest.raises(SinkUnavailableError):
        sink.open(MadeRun(tmp_path / "run").info, resume=None)


_DEAD_SERVER = """
import sys, time
from pathlib import Path
from art_trainer.tracking.sinks.wandb import WandbSink
from tests.art_trainer.tracking.sinks.sink_runs import MadeRun

settings = {"WANDB_API_KEY": "k" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
sink = WandbSink({**settings, "ART_LOG_CLOSE_SECONDS": "1"})
began = time.monotonic()
assert not MadeRun(Path(sys.argv[1])).deliver(sink, close_seconds=1.0).complete
assert time.monotonic() - began < 60
print("ended")
"""


@pytest.mark.e2e
def test_a_dead_server_ends_the_process_in_time_and_sync_sends_all(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _DEAD_SERVER, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "ended" in done.stdout, done.stderr
    assert done.returncode == 0
    assert "k" * 40 not in done.stdout + done.stderr
    run = MadeRun(tmp_path / "run")
    assert sync_run(run.folder, WandbSink({}))[0].complete
    assert_same_as_folder(run, read_wandb(run.folder))
