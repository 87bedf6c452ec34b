"""How the rate grows with the number of boards, as an SVG with both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 40, 48
_COLOURS = ("#b4552d", "#2d6cb4", "#3f8f4f", "#7a4fa3", "#8a8a3a")


def growth_chart(title: str, lines: Mapping[str, Mapping[int, float]]) -> str:
    """Draw steps per CPU-second over boards, a line for each name.

    Args:
        title: What stands above.
        lines: By name, the rate by number of boards; none empty.
    """
    boards = [count for line in lines.values() for count in line]
    rates = [rate for line in lines.values() for rate in line.values()]
    across = _Scale(min(boards), max(boards), _LEFT, _WIDTH - _RIGHT)
    up = _Scale(min(rates), max(rates), _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{escape(title)}</text>',
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">boards</text>',
    ]
    for power in up.powers():
        y = up.place(10**power)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(10**power)}</text>')
    for count in sorted(set(boards)):
        x = across.place(count)
        if round(math.log2(count)) % 2 == 0:
            y = _HEIGHT - _BOTTOM + 16
            parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{_short(count)}</text>')
    labels: list[tuple[float, float, str, str]] = []
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [(across.place(count), up.place(rate)) for count, rate in sorted(line.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        labels.append((points[-1][1], points[-1][0], name, colour))
    lowest = -math.inf
    for y, x, name, colour in sorted(labels):
        # Lines that end close to each other have their names one below the other.
        lowest = max(y, lowest + 12)
        parts.append(f'<text x="{x + 8:.1f}" y="{lowest + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


class _Scale:
    """A logarithmic axis between two places."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self._low, self._high = math.log10(low), math.log10(max(high, 2 * low))
        self._begin, self._end = begin, end

    def place(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)

    def powers(self) -> range:
        return range(math.ceil(self._low), math.floor(self._high) + 1)


def _short(number: float) -> str:
    for size, mark in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{mark}" if mark == "M" else f"{number / size:.0f}{mark}"
    return f"{number:g}"
