"""The snake heuristic: a policy whose tiles fall in value along the rows, from the bottom left corner.

It looks one tile and one more move ahead, in Python. It plays far worse than :mod:`expectimax`, for which all
corners are equal; but since it always builds in the same one, what it does is far easier to learn from
examples.
"""

from __future__ import annotations

from functools import cache

from art_gym.envs.game_2048.rules.board import ACTIONS, Rules

_FALL = 0.5  # what a tile is worth in the next cell of the snake
_ROOM = 2.0  # what an empty cell is worth
_LOST = -1e9


def snake_choice(rules: Rules, board: int) -> int:
    """The move after which the snake is expected to be best, once a 2 has appeared and the next move is made.

    Args:
        rules: Of the board's size.
        board: A packed board with a legal move.
    """
    boards = _slides(rules, board)
    return max(boards, key=lambda action: expected(rules, boards[action]))


def expected(rules: Rules, board: int) -> float:
    """The mean over the empty cells, a 2 put into each, of the best board one move later."""
    rows, row_bits = _rows(rules.size), 8 * rules.size
    mask = (1 << row_bits) - 1

    def value(after: int) -> float:
        total = 0.0
        for row in rows:
            total += row[after & mask]
            after >>= row_bits
        return total

    empty = [cell for cell, exponent in enumerate(rules.exponents(board)) if not exponent]
    total = 0.0
    for cell in empty:
        total += max(map(value, _slides(rules, rules.place(board, cell, 1)).values()), default=_LOST)
    return total / len(empty)


def _slides(rules: Rules, board: int) -> dict[int, int]:
    """The boards after the legal moves, by action."""
    boards = {action: rules.slide(board, action)[0] for action in range(len(ACTIONS))}
    return {action: after for action, after in boards.items() if after != board}


class _RowValues(dict[int, float]):
    """From a packed row to what it is worth; filled as rows are met."""

    def __init__(self, weights: list[float]) -> None:
        super().__init__()
        self._weights = weights

    def __missing__(self, row: int) -> float:
        tiles = row.to_bytes(len(self._weights), "little")
        self[row] = value = sum(
            weight * (1 << exponent) if exponent else _ROOM
            for weight, exponent in zip(self._weights, tiles, strict=True)
        )
        return value


@cache
def _rows(size: int) -> list[_RowValues]:
    """The values of rows, from the top; the worth of a tile in the bottom row falls to the right."""
    rows = []
    for above in range(size):  # rows from the bottom
        along = [_FALL ** (above * size + place) for place in range(size)]
        rows.append(_RowValues(along if above % 2 == 0 else along[::-1]))
    return rows[::-1]
