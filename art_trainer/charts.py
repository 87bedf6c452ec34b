"""The geometry of a line chart: numbers in, coordinates and tick labels out. The template draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WIDTH = 340.0
"""Width of a chart in SVG user units."""
HEIGHT = 190.0
"""Height of a chart in SVG user units."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 12.0, 10.0, 24.0
_NOISE = 1e-12
_MAX_POINTS = 400


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: where it stands, in SVG user units, and what it says."""

    position: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One curve over the steps, ready to be drawn.

    Attributes:
        title: What is shown.
        note: The unit or meaning, in few words.
        points: The raw values as (x, y) in SVG user units.
        line: The smoothed curve as an SVG ``points`` attribute.
        x_ticks: Marks of the step axis.
        y_ticks: Marks of the value axis.
        first: The first smoothed value, as text.
        last: The last smoothed value, as text.
        end: Where the smoothed curve ends.
        left: The drawing's left edge, as ``right``, ``top`` and ``bottom`` in SVG user units.
    """

    title: str
    note: str
    points: tuple[tuple[float, float], ...]
    line: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    first: str
    last: str
    end: tuple[float, float]
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM
    width: float = WIDTH
    height: float = HEIGHT


def line_chart(title: str, note: str, steps: Sequence[float], values: Sequence[float]) -> Chart | None:
    """Lay out a curve; ``None`` where there are no finite values.

    Args:
        title: What is shown.
        note: The unit or meaning, in few words.
        steps: The step of each value, ascending.
        values: One value per step; values that are not finite are left out, and rounding noise about 0 is 0.
    """
    pairs = [(float(x), float(y)) for x, y in zip(steps, values, strict=True) if math.isfinite(y)]
    if not pairs:
        return None
    xs = [x for x, _ in pairs]
    ys = [y if abs(y) > _NOISE else 0.0 for _, y in pairs]
    smooth = smoothed(ys)
    y_marks = ticks(min(ys), max(ys), 4)
    x_low, x_high = xs[0], xs[-1] if xs[-1] > xs[0] else xs[0] + 1
    y_low, y_high = min(y_marks[0], min(ys)), max(y_marks[-1], max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - _LEFT - _RIGHT)
        up = HEIGHT - _BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - _TOP - _BOTTOM)
        return round(across, 1), round(up, 1)

    # Points beyond the drawing's resolution only make the file large.
    stride = max(1, math.ceil(len(pairs) / _MAX_POINTS))
    kept = sorted({*range(0, len(pairs), stride), len(pairs) - 1})
    curve = [place(xs[i], smooth[i]) for i in kept]
    x_marks = [mark for mark in ticks(x_low, x_high, 4) if x_low <= mark <= x_high and mark == int(mark)]
    return Chart(
        title=title,
        note=note,
        points=tuple(place(xs[i], ys[i]) for i in kept),
        line=" ".join(f"{x},{y}" for x, y in curve),
        x_ticks=tuple(Tick(place(mark, y_low)[0], short(mark)) for mark in x_marks),
        y_ticks=tuple(Tick(place(x_low, mark)[1], short(mark)) for mark in y_marks),
        first=short(smooth[0]),
        last=short(smooth[-1]),
        end=curve[-1],
    )


def smoothed(values: Sequence[float]) -> list[float]:
    """Each value averaged with its neighbours, with Gaussian weights: a curve that does not lag behind.

    The weights' standard deviation is a fortieth of the curve, so short runs are hardly smoothed. Source:
    E. A. Nadaraya, "On estimating regression", Theory of Probability and its Applications 9 (1964).
    """
    spread = max(len(values) / 40, 1e-9)
    reach = math.ceil(3 * spread)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / spread) ** 2)
    inside = slice(reach, reach + len(values))
    sums = np.convolve(values, weights)[inside]
    totals = np.convolve(np.ones(len(values)), weights)[inside]
    return [float(value) for value in sums / totals]


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """About ``wanted`` round numbers (1, 2, 5 times a power of ten) that enclose ``low`` and ``high``."""
    if high <= low:
        margin = abs(low) * 0.1 or 0.5
        low, high = low - margin, high + margin
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


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
