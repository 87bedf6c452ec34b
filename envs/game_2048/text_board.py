"""Format a board as text: what a model reads each turn, so every character counts.

::

       .    .    2    4
       .    2    8   16
       2    4   16   64
       4   16   32  128
    score 724
    legal up left

Every cell is one word between blanks, a dot if it is empty, right-aligned in columns as wide as the widest
tile: a tokenizer that splits at blanks sees the same words for the same board, whatever its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import getitem

from art_gym.envs.game_2048.rules.board import ACTIONS

_MOST = 127
"""Exponents in a cell."""


def board_text(exponents: Sequence[int], size: int) -> str:
    """The cells alone, one line a row.

    Args:
        exponents: The cells row by row, 0 for an empty one, 1 for the tile 2, 2 for 4, and so on.
        size: Cells in a row.
    """
    return "".join(map(getitem, _cells(size)[max(exponents)], exponents))


def observation(exponents: Sequence[int], size: int, score: int, legal: tuple[bool, ...]) -> str:
    """The board, the score and the legal moves.

    Args:
        exponents: The cells row by row, 0 for an empty one, 1 for the tile 2, 2 for 4, and so on.
        size: Cells in a row.
        score: Points so far.
        legal: Whether each of up, right, down and left changes the board.
    """
    return f"{board_text(exponents, size)}\nscore {score}\n{_LEGAL_LINES[legal]}"


def observation_with_points(
    exponents: Sequence[int], size: int, score: int, points: Sequence[int | None]
) -> str:
    """The score, the board, and what each move would score, with a dash if it is illegal.

    The score comes first: what follows then always stands equally far from the end, where the reply begins.

    Args:
        exponents: As in :func:`observation`.
        size: Cells in a row.
        score: Points so far.
        points: The points of up, right, down and left, ``None`` if the move is illegal.
    """
    moves = [f"{name} {'-' if gain is None else gain}" for name, gain in zip(ACTIONS, points, strict=True)]
    return f"score {score}\n{board_text(exponents, size)}\n{' '.join(moves)}"


@cache
def _cells(size: int) -> list[list[tuple[str, ...]]]:
    """By a board's largest exponent and a cell's place: the cell's text for each exponent.

    Before the cell stands a blank or, if it begins a row, the end of the line above.
    """
    columns: dict[int, list[tuple[str, ...]]] = {}
    found = []
    for best in range(_MOST):
        width = len(str(1 << best))
        if width not in columns:
            cells = [f"{1 << exponent if exponent else '.':>{width}}" for exponent in range(_MOST)]
            first, below, beside = (tuple(mark + cell for cell in cells) for mark in ("", "\n", " "))
            row = [beside] * (size - 1)
            columns[width] = [first, *row, *([below, *row] * (size - 1))]
        found.append(columns[width])
    return found


_LEGAL_LINES = {
    tuple(bool(mask >> index & 1) for index in range(4)): "legal "
    + (" ".join(name for index, name in enumerate(ACTIONS) if mask >> index & 1) or "none")
    for mask in range(16)
}
