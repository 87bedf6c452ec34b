"""Weights & Biases: real offline runs, read back and compared with the run folder."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import wandb
from google.protobuf.message import DecodeError
from wandb.proto import wandb_internal_pb2

from art_trainer.tracking.sinks.backfill import events_after
from art_trainer.tracking.sinks.base import EpisodesPlayed, SinkUnavailableError
from art_trainer.tracking.sinks.delivery import sync_run
from art_trainer.tracking.sinks.rows import action_rows, dashboard_metrics, episode_rows
from art_trainer.tracking.sinks.wandb import WandbSink
from tests.art_trainer.tracking.sinks.sink_runs import MadeRun
from tests.art_trainer.waiting import until

# W&B's own temporary folders are removed when the interpreter ends, not before.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
    pytest.mark.usefixtures("clean_settings"),
]
_OWN = ("_step", "_runtime", "_timestamp")
_BLOCK, _FILE_HEADER, _CHUNK_HEADER = 32768, 7, 7
_FULL, _FIRST, _LAST = 1, 2, 4


@dataclass
class WandbRun:
    """What the offline files of one W&B run hold; artifacts by name, aliases and files."""

    ids: set[str] = field(default_factory=set)
    about: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, list[list[Any]]] = field(default_factory=dict)
    columns: dict[str, list[str]] = field(default_factory=dict)
    models: list[tuple[str, frozenset[str], tuple[str, ...]]] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)


def read_wandb(folder: Path) -> WandbRun:
    """Read all offline runs below a training run's folder as one, when W&B's own process has written them."""
    found = WandbRun()

    def whole() -> bool:
        nonlocal found
        found = WandbRun()
        try:
            for file in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
                for record in _records(file.read_bytes()):
                    _take(found, record, file.parent / "files")
        except DecodeError:
            return False  # it is being written
        return len(found.exits) >= len(list((folder / "wandb").glob("offline-run-*")))

    until(whole)
    return found


def _take(found: WandbRun, record: Any, files: Path) -> None:
    kind = record.WhichOneof("record_type")
    if kind == "run":
        found.ids.add(record.run.run_id)
        found.about |= {"project": record.run.project, "name": record.run.display_name}
        found.about |= {"tags": set(record.run.tags)}
        found.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    elif kind == "history":
        row: dict[str, Any] = {}
        for item in record.history.item:
            *above, name = list(item.nested_key) or [item.key]
            place = row
            for key in above:
                place = place.setdefault(key, {})
            place[name] = json.loads(item.value_json)
        found.history.append(row)
        for key in ("episodes", "actions"):
            if key in row:
                table = json.loads((files / row[key]["path"]).read_text())
                found.columns[key] = table["columns"]
                found.tables.setdefault(key, []).extend(table["data"])
    elif kind == "artifact" and record.artifact.type == "model":
        artifact = record.artifact
        files_of = tuple(entry.path for entry in artifact.manifest.contents)
        found.models.append((artifact.name, frozenset(artifact.aliases), files_of))
    elif kind == "exit":
        found.exits.append(record.exit.exit_code)


def _records(data: bytes) -> Iterator[Any]:
    """Read LevelDB's log format."""
    assert data[:4] == b":W&B"
    place, parts = _FILE_HEADER, b""
    while place + _CHUNK_HEADER <= len(data):
        room = _BLOCK - place % _BLOCK
        if room < _CHUNK_HEADER:
            place += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        chunk = data[place + _CHUNK_HEADER : place + _CHUNK_HEADER + length]
        place += _CHUNK_HEADER + length
        parts = chunk if kind in (_FULL, _FIRST) else parts + chunk
        if kind in (_FULL, _LAST):
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(parts)
            yield record


def assert_same_as_folder(run: MadeRun, found: WandbRun) -> None:
    """Whatever the folder has is there once, and nothing else."""
    rows = [row for row in found.history if not {"episodes", "actions"} & set(row)]
    plain = [{name: value for name, value in row.items() if name not in _OWN} for row in rows]
    assert plain == [{"step": line["step"], **dashboard_metrics(line)} for line in run.metrics()]
    events = [event for event in events_after(run.folder) if isinstance(event, EpisodesPlayed)]
    assert found.tables["episodes"] == [list(row) for e in events for row in episode_rows(e, run.info)]
    assert found.tables["actions"] == [list(row) for e in events for row in action_rows(e)]


@pytest.mark.e2e
def test_a_resumed_run_continues_in_the_same_wandb_run(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "mail-run")
    run.deliver(WandbSink({}), last=3, outcome="interrupted")
    run.deliver(WandbSink({}), first=4)
    found = read_wandb(run.folder)
    assert len(found.ids) == 1
    tags = {"ART", "GRPO", "art-tiny"}
    assert found.about == {"project": "art-gym", "name": "mail-run", "tags": tags}
    assert {k: v for k, v in found.config.items() if k != "_wandb"} == dict(run.info.config)
    assert_same_as_folder(run, found)
    names = ["episode_id", "total_reward", "steps", "success", "accuracy", "efficiency"]
    assert found.columns["episodes"][1:] == names
    assert found.models == [
        ("mail-run-model", frozenset({"latest", "step-3"}), ("weights",)),
        ("mail-run-model", frozenset({"latest", "step-6"}), ("weights",)),
    ]
    assert found.exits == [130, 0]


@pytest.mark.e2e
def test_a_table_has_the_first_rows_that_wandb_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb.Table, "MAX_ROWS", 3)
    run = MadeRun(tmp_path / "run", steps=1)
    run.deliver(WandbSink({}))
    (event,) = (event for event in events_after(run.folder) if isinstance(event, EpisodesPlayed))
    rows = list(map(list, action_rows(event)))
    assert len(rows) > 3
    assert read_wandb(run.folder).tables["actions"] == rows[:3]


def test_an_invalid_key_is_refused_for_good(tmp_path: Path) -> None:
    sink = WandbSink({"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9"})
    with pytest.raises(SinkUnavailableError):
        sink.open(MadeRun(tmp_path / "run").info, resume=None)


_DEAD_SERVER = """
import sys, time
from pathlib import Path
from art_trainer.tracking.sinks.wandb import WandbSink
from tests.art_trainer.tracking.sinks.sink_runs import MadeRun
from tests.art_trainer.waiting import until

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
