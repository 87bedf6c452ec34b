"""A run's ``metrics.jsonl`` as columns in memory, from which a page asks for what it has not seen."""

from __future__ import annotations

import math
import secrets
from array import array
from dataclasses import dataclass
from pathlib import Path

from art_trainer.dashboard.growing import GrowingLines

MAX_ROWS = 40_000
"""Rows kept; beyond, every second one is given up."""
MAX_NAMES = 400
"""Metrics kept; later ones are left out."""
PAGE = 4_000
"""Rows of one answer."""


@dataclass(frozen=True, slots=True)
class MetricRows:
    """Rows of a run's metrics.

    Attributes:
        cursor: What to ask with for the rows that come after these.
        reset: Whether these rows are the first ones: what was known before is void.
        more: Whether there are more rows already.
        rows: How many rows.
        columns: Values by metric, six digits of them; ``None`` where a row has none, or none that is finite.
    """

    cursor: str
    reset: bool
    more: bool
    rows: int
    columns: dict[str, list[float | None]]


class MetricTable:
    """Reads a file of metrics as it grows.

    Args:
        file: ``metrics.jsonl``.
        max_rows: Rows to keep. Of a longer run every second row is given up, again and again.
    """

    def __init__(self, file: Path, max_rows: int = MAX_ROWS) -> None:
        self._lines = GrowingLines(file)
        self._max_rows = max_rows
        self._columns: dict[str, array[float]] = {}
        self._rows = 0
        self._stride = 1
        self._seen = 0
        self._epoch = ""
        self._begin_anew()

    def __len__(self) -> int:
        return self._rows

    def update(self) -> None:
        """Take up what was written since.

        Raises:
            OSError: Where the file cannot be read.
        """
        while True:
            generation = self._lines.generation
            records = self._lines.read()
            if self._lines.generation != generation:
                self._begin_anew()
            if not records:
                return
            for record in records:
                self._add(record)

    def last(self, name: str) -> float | None:
        """The newest finite value of a metric, also where its row was given up."""
        return self._newest.get(name)

    def latest(self, name: str, count: int) -> list[float]:
        """The finite values of a metric among the newest rows, oldest first."""
        column = self._columns.get(name)
        return [] if column is None else [value for value in column[-count:] if math.isfinite(value)]

    @property
    def cursor(self) -> str:
        """Where the rows end now: another text once there is something new."""
        return f"{self._epoch}-{self._rows}"

    def after(self, cursor: str | None) -> MetricRows:
        """Return the rows after a cursor, from the first one on where it is none of ours."""
        epoch, _, place = (cursor or "").partition("-")
        known = epoch == self._epoch and place.isdecimal() and int(place) <= self._rows
        start = int(place) if known else 0
        end = min(start + PAGE, self._rows)
        columns = {
            name: [_short(value) for value in column[start:end]] for name, column in self._columns.items()
        }
        return MetricRows(
            cursor=f"{self._epoch}-{end}",
            reset=not known,
            more=end < self._rows,
            rows=end - start,
            columns=columns,
        )

    def _begin_anew(self) -> None:
        self._columns = {}
        self._newest: dict[str, float] = {}
        self._rows = self._seen = 0
        self._stride = 1
        # A name that no other table and no earlier process has given.
        self._epoch = secrets.token_hex(6)

    def _add(self, record: dict[str, object]) -> None:
        numbers = {
            name: float(value)
            for name, value in record.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        self._newest |= {name: value for name, value in numbers.items() if math.isfinite(value)}
        self._seen += 1
        if self._seen % self._stride:
            return
        for name, value in numbers.items():
            if name not in self._columns:
                if len(self._columns) == MAX_NAMES:
                    continue
                self._columns[name] = array("d", [math.nan]) * self._rows
            self._columns[name].append(value)
        self._rows += 1
        for column in self._columns.values():
            if len(column) < self._rows:
                column.append(math.nan)
        if self._rows > self._max_rows:
            self._thin()

    def _thin(self) -> None:
        """Keep every second row."""
        kept = {name: column[1::2] for name, column in self._columns.items()}
        newest, seen, stride = self._newest, self._seen, self._stride * 2
        self._begin_anew()
        self._columns, self._newest, self._seen, self._stride = kept, newest, seen, stride
        self._rows = len(next(iter(kept.values()), ()))


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
