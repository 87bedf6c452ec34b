"""Line charts as SVG: points and lines between two linear axes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from art_trainer.formatting import short

WIDTH = 340.0
"""Width of a panel in SVG user units."""
HEIGHT = 190.0
"""Height of a panel in SVG user units."""
_NOISE = 1e-12
_MAX_POINTS = 400


class Plot:
    """Points and lines between two linear axes, which enclose the given ranges.

    Grid lines and texts have the CSS classes ``grid`` and ``tick``, for the page that shows them.

    Args:
        x_range: Smallest range of the horizontal axis.
        y_range: Smallest range of the vertical axis.
        margins: Room left of, above and below the axes, in SVG user units.
    """

    def __init__(
        self,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        margins: tuple[float, float, float] = (54.0, 10.0, 24.0),
    ) -> None:
        self._x_marks, self._y_marks = ticks(*x_range, 5), ticks(*y_range, 5)
        self.left, self.top = margins[:2]
        self.right, self.bottom = WIDTH - 14.0, HEIGHT - margins[2]
        self.parts: list[str] = []
        """SVG elements."""

    def place(self, x: float, y: float) -> tuple[float, float]:
        """The position of a pair of values, in SVG user units."""
        across = (x - self._x_marks[0]) / (self._x_marks[-1] - self._x_marks[0])
        up = (y - self._y_marks[0]) / (self._y_marks[-1] - self._y_marks[0])
        x_position = self.left + across * (self.right - self.left)
        return round(x_position, 1), round(self.bottom - up * (self.bottom - self.top), 1)

    def points(self, xs: Sequence[float], ys: Sequence[float], color: str, *, opacity: float = 1.0) -> None:
        """Draw a dot for each pair; several in one place become one dot of their joint density."""
        places = Counter(self.place(x, y) for x, y in zip(xs, ys, strict=True))
        for (x, y), count in places.items():
            density = 1 - (1 - opacity) ** count
            self.parts.append(
                f'<circle cx="{x}" cy="{y}" r="2.2" fill="{color}" fill-opacity="{density:.3g}"/>'
            )

    def line(self, xs: Sequence[float], ys: Sequence[float], color: str, *, dashed: bool = False) -> None:
        """Draw a line through the pairs."""
        path = " ".join("{},{}".format(*self.place(x, y)) for x, y in zip(xs, ys, strict=True))
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6" '
            f'stroke-linejoin="round"{dash}/>'
        )

    def svg(self) -> str:
        """The plot as SVG elements, ``WIDTH`` by ``HEIGHT`` user units, without an outer element."""
        axes = []
        for mark in self._y_marks:
            _, y = self.place(self._x_marks[0], mark)
            axes.append(f'<path class="grid" d="M{self.left:g} {y}H{self.right:g}"/>')
            axes.append(svg_text(self.left - 5, y + 3.5, short(mark), 'class="tick" text-anchor="end"'))
        for mark in self._x_marks:
            x, _ = self.place(mark, self._y_marks[0])
            axes.append(f'<path class="grid" d="M{x} {self.bottom:g}v4"/>')
            axes.append(svg_text(x, self.bottom + 15, short(mark), 'class="tick" text-anchor="middle"'))
        return "\n".join([*axes, *self.parts])


def svg_text(x: float, y: float, text: str, attributes: str) -> str:
    """A text element."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'


@dataclass(frozen=True, slots=True)
class Chart:
    """One curve over the training steps.

    Attributes:
        title: What is shown.
        note: The unit or meaning.
        first: The first value, as text.
        last: The last value, as text.
        svg: The drawing: the values as dots, and a smoothed curve.
    """

    title: str
    note: str
    first: str
    last: str
    svg: str


def line_chart(title: str, note: str, steps: Sequence[float], values: Sequence[float]) -> Chart | None:
    """Draw a curve over the steps; ``None`` if there are no finite values.

    Args:
        title: What is shown.
        note: The unit or meaning.
        steps: The step of each value, ascending.
        values: One value per step; values that are not finite are left out, rounding noise about 0 is 0.
    """
    pairs = [(float(x), float(y)) for x, y in zip(steps, values, strict=True) if math.isfinite(y)]
    if not pairs:
        return None
    xs = [x for x, _ in pairs]
    ys = [y if abs(y) > _NOISE else 0.0 for _, y in pairs]
    smooth = smoothed(ys)
    # More points than the drawing can resolve only make the file large.
    stride = max(1, math.ceil(len(pairs) / _MAX_POINTS))
    kept = sorted({*range(0, len(pairs), stride), len(pairs) - 1})
    plot = Plot((xs[0], xs[-1]), (min(ys), max(ys)))
    shown = [xs[i] for i in kept]
    plot.points(shown, [ys[i] for i in kept], "var(--accent)", opacity=0.28)
    plot.line(shown, [smooth[i] for i in kept], "var(--accent)")
    return Chart(title, note, short(ys[0]), short(ys[-1]), plot.svg())


def smoothed(values: Sequence[float]) -> list[float]:
    """Average each value with its neighbours, with Gaussian weights: the curve does not lag behind.

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
    if high - low <= _NOISE * max(1.0, abs(low)):
        margin = abs(low) * 0.1 or 0.5
        low, high = low - margin, high + margin
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = 1 - math.floor(math.log10(step) + 1e-9)
    return [round(i * step, digits) for i in range(first, last + 1)]
