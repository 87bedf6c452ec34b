"""Numbers as a reader sees them: the same words in the terminal and in the report."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from art_trainer.types import Interval

_BARS = "▁▂▃▄▅▆▇█"


def percent(interval: Interval | None) -> str:
    """A rate with its interval, as in ``62% (55 to 68)``; a dash where there is none."""
    if interval is None:
        return "–"
    return f"{100 * interval.value:.0f}% ({between(100 * interval.low, 100 * interval.high, '.0f')})"


def points(interval: Interval | None) -> str:
    """A difference of rates, as in ``+31 points (95% interval +22 to +39)``; a dash where there is none."""
    if interval is None:
        return "–"
    found = between(100 * interval.low, 100 * interval.high, "+.0f")
    return f"{100 * interval.value:+.0f} points (95% interval {found})"


def number(interval: Interval | None, *, signed: bool = False) -> str:
    """A mean with its interval, as in ``0.412 (0.380 to 0.443)`` or ``4464 (4190 to 4738)``, or a dash."""
    if interval is None:
        return "–"
    # Thousandths of a success rate matter, those of a game's score do not.
    style = f"{'+' if signed else ''}.{3 if abs(interval.value) < 100 else 0}f"
    return f"{interval.value:{style}} ({between(interval.low, interval.high, style)})"


def between(low: float, high: float, style: str) -> str:
    """The two ends of an interval in a number format, or ``unknown`` if nothing says how wide it is."""
    if math.isnan(low) or math.isnan(high):
        return "unknown"
    return f"{low:{style}} to {high:{style}}"


def short(value: float) -> str:
    """A number for a reader: three significant digits, thousands as k."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1000:.3g}k"
    if abs(value) < 0.0001:
        return f"{value:.0e}".replace("e-0", "e-")
    if abs(value) < 0.001:
        return f"{value:.4f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """A time span, as in ``42 s``, ``3 min 05 s`` or ``2 h 07 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def in_bytes(size: int) -> str:
    """A size in the largest binary unit that leaves at least one, as in ``1.25 GiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min((max(size, 1).bit_length() - 1) // 10, len(units) - 1)
    return f"{size} B" if power == 0 else f"{size / 1024**power:.3g} {units[power]}"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """A curve in one line of text, means of neighbours where there are more values than columns.

    Values that are not finite are left out.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    columns = min(width, len(finite))
    edges = [round(i * len(finite) / columns) for i in range(columns + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high - low < 1e-12:
        return _BARS[0] * columns
    return "".join(_BARS[round((mean - low) / (high - low) * (len(_BARS) - 1))] for mean in means)


# Values as strict JSON can hold them.


def finite(value: Any) -> Any:
    """Return a copy in which numbers that are not finite are ``None``; anything unknown is its words."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return str(value)


def to_bytes(value: Any) -> bytes:
    """Return a value as compact JSON.

    It is ASCII: a lone surrogate in a reply is data too, and only as an escape it survives.

    Raises:
        ValueError: If a number is not finite.
        TypeError: If there is no JSON for it.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def append_bytes(file: Path, data: bytes) -> None:
    """Append to a file, whole or not at all, for its owner alone: it may hold mail.

    Raises:
        OSError: If there is no room; it names the file, which is as it was before.
    """
    file.touch(0o600)
    with file.open("ab", buffering=0) as stream:
        before, left = os.fstat(stream.fileno()).st_size, memoryview(data)
        try:
            while left:
                left = left[stream.write(left) :]
        except BaseException as error:  # a full disk, or Ctrl-C
            stream.truncate(before)
            if isinstance(error, OSError):
                error.filename = str(file)
            raise


def fsync(path: Path) -> None:
    """Force a file to the disk; of a folder, the names in it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
