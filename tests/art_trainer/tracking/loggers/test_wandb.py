"""Weights & Biases: real offline runs, read back."""

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

from art_trainer.tracking.loggers.base import RunInfo, dashboard_metrics, make_logger
from art_trainer.tracking.loggers.wandb import _excerpt, _run_id
from tests.art_trainer.tracking.loggers.logged_runs import SETTINGS, invalid, log_run, metrics, solved
from tests.art_trainer.waiting import until

# W&B's own temporary folders are removed when the interpreter ends, not before.
pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
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


EPISODES = [
    ["task-7", 0.9, True, 2, 0, "terminated"],
    ["task-8", -0.5, False, 1, 1, "truncated"],
    ["task-9", 0.0, None, 0, 0, "env_error"],
]
ACTIONS = [
    [0, 1, "search", -0.1, "What did the books cost?"],
    [0, 2, "answer", 1.0, "Nothing found. ☃"],
    [1, 1, "invalid:no_call", -0.5, "Find it."],
]


@pytest.mark.e2e
def test_a_resumed_run_continues_in_the_same_wandb_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "art_trainer")
    run = tmp_path / "mail-run"
    log_run(run, [make_logger("wandb")], last=2)
    (folder,) = (run / "wandb").glob("offline-run-*")
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("art_trainer")]
    assert ours == [f"wandb was offline; to send the run: wandb sync {folder}"]
    log_run(run, [make_logger("wandb")], first=3, last=4)
    found = read_wandb(run)
    assert found.ids == {(run / "wandb" / "run_id").read_text()}
    assert found.about == {"project": "art-gym", "name": "mail-run", "tags": {"ART", "GRPO", "art-tiny"}}
    assert {name: value for name, value in found.config.items() if name != "_wandb"} == SETTINGS
    numbers = [
        {name: value for name, value in row.items() if name not in (*_OWN, "episodes", "actions")}
        for row in found.history
    ]
    assert numbers == [dashboard_metrics(metrics(step)) for step in (1, 2, 3, 4)]
    assert [row["_step"] for row in found.history] == [1, 2, 3, 4]
    assert found.tables["episodes"] == [
        pytest.approx([step, f"{step:06d}-{index:04d}", *row])
        for step in (1, 2, 3, 4)
        for index, row in enumerate(EPISODES)
    ]
    assert found.tables["actions"] == [
        [step, f"{step:06d}-{index:04d}", *row] for step in (1, 2, 3, 4) for index, *row in ACTIONS
    ]
    assert found.models == [
        ("mail-run-model", frozenset({"latest", f"step-{step}"}), ("weights",)) for step in (2, 4)
    ]
    assert found.exits == [0, 0]


@pytest.mark.e2e
def test_what_wandb_has_is_not_sent_again_and_a_table_has_the_rows_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb.Table, "MAX_ROWS", 2)
    logger = make_logger("wandb")
    logger.begin(RunInfo(tmp_path, SETTINGS), 0)
    for step in (1, 2, 1, 2, 3):
        logger.log_step(step, metrics(step), [solved(), invalid()], [None, None])
    logger.end("interrupted")
    found = read_wandb(tmp_path)
    assert [row["_step"] for row in found.history] == [1, 2, 3]
    assert len(found.tables["actions"]) == 3 * 2
    assert found.exits == [130]


def test_a_run_that_begins_anew_is_another_wandb_run(tmp_path: Path) -> None:
    file = tmp_path / "wandb" / "run_id"
    first = _run_id(file, resumed=False)
    assert _run_id(file, resumed=True) == first
    assert _run_id(file, resumed=False) != first
    assert _run_id(tmp_path / "other" / "run_id", resumed=True) != first


def test_a_long_state_is_its_beginning_and_end() -> None:
    assert _excerpt("a  b\nc") == "a b c"
    shown = _excerpt("You search a mailbox. " * 100 + "Who wrote about tea?")
    assert (shown[:21], shown[-20:], " … " in shown) == (
        "You search a mailbox.",
        "Who wrote about tea?",
        True,
    )
    assert len(shown) < 100


_DEAD_SERVER = """
import logging, sys
from pathlib import Path
from art_trainer.tracking.loggers import wandb
from tests.art_trainer.tracking.loggers.logged_runs import log_run

logging.basicConfig(level=logging.INFO)
wandb._BEGIN_SECONDS = 1
log_run(Path(sys.argv[1]), [wandb.WandbLogger()])
print("ended")
"""


@pytest.mark.e2e
def test_without_an_answer_of_wandb_the_run_is_offline_and_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    command = [sys.executable, "-c", _DEAD_SERVER, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    assert "connection refused. The run is offline." in done.stderr
    assert "to send the run: wandb sync" in done.stderr
    assert "k" * 40 not in done.stderr
    assert len(read_wandb(tmp_path / "run").history) == 2
