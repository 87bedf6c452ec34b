"""A run's recorded episodes as a file that other trainers learn from: JSONL or Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from art_trainer.errors import ConfigError
from art_trainer.monitoring.openpipe_export import Split, openpipe_rows
from art_trainer.records.datasets import Selection, chosen_groups, dpo_rows, is_held_out, sft_row

DataFormat = Literal["sft", "dpo", "openpipe"]
JSONL, PARQUET = ".jsonl", ".parquet"
_BATCH = 1000
_MESSAGES: dict[str, tuple[str, ...]] = {
    "sft": ("messages",),
    "dpo": ("prompt", "chosen", "rejected"),
    "openpipe": ("messages",),
}


@dataclass(frozen=True, slots=True)
class ExportedData:
    """The files that were written, and how many rows each has."""

    rows: dict[Path, int]


@dataclass(frozen=True, slots=True)
class _Row:
    data: dict[str, Any]
    held_out: bool


def export_data(
    run: Path | str,
    target: Path | str,
    data_format: DataFormat,
    *,
    selection: Selection | None = None,
    min_gap: float = 0.0,
    held_out: float = 0.0,
    system: str = "",
) -> ExportedData:
    """Write a run's recorded episodes as a data set. What was at ``target`` is replaced when all is written.

    Args:
        run: The run's folder.
        target: The file, ``….jsonl`` or ``….parquet``.
        data_format: Whose rows, see :mod:`art_trainer.records.datasets`.
        selection: Which attempts; by default all.
        min_gap: For ``"dpo"``, how much more reward the better one of a pair has at least.
        held_out: The share of the tasks that is kept to test on: its rows go to ``….test.jsonl``, or in
            OpenPipe's format have another ``split``.
        system: The standing instructions that first observations begin with.

    Returns:
        What was written.

    Raises:
        ConfigError: For another ending than those two, or Parquet where rows have no fixed columns.
        RecordError: Where a record is damaged.
    """
    target = Path(target)
    if target.suffix not in (JSONL, PARQUET):
        raise ConfigError(f"cannot tell the kind of {target}: let it end in {JSONL} or {PARQUET}")
    if target.suffix == PARQUET and data_format == "openpipe":
        raise ConfigError(f"OpenPipe takes {JSONL} files: let {target} end so")
    if not 0 <= held_out < 1:
        raise ConfigError(f"the share of tasks held out is {held_out}: set 0 or more, below 1")
    rows = _rows(run, data_format, selection or Selection(), min_gap, held_out, system)
    files = [target]
    if held_out and data_format != "openpipe":
        files.append(target.with_name(f"{target.stem}.test{target.suffix}"))
    return ExportedData(_write(rows, files, _MESSAGES[data_format]))


def _rows(
    run: Path | str,
    data_format: DataFormat,
    selection: Selection,
    min_gap: float,
    held_out: float,
    system: str,
) -> Iterator[_Row]:
    for group, members in chosen_groups(run, selection):
        tested = is_held_out(group.episodes[0], held_out)
        if data_format == "dpo":
            for row in dpo_rows(group, members, min_gap=min_gap, system=system):
                yield _Row(row, tested)
            continue
        for member in members:
            episode = group.episodes[member]
            if data_format == "sft":
                yield _Row(sft_row(episode, system), tested)
                continue
            split: Split | None = None if not held_out else "TEST" if tested else "TRAIN"
            for row in openpipe_rows(episode, system=system, split=split):
                yield _Row(row, False)


def _write(rows: Iterable[_Row], files: list[Path], columns: Sequence[str]) -> dict[Path, int]:
    """Write rows to the first file, those held out to the second where there is one; all or nothing."""
    files[0].parent.mkdir(parents=True, exist_ok=True)
    partial = [file.with_name(f".partial-{file.name}") for file in files]
    counts = [0] * len(files)
    rows = iter(rows)
    try:
        with ExitStack() as stack:
            writers = [stack.enter_context(_writer(path, columns)) for path in partial]
            while batch := list(islice(rows, _BATCH)):
                for index, write in enumerate(writers):
                    mine = [row.data for row in batch if len(files) == 1 or row.held_out == bool(index)]
                    counts[index] += len(mine)
                    if mine:
                        write(mine)
        for path, file in zip(partial, files, strict=True):
            os.replace(path, file)
    finally:
        for path in partial:
            path.unlink(missing_ok=True)
    return dict(zip(files, counts, strict=True))


@contextmanager
def _writer(path: Path, columns: Sequence[str]) -> Iterator[Callable[[list[dict[str, Any]]], object]]:
    """Open a file for rows, in the kind that its name says; in Parquet ``columns`` hold messages."""
    if path.suffix == JSONL:
        with path.open("w", encoding="utf-8") as stream:
            yield lambda rows: stream.writelines(json.dumps(row) + "\n" for row in rows)
        return
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ConfigError('Parquet files need pyarrow: pip install "pyarrow>=16"') from error
    message = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    schema = pa.schema([*((name, message) for name in columns), ("tools", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        yield lambda rows: writer.write_table(pa.Table.from_pylist(rows, schema=schema))
