"""Weights & Biases: real offline runs, read back."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import wandb
from google.protobuf.message import DecodeError
from wandb.proto import wandb_internal_pb2

from art_trainer.tracking.loggers.base import LoggerError, RunInfo, dashboard_metrics, make_logger
from art_trainer.tracking.loggers.wandb import WandbLogger, _excerpt, _run_id
from art_trainer.types import Group
from tests.art_trainer.tracking.loggers.logged_runs import SETTINGS, invalid, log_run, metrics, solved
from tests.art_trainer.waiting import until

# W&B's own temporary folders are removed when the interpreter ends, not before.
pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
_BLOCK, _HEADER = 32768, 7
_FIRST, _LAST = (1, 2), (1, 4)  # kinds of the chunks that begin and end a record


@dataclass
class WandbRun:
    """What the offline files of one W&B run hold."""

    runs: list[Any] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    artifacts: list[Any] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)

    def add(self, record: Any, files: Path) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self.runs.append(record.run)
        elif kind == "history":
            row: dict[str, Any] = {}
            for item in record.history.item:
                name, *below = item.nested_key or [item.key]
                value = json.loads(item.value_json)
                row[name] = value if not below else {**row.get(name, {}), below[0]: value}
            for name in {"episodes", "actions"} & set(row):
                self.tables[name] += json.loads((files / row.pop(name)["path"]).read_text())["data"]
            self.history.append(row)
        elif kind == "artifact" and record.artifact.type == "model":
            self.artifacts.append(record.artifact)
        elif kind == "exit":
            self.exits.append(record.exit.exit_code)


def read_wandb(run: Path) -> WandbRun:
    """Read all offline runs below a run folder as one, when W&B's own process has written them."""
    found = WandbRun()

    def whole() -> bool:
        found.__init__()  # type: ignore[misc]
        files = sorted(run.glob("wandb/offline-run-*/run-*.wandb"))
        try:
            for file in files:
                for record in _records(file.read_bytes()):
                    found.add(record, file.parent / "files")
        except DecodeError:
            return False  # it is being written
        return len(found.exits) == len(files)

    until(whole)
    return found


def _records(data: bytes) -> Iterator[Any]:
    """Read LevelDB's log format, which W&B has no reader for in Python."""
    place, parts = _HEADER, b""
    while place + _HEADER <= len(data):
        room = _BLOCK - place % _BLOCK
        if room < _HEADER:
            place += room
            continue
        length, kind = struct.unpack_from("<4xHB", data, place)
        parts = (b"" if kind in _FIRST else parts) + data[place + _HEADER : place + _HEADER + length]
        place += _HEADER + length
        if kind in _LAST:
            yield wandb_internal_pb2.Record.FromString(parts)  # type: ignore[attr-defined]


TAGS = ("ART", "GRPO", "art-tiny")
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
    log_run(run, ["wandb"], last=2)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("art_trainer")]
    assert ours == [f"wandb was offline; to send the run: wandb sync {run}/wandb/offline-run-*"]
    log_run(run, ["wandb"], first=3, last=4)
    found = read_wandb(run)
    assert {one.run_id for one in found.runs} == {(run / "wandb" / "run_id").read_text()}
    about = found.runs[0]
    assert (about.project, about.display_name, set(about.tags)) == ("art-gym", "mail-run", set(TAGS))
    config = {item.key: json.loads(item.value_json) for item in about.config.update}
    assert {name: config[name] for name in SETTINGS} == SETTINGS
    assert found.history == [
        {**row, **dashboard_metrics(metrics(step)), "_step": step}
        for step, row in zip((1, 2, 3, 4), found.history, strict=True)
    ]
    assert found.tables["episodes"] == [
        pytest.approx([step, f"{step:06d}-{index:04d}", *row])
        for step in (1, 2, 3, 4)
        for index, row in enumerate(EPISODES)
    ]
    assert found.tables["actions"] == [
        [step, f"{step:06d}-{index:04d}", *row] for step in (1, 2, 3, 4) for index, *row in ACTIONS
    ]
    models = [(one.name, set(one.aliases), one.manifest.contents[0].path) for one in found.artifacts]
    assert models == [("mail-run-model", {"latest", f"step-{step}"}, "weights") for step in (2, 4)]
    assert found.exits == [0, 0]


@pytest.mark.e2e
def test_what_wandb_has_is_not_sent_again_and_a_table_has_the_rows_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wandb.Table, "MAX_ROWS", 2)
    logger = make_logger("wandb", RunInfo(tmp_path, SETTINGS))
    logger.on_begin(0)
    for step in (1, 2, 1, 2, 3):
        logger.on_logged(metrics(step), [Group((solved(),)), Group((invalid(),))])
    logger.on_end("interrupted")
    found = read_wandb(tmp_path)
    assert [row["_step"] for row in found.history] == [1, 2, 3]
    assert "will be ignored" not in capfd.readouterr().err
    assert len(found.tables["actions"]) == 3 * 2
    assert found.exits == [130]


def test_a_run_that_begins_anew_is_another_wandb_run(tmp_path: Path) -> None:
    file = tmp_path / "wandb" / "run_id"
    first = _run_id(file, resumed=False)
    assert _run_id(file, resumed=True) == first
    assert _run_id(file, resumed=False) != first
    assert _run_id(tmp_path / "other" / "run_id", resumed=True) != first


def test_uploads_that_take_too_long_are_named(tmp_path: Path) -> None:
    logger = WandbLogger(RunInfo(tmp_path))
    finish = Mock(side_effect=TimeoutError)
    logger._wandb_run = SimpleNamespace(dir=str(tmp_path / "run-1" / "files"), finish=finish)
    with pytest.raises(LoggerError, match=f"to send it: wandb sync {tmp_path}/run-1$"):
        logger.on_end("failed")
    finish.assert_called_once_with(exit_code=1)


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
log_run(Path(sys.argv[1]), ["wandb"])
print("ended")
"""


@pytest.mark.e2e
def test_without_an_answer_of_wandb_the_run_is_offline_and_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    command = [sys.executable, "-c", _DEAD_SERVER, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    assert "connection refused. The run is offline." in done.stderr
    assert "to send the run: wandb sync" in done.stderr
    assert "k" * 40 not in done.stderr
    assert len(read_wandb(tmp_path / "run").history) == 2
