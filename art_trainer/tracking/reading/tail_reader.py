"""Reading files of JSON lines while another process appends to them, like ``tail -f``."""

from __future__ import annotations

import math
import secrets
from array import array
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from art_trainer.tracking.run_dir import parse_line

_TAIL = 256
"""Bytes before the read position that must be unchanged; otherwise the file was written anew."""
_NAN = float("nan")


class TailReader:
    """Returns the records that are new since the last call; only complete lines.

    A resumed run writes its files anew, without the steps that it does again. Then all records are returned
    once more. Lines that are not JSON objects are skipped.

    Args:
        file: The file; it need not exist yet.
        last: Begin so many bytes before its end; ``None`` for its beginning.

    Attributes:
        generation: Changes when the file was written anew; records of earlier generations are void.
    """

    def __init__(self, file: Path, last: int | None = None) -> None:
        self.file = file
        self._last = last
        self._offset, self._tail = 0, b""
        self._restart()

    def read(self) -> list[dict[str, Any]]:
        """Return new records.

        Raises:
            OSError: The file cannot be read.
        """
        try:
            stream = self.file.open("rb")
        except FileNotFoundError:
            if self._offset:
                self._restart()
            return []
        with stream:
            if self._last is not None and not self._offset:
                self._offset = max(0, stream.seek(0, 2) - self._last)
            stream.seek(self._offset - len(self._tail))
            if stream.read(len(self._tail)) != self._tail:
                self._restart()
                stream.seek(0)
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._tail = (self._tail + whole)[-_TAIL:]
        return [record for line in whole.splitlines() if (record := _record(line)) is not None]

    def _restart(self) -> None:
        self.generation = secrets.token_hex(6)  # another one than in earlier processes
        self._offset = 0
        self._tail = b""


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = from_json(line, cache_strings=True)  # four times as fast, but it takes no lone surrogates
    except ValueError:
        return parse_line(line)
    return record if isinstance(record, dict) else None


class MetricTable:
    """The columns of a growing ``metrics.jsonl``.

    Args:
        file: The file.
        last: As for :class:`TailReader`.

    Attributes:
        generation: Changes when the file was written anew; rows of earlier generations are void.
    """

    def __init__(self, file: Path, last: int | None = None) -> None:
        self._lines = TailReader(file, last)
        self.generation = ""
        self._rows = 0
        self._columns: dict[str, array[float]] = {}

    def update(self) -> list[dict[str, Any]]:
        """Read and return what is new.

        Raises:
            OSError: The file cannot be read.
        """
        records = self._lines.read()
        if self.generation != self._lines.generation:
            self.generation, self._rows, self._columns = self._lines.generation, 0, {}
        for record in records:
            for name, value in record.items():
                if isinstance(value, int | float) and name not in self._columns:
                    self._columns[name] = array("d", [_NAN]) * self._rows
            for name, column in self._columns.items():
                value = record.get(name)
                column.append(value if isinstance(value, int | float) else _NAN)
            self._rows += 1
        return records

    def latest(self, name: str, count: int | None = None) -> list[float]:
        """The finite values of a metric among the newest rows, the oldest first."""
        column = self._columns.get(name, array("d"))
        return [value for value in column[-count if count else 0 :] if math.isfinite(value)]

    @property
    def cursor(self) -> str:
        """Where the rows end now; changes with every new row."""
        return f"{self.generation}-{self._rows}"

    def after(self, cursor: str | None) -> dict[str, Any]:
        """Return the rows after a cursor; all rows if the cursor is unknown.

        Returns:
            ``cursor``: where they end; ``reset``: whether earlier rows are void; ``rows``: how many;
            ``columns``: values by metric, rounded to six digits, ``None`` if missing or not finite.
        """
        generation, _, place = (cursor or "").partition("-")
        known = generation == self.generation and place.isdecimal() and int(place) <= self._rows
        start = int(place) if known else 0
        columns = {
            name: [_short(value) for value in column[start:]] for name, column in self._columns.items()
        }
        return {"cursor": self.cursor, "reset": not known, "rows": self._rows - start, "columns": columns}


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
