"""A player that keeps its tiles in a snake: falling from the bottom left corner along the rows, to and fro.

It looks one tile and one more move ahead, in Python. It plays far worse than :mod:`expectimax`, to which all
corners are alike; but since it always builds in the same one, what it does is far easier to learn from
examples.
"""

from __future__ import annotations

from functools import cache

from art_gym.envs.game_2048.board import ACTIONS, Rules

_FALL = 0.5  # what a tile is worth in the next cell of the snake
_ROOM = 2.0  # what an empty cell is worth
_LOST = -1e9


def snake_choice(rules: Rules, board: int) -> int:
    """The move after which the snake is expected to be best, once a 2 has appeared and the next move is made.

    Args:
        rules: Of the board's size.
        board: A packed board with a legal move.
    """
    snake = _Snake.of(rules.size)
    best, choice = _LOST * 2, 0
    for action in range(len(ACTIONS)):
        after, _ = rules.slide(board, action)
        if after == board:
            continue
        value = snake.expected(after)
        if value > best:
            best, choice = value, action
    return choice


class _Snake:
    """Values boards of one size, a row at a time."""

    def __init__(self, size: int) -> None:
        self._rules = Rules.of(size)
        self._row_bits = 8 * size
        self._mask = (1 << self._row_bits) - 1
        self._rows = [_RowValues(weights) for weights in _weights(size)]
        self._cells = size * size

    @staticmethod
    @cache
    def of(size: int) -> _Snake:
        return _Snake(size)

    def value(self, board: int) -> float:
        """The tiles, each worth half as much for every cell of the snake before it, and the empty cells."""
        total = 0.0
        for row in self._rows:
            total += row[board & self._mask]
            board >>= self._row_bits
        return total

    def expected(self, board: int) -> float:
        """The mean over the empty cells, a 2 put into each, of the best board one move later."""
        rules = self._rules
        total, empty = 0.0, 0
        for cell, exponent in enumerate(board.to_bytes(self._cells, "little")):
            if exponent:
                continue
            empty += 1
            before = rules.place(board, cell, 1)
            best = _LOST
            for action in range(len(ACTIONS)):
                after, _ = rules.slide(before, action)
                if after != before:
                    value = self.value(after)
                    if value > best:
                        best = value
            total += best
        return total / empty


class _RowValues(dict[int, float]):
    """From a packed row to what it is worth; filled as rows are met."""

    def __init__(self, weights: tuple[float, ...]) -> None:
        super().__init__()
        self._weights = weights

    def __missing__(self, row: int) -> float:
        tiles = row.to_bytes(len(self._weights), "little")
        self[row] = value = sum(
            weight * (1 << exponent) if exponent else _ROOM
            for weight, exponent in zip(self._weights, tiles, strict=True)
        )
        return value


def _weights(size: int) -> list[tuple[float, ...]]:
    """The worth of a tile in each cell, row by row from the top; the bottom row falls to the right."""
    rows = []
    for above in range(size):  # rows from the bottom
        along = [_FALL ** (above * size + place) for place in range(size)]
        rows.append(tuple(along if above % 2 == 0 else along[::-1]))
    return rows[::-1]
