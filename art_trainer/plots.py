"""Plots as SVG files: points, lines and intervals between two axes, several panels beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from art_trainer.charts import HEIGHT, WIDTH, short, ticks

COLOURS = ("#2d6cb4", "#b4552d", "#3f8f4f", "#7a4fa3", "#8a8a3a", "#555555")
"""One for each series, in order."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 14.0, 38.0, 38.0
_LETTER = 5.2  # about the width of a letter, in SVG user units


class Panel:
    """One plot; values are placed by linear axes that enclose the given ranges.

    Args:
        title: What stands above.
        x: What the horizontal axis shows.
        y: What the vertical axis shows.
        x_range: The least range of the horizontal axis.
        y_range: The least range of the vertical axis.
        x_numbers: Whether the horizontal axis is one of numbers, with marks.
    """

    def __init__(
        self,
        title: str,
        x: str,
        y: str,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        *,
        x_numbers: bool = True,
    ) -> None:
        self._title, self._x_name, self._y_name, self._x_numbers = title, x, y, x_numbers
        self._x_marks, self._y_marks = ticks(*x_range, 5), ticks(*y_range, 5)
        self._parts: list[str] = []

    def points(self, xs: Sequence[float], ys: Sequence[float], colour: str, *, opacity: float = 1.0) -> None:
        """Draw a dot for each pair; many in one place as one that is as dense as they are together."""
        places = Counter(
            (f"{self._across(x):.1f}", f"{self._up(y):.1f}") for x, y in zip(xs, ys, strict=True)
        )
        for (across, up), count in places.items():
            density = 1 - (1 - opacity) ** count
            self._parts.append(
                f'<circle cx="{across}" cy="{up}" r="2.5" fill="{colour}" fill-opacity="{density:.3g}"/>'
            )

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str, *, dashed: bool = False) -> None:
        """Draw a line through the pairs."""
        path = " ".join(f"{self._across(x):.1f},{self._up(y):.1f}" for x, y in zip(xs, ys, strict=True))
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>'
        )

    def interval(self, x: float, low: float, high: float, colour: str) -> None:
        """Draw an upright bar from ``low`` to ``high``."""
        across, bottom, top = self._across(x), self._up(low), self._up(high)
        self._parts.append(
            f'<path d="M{across:.1f} {bottom:.1f}V{top:.1f}M{across - 4:.1f} {bottom:.1f}h8'
            f'M{across - 4:.1f} {top:.1f}h8" stroke="{colour}" stroke-width="1.4" fill="none"/>'
        )

    def label(self, x: float, y: float, words: str, colour: str) -> None:
        """Write words to the right of a place, or to its left where there is no room."""
        across = self._across(x)
        fits = across + 7 + _LETTER * len(words) < WIDTH
        anchor, beside = ("start", across + 7) if fits else ("end", across - 7)
        self._parts.append(
            f'<text x="{beside:.1f}" y="{self._up(y) + 4:.1f}" fill="{colour}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )

    def legend(self, names: Sequence[tuple[str, str]]) -> None:
        """Name the series above the drawing: pairs of words and their colour."""
        across = _LEFT
        for words, colour in names:
            self._parts.append(f'<text x="{across:.1f}" y="30" fill="{colour}">{escape(words)}</text>')
            across += _LETTER * len(words) + 8

    def svg(self) -> str:
        """The panel as SVG elements, ``WIDTH`` by ``HEIGHT`` user units, without a frame of its own."""
        right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
        parts = [f'<text x="{_LEFT:g}" y="16" font-size="12">{escape(self._title)}</text>']
        for mark in self._y_marks:
            y = self._up(mark)
            parts.append(f'<path d="M{_LEFT:g} {y:.1f}H{right:g}" stroke="#ddd"/>')
            parts.append(f'<text x="{_LEFT - 5:g}" y="{y + 3.5:.1f}" text-anchor="end">{short(mark)}</text>')
        for mark in self._x_marks if self._x_numbers else ():
            x = self._across(mark)
            parts.append(f'<path d="M{x:.1f} {bottom:g}v4" stroke="#888"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 15:g}" text-anchor="middle">{short(mark)}</text>')
        middle = (_LEFT + right) / 2
        parts.append(
            f'<text x="{middle:g}" y="{HEIGHT - 6:g}" text-anchor="middle">{escape(self._x_name)}</text>'
        )
        height = (_TOP + bottom) / 2
        parts.append(
            f'<text transform="translate(12 {height:g}) rotate(-90)" text-anchor="middle">'
            f"{escape(self._y_name)}</text>"
        )
        return "\n".join([*parts, *self._parts])

    def _across(self, value: float) -> float:
        share = (value - self._x_marks[0]) / (self._x_marks[-1] - self._x_marks[0])
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def _up(self, value: float) -> float:
        share = (value - self._y_marks[0]) / (self._y_marks[-1] - self._y_marks[0])
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def page(panels: Sequence[Panel], columns: int = 2) -> str:
    """The text of an SVG file with panels side by side.

    Args:
        panels: At least one.
        columns: Most panels in a row.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    drawn = [
        f'<g transform="translate({number % columns * WIDTH:g} {number // columns * HEIGHT:g})">\n'
        f"{panel.svg()}\n</g>"
        for number, panel in enumerate(panels)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * WIDTH:g} {rows * HEIGHT:g}" '
        'font-family="sans-serif" font-size="10">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )
