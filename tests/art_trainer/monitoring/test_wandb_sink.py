"""Weights & Biases: real offline runs, read back and compared with the run's folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import wandb

from art_trainer.monitoring.events import EpisodesPlayed, SinkUnavailableError
from art_trainer.monitoring.monitor import Monitor
from art_trainer.monitoring.shown import action_rows, episode_rows, shown_metrics
from art_trainer.monitoring.source import Cursor, events_after
from art_trainer.monitoring.sync import sync_run
from art_trainer.monitoring.wandb_sink import WandbSink
from tests.art_trainer.monitoring.sink_runs import QUICK, MadeRun
from tests.art_trainer.monitoring.wandb_files import WandbRun, read_wandb

pytestmark = [
    # W&B's own temporary folders are removed when the interpreter ends, not before.
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]
_OWN = ("_step", "_runtime", "_timestamp")


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))


def _played(run: MadeRun, first: int, last: int, *, outcome: str = "finished") -> None:
    monitor = Monitor(run.info, [WandbSink()], say=pytest.fail, limits=QUICK, close_seconds=60.0)
    run.begin(monitor, step=first - 1)
    run.play(monitor, first=first, last=last)
    monitor.on_end(outcome)  # type: ignore[arg-type]
    assert monitor.statuses[0].complete


def _check_against_folder(run: MadeRun, found: WandbRun) -> None:
    """Whatever the folder has is there once, and nothing else."""
    rows = [row for row in found.history if not {"episodes", "actions"} & set(row)]
    plain = [{name: value for name, value in row.items() if name not in _OWN} for row in rows]
    assert plain == [{"step": line["step"], **shown_metrics(line)} for line in run.metrics()]
    played = [event for event in events_after(run.folder) if isinstance(event, EpisodesPlayed)]
    assert found.tables["episodes"] == [list(row) for e in played for row in episode_rows(e, run.info)]
    assert found.tables["actions"] == [list(row) for e in played for row in action_rows(e)]


def test_a_run_is_there_whole_and_a_resumed_one_goes_on_in_the_same_wandb_run(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "mail-run")
    _played(run, 1, 3, outcome="interrupted")
    _played(run, 4, 6)
    found = read_wandb(run.folder)
    assert len(found.ids) == 1
    assert (found.projects, found.names, found.tags) == (
        {"art-tests"},
        {"mail-run"},
        {"ART", "GRPO", "art-tiny"},
    )
    assert {k: v for k, v in found.config.items() if k != "_wandb"} == dict(run.info.config)
    _check_against_folder(run, found)
    assert found.columns["episodes"][1:] == [
        "episode_id",
        "total_reward",
        "steps",
        "success",
        "accuracy",
        "efficiency",
    ]
    assert found.models == [
        ("mail-run-model", frozenset({"latest", "step-3"}), ("weights",)),
        ("mail-run-model", frozenset({"latest", "step-6"}), ("weights",)),
    ]
    assert found.exits == [130, 0]


def test_a_finished_run_can_be_sent_later(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", steps=3)
    run.begin()
    run.play()
    assert sync_run(run.folder, WandbSink(), say=pytest.fail).status.complete
    found = read_wandb(run.folder)
    # The tables' rows: the first step's at once, the others' within 30 s, here at the end.
    assert [row["step"] for row in found.history] == [1, 1, 2, 3, 3]
    # Nothing in the folder says how many turns were allowed.
    efficiency = found.columns["episodes"].index("efficiency")
    assert {row[efficiency] for row in found.tables["episodes"]} == {None}


def test_tables_that_failed_to_be_logged_are_not_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MadeRun(tmp_path / "run", steps=2)
    run.begin()
    run.play()
    sink = WandbSink()
    sink.open(run.info, resume=None)
    events = list(events_after(run.folder))
    log, failed = sink._run.log, []

    def log_badly(row: dict[str, object]) -> None:
        if "episodes" in row and not failed:
            failed.append(row)
            raise OSError("no space left on device")
        log(row)

    monkeypatch.setattr(sink._run, "log", log_badly)
    for event in events:
        try:
            sink.deliver(event)
        except OSError:
            sink.deliver(event)
    sink.close("finished")
    assert failed
    _check_against_folder(run, read_wandb(run.folder))


@pytest.mark.parametrize("redone", [False, True], ids=["sync", "resumed run"])
def test_rows_that_a_killed_process_held_back_are_logged_by_the_next(tmp_path: Path, redone: bool) -> None:
    run = MadeRun(tmp_path / "run", steps=5)
    run.begin()
    run.play(last=3 if redone else 5)
    killed = WandbSink(table_seconds=1000)
    killed.open(run.info, resume=None)
    for event in events_after(run.folder):
        killed.deliver(event)
    state = json.loads(json.dumps(killed.state()))
    assert state["unlogged"] == ([2, 3] if redone else [2, 3, 4, 5])
    killed._run.finish()
    sink = WandbSink(table_seconds=0)
    if redone:  # its checkpoint was after step 1: what the sink has been told is in no file by now
        shutil.rmtree(run.folder / "checkpoints")
        run.begin(step=1)
    sink.open(run.info, resume=state)
    if redone:
        run.play(first=2)
        for event in events_after(run.folder, Cursor(3, 2)):
            sink.deliver(event)
    sink.close("finished")
    assert sink.state()["unlogged"] == []
    found = read_wandb(run.folder)
    rows = sorted(found.tables["episodes"], key=lambda row: row[1])
    played = [event for event in events_after(run.folder) if isinstance(event, EpisodesPlayed)]
    wanted = [list(row) for event in played for row in episode_rows(event, run.info)]
    assert [row[:2] for row in rows] == [row[:2] for row in wanted]


def test_rows_that_were_logged_are_let_go(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", steps=4)
    run.begin()
    run.play()
    sink = WandbSink(table_seconds=0)
    sink.open(run.info, resume=None)
    for event in events_after(run.folder):
        sink.deliver(event)
    assert sink._tables is not None
    assert [row for row in sink._tables._actions.data if row] == []
    sink.close("finished")
    _check_against_folder(run, read_wandb(run.folder))


@pytest.mark.parametrize("seconds", [0, 1000])
def test_more_rows_than_a_log_takes_are_logged_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    monkeypatch.setattr(wandb.Table, "MAX_ROWS", 3)
    run = MadeRun(tmp_path / "run", steps=3)
    run.begin()
    run.play()
    sink = WandbSink(table_seconds=seconds)
    sink.open(run.info, resume=None)
    for event in events_after(run.folder):
        sink.deliver(event)
    sink.close("finished")
    assert sink.state()["unlogged"] == []
    _check_against_folder(run, read_wandb(run.folder))


def test_the_tables_show_the_first_episodes_of_each_step(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", steps=2)
    run.begin()
    run.play()
    sink = WandbSink(table_episodes=1)
    sink.open(run.info, resume=None)
    for event in events_after(run.folder):
        sink.deliver(event)
    sink.close("finished")
    tables = read_wandb(run.folder).tables
    shown = ["000001-0000", "000002-0000"]
    assert sorted(row[1] for row in tables["episodes"]) == shown
    assert sorted({row[1] for row in tables["actions"]}) == shown


def test_a_key_means_online_and_none_means_offline() -> None:
    offline = WandbSink.from_settings({"WANDB_PROJECT": "p"})
    assert offline.state()["destination"] == "offline"
    online = WandbSink.from_settings({"WANDB_API_KEY": "k" * 40, "WANDB_BASE_URL": "http://localhost:1"})
    assert online.state()["destination"] == "http://localhost:1"
    assert "k" * 40 not in f"{vars(offline)}{online.state()}{online!r}"


@pytest.mark.parametrize("words", ["soon", "nan", "-1"])
def test_seconds_that_are_none_are_refused(words: str) -> None:
    with pytest.raises(SinkUnavailableError, match=f"ART_LOG_TABLE_SECONDS is '{words}': set a number"):
        WandbSink.from_settings({"ART_LOG_TABLE_SECONDS": words})


def test_a_key_that_is_none_is_refused_for_good(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    sink = WandbSink(None, mode="online", base_url="http://127.0.0.1:9")
    with pytest.raises(SinkUnavailableError):
        sink.open(run.info, resume=None)


_DEAD_SERVER = """
import sys, time
from pathlib import Path
from art_trainer.monitoring.monitor import Monitor
from art_trainer.monitoring.wandb_sink import WandbSink
from tests.art_trainer.monitoring.sink_runs import QUICK, MadeRun

run = MadeRun(Path(sys.argv[1]))
sink = WandbSink("k" * 40, base_url="http://127.0.0.1:9", close_seconds=1.0)
monitor = Monitor(run.info, [sink], say=print, limits=QUICK, close_seconds=1.0)
run.begin(monitor)
run.play(monitor)
began = time.monotonic()
monitor.on_end("finished")
assert time.monotonic() - began < 60
assert not monitor.statuses[0].complete
print("ended")
"""


def test_a_dead_server_ends_the_process_in_time_and_sync_sends_all(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _DEAD_SERVER, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "ended" in done.stdout, done.stderr
    assert done.returncode == 0
    assert "k" * 40 not in done.stdout + done.stderr
    run = MadeRun(tmp_path / "run")
    assert sync_run(run.folder, WandbSink(), say=pytest.fail).status.complete
    _check_against_folder(run, read_wandb(run.folder))


@pytest.mark.parametrize("words", ["some", "0", "1.5"])
def test_a_number_of_episodes_that_is_none_is_refused(words: str) -> None:
    with pytest.raises(SinkUnavailableError, match=f"ART_LOG_TABLE_EPISODES is '{words}': set a whole"):
        WandbSink.from_settings({"ART_LOG_TABLE_EPISODES": words})
