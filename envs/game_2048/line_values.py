"""What a line of a board is worth to a search: the sum over a board's rows and columns is the board's value.

A line is good when it has room (empty cells), when tiles can merge, when its tiles rise or fall from one
end to the other without turning back (monotonicity), when neighbours are alike (smoothness), and when its
tiles are few and large. A constant keeps the boards that games come to above 0, which is what a game that is
over is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each property of a line counts; the defaults were found by playing some thousand games.

    Attributes:
        alive: Added to every line, so that a game that goes on is worth more than one that is over.
        empty: For each empty cell.
        merge: For each pair of equal neighbours, empty cells between them left out.
        turn: Taken for a line that is not monotone: the rises or the falls of ``exponent ** turn_power``,
            whichever are less.
        turn_power: Larger tiles count more.
        rough: Taken for each unit of difference between neighbouring tiles' exponents.
        tile: Taken for each tile, times ``exponent ** tile_power``: of two boards with the same total, that
            with fewer and larger tiles is better.
        tile_power: Larger tiles cost more, but by less than the two they came from.
    """

    alive: float = 200_000.0
    empty: float = 760.0
    merge: float = 900.0
    turn: float = 38.0
    turn_power: float = 3.04
    rough: float = 25.0
    tile: float = 14.6
    tile_power: float = 3.08


def line_value(line: Sequence[int], weights: Weights) -> float:
    """The value of one row or column.

    Args:
        line: Exponents, 0 for an empty cell. A line and its mirror image have the same value.
        weights: What counts how much.
    """
    tiles = [exponent for exponent in line if exponent]
    pairs = list(pairwise(tiles))
    powers: list[float] = [exponent**weights.turn_power for exponent in line]
    steps = [after - before for before, after in pairwise(powers)]
    rises = sum(step for step in steps if step > 0)
    falls = -sum(step for step in steps if step < 0)
    return (
        weights.alive
        + weights.empty * (len(line) - len(tiles))
        + weights.merge * sum(one == other for one, other in pairs)
        - weights.turn * min(rises, falls)
        - weights.rough * sum(abs(one - other) for one, other in pairs)
        - weights.tile * sum(float(exponent**weights.tile_power) for exponent in tiles)
    )


@lru_cache(maxsize=4)
def row_values(weights: Weights) -> NDArray[np.float32]:
    """The values of all lines of four cells with exponents up to 15, four bits a cell: shape (65536,)."""
    values = [line_value([row >> shift & 15 for shift in (0, 4, 8, 12)], weights) for row in range(1 << 16)]
    return np.array(values, np.float32)
