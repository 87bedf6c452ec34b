"""The three rewards of 2048, each as named terms that sum to what a turn pays.

``"score"``: the points of the merges, the game's own score.

``"shaped"``, the classic recipe: a legal move pays ``points / 100``, 0.01 for each empty cell, 0.1 for each
doubling of the best tile (0.1·log2 of it) and 0.05 of the smoothness of the board it leaves.

``"target"``, after OpenPipe ART's example: nothing until the episode's end, then 2 if the target tile was
reached, else ``(log2(best) - 1) / (log2(target) - 1) + 0.2 * (log2(total) - 1) / (log2(target * cells) - 1)``
with the best tile and the total of all tiles, which is less than 1.2. (The example's factor of 16 is the
number of cells.)

An illegal move pays none of these; it costs :data:`ILLEGAL_MOVE`, unless the environment sets another amount.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log2

REWARDS = ("score", "shaped", "target")
"""The rewards by the name that ``gym.make`` takes."""

ILLEGAL_MOVE: Mapping[str, float] = {"score": 0.0, "shaped": 0.1, "target": 1.0}
"""What an illegal move costs under each reward."""

POINTS, EMPTY, BEST, SMOOTH = 0.01, 0.01, 0.1, 0.05
"""What the shaped reward gives for a point, an empty cell, log2 of the best tile and the smoothness."""
_REACHED, _TOTAL = 2.0, 0.2


def shaped_terms(points: int, exponents: Sequence[int], size: int) -> dict[str, float]:
    """What the classic recipe pays for one legal move.

    Args:
        points: Merged points of the move.
        exponents: The cells after the move and its new tile, row by row, 0 for an empty one.
        size: Cells in a row.
    """
    return {
        "points": POINTS * points,
        "empty_cells": EMPTY * exponents.count(0),
        "best_tile": BEST * max(exponents),
        "smoothness": SMOOTH * smoothness(exponents, size),
    }


def target_terms(exponents: Sequence[int], size: int, target: int, *, reached: bool) -> dict[str, float]:
    """What an episode pays at its end under ``"target"``.

    Args:
        exponents: The cells at the end, row by row, 0 for an empty one.
        size: Cells in a row.
        target: The tile to reach, a power of two of at least 4.
        reached: Whether it was reached.
    """
    if reached:
        return {"target": _REACHED}
    total = sum(1 << exponent for exponent in exponents if exponent)
    return {
        "best_tile": (max(exponents) - 1) / (log2(target) - 1),
        "total": _TOTAL * (log2(total) - 1) / (log2(target * size * size) - 1),
    }


def smoothness(exponents: Sequence[int], size: int) -> float:
    """How alike neighbours are: from 0, all alike, down.

    Minus the sum of ``|log2 a - log2 b|`` over neighbouring tiles a and b, empty cells left out, divided by
    the number of neighbouring cells, ``2 * size * (size - 1)``.
    """
    differences = 0
    for first, second in _neighbours(size):
        one, other = exponents[first], exponents[second]
        if one and other:
            differences += abs(one - other)
    return -differences / (2 * size * (size - 1))


@lru_cache
def _neighbours(size: int) -> tuple[tuple[int, int], ...]:
    """Pairs of cells side by side or one above the other."""
    cells = range(size * size)
    across = [(cell, cell + 1) for cell in cells if (cell + 1) % size]
    down = [(cell, cell + size) for cell in cells if cell + size < size * size]
    return (*across, *down)
