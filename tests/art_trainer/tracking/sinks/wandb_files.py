"""Reads W&B's offline files: LevelDB's log format of protobuf records, with W&B's own message types."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from wandb.proto import wandb_internal_pb2

_BLOCK, _FILE_HEADER, _CHUNK_HEADER = 32768, 7, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


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


def read_wandb(folder: Path, patience: float = 60.0) -> WandbRun:
    """Read all offline runs below a training run's folder as one, when W&B's own process has written them."""
    deadline = time.monotonic() + patience
    while True:
        try:
            found = _read(folder)
            if len(found.exits) >= len(list((folder / "wandb").glob("offline-run-*"))):
                return found
        except DecodeError:
            pass  # it is being written
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _read(folder: Path) -> WandbRun:
    found = WandbRun()
    for file in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        for record in _records(file.read_bytes()):
            _take(found, record, file.parent / "files")
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
