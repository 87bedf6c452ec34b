"""Figures as SVG files: titles, axes with names, intervals, labels and legends."""

from __future__ import annotations

from collections.abc import Sequence

from art_trainer.analysis.svg_charts import HEIGHT, WIDTH, Plot, svg_text

COLORS = ("#2d6cb4", "#b4552d", "#3f8f4f", "#7a4fa3", "#8a8a3a", "#555555")
"""One for each series, in order."""

_LETTER = 5.2  # about the width of a letter, in SVG user units
_STYLE = "<style>.grid { stroke: #ddd } .tick { fill: #333 }</style>"


class Panel(Plot):
    """A plot with a title and names of its axes.

    Args:
        title: Text above the plot.
        x: Name of the horizontal axis.
        y: Name of the vertical axis.
        x_range: Smallest range of the horizontal axis.
        y_range: Smallest range of the vertical axis.
    """

    def __init__(
        self, title: str, x: str, y: str, x_range: tuple[float, float], y_range: tuple[float, float]
    ) -> None:
        super().__init__(x_range, y_range, (52.0, 38.0, 38.0))
        middle = 'class="tick" text-anchor="middle"'
        turned = f'transform="translate(12 {(self.top + self.bottom) / 2:g}) rotate(-90)" {middle}'
        self.parts += [
            svg_text(self.left, 16, title, 'font-size="12" class="tick"'),
            svg_text((self.left + self.right) / 2, HEIGHT - 6, x, middle),
            svg_text(0, 0, y, turned),
        ]

    def interval(self, x: float, low: float, high: float, color: str) -> None:
        """Draw an upright bar from ``low`` to ``high``."""
        (across, bottom), (_, top) = self.place(x, low), self.place(x, high)
        path = f"M{across} {bottom}V{top}M{across - 4:.1f} {bottom}h8M{across - 4:.1f} {top}h8"
        self.parts.append(f'<path d="{path}" stroke="{color}" stroke-width="1.4" fill="none"/>')

    def label(self, x: float, y: float, text: str, color: str) -> None:
        """Write text to the right of a place, or to its left if there is no room."""
        across, up = self.place(x, y)
        fits = across + 7 + _LETTER * len(text) < WIDTH
        anchor, beside = ("start", across + 7) if fits else ("end", across - 7)
        self.parts.append(svg_text(beside, up + 4, text, f'fill="{color}" text-anchor="{anchor}"'))

    def legend(self, names: Sequence[tuple[str, str]]) -> None:
        """Name the series above the plot: pairs of text and color."""
        across = self.left
        for text, color in names:
            self.parts.append(svg_text(across, 30, text, f'fill="{color}"'))
            across += _LETTER * len(text) + 8


def page(panel: Panel) -> str:
    """The text of an SVG file with a panel."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'font-family="sans-serif" font-size="10">\n{_STYLE}\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{panel.svg()}\n</svg>\n'
    )
