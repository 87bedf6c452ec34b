"""Expectimax: the search that plays 2048 well without having learned anything.

It looks ahead over the moves, of which it takes the best, and over the tiles that may appear, of which it
takes the average, and values the boards it comes to line by line: a line is good when it has room (empty
cells), when tiles can merge, when its tiles rise or fall from one end to the other (monotonicity), when
neighbours are alike (smoothness), and when its tiles are few and large. It stops at a depth, or earlier if a
line of play is too unlikely to matter, and it looks at a board that comes up twice only once. On 4 x 4 boards
Numba compiles the search (``pip install "art-gym[fast]"``); without Numba, and on other boards, the same
search runs in Python, some hundred times slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from art_gym.envs.game_2048.rules.board import ACTIONS, Rules

DEEPEST = 16
"""The most moves that can be looked ahead."""

_COMPILED_SIZE = 4
_EQUAL = 1e-6  # values that differ by less than rounding may make them differ
_UNLIKELY = 0.02  # such positions are looked at one move ahead: so it looks further if few cells are empty
_TILES = ((1, 0.9), (2, 0.1))


# What each property of a line counts; found by playing some thousand games.
_ALIVE = 200_000.0  # added to every line, so that a game that continues is worth more than one that is over
_EMPTY = 760.0  # for each empty cell
_MERGE = 900.0  # for each pair of equal neighbours, empty cells between them left out
_TURN, _TURN_POWER = 38.0, 3.04
"""Taken for a line that is not monotone, times the rises or the falls of ``exponent ** _TURN_POWER``."""
_ROUGH = 25.0  # taken for each unit of difference between neighbouring tiles' exponents
_TILE, _TILE_POWER = 14.6, 3.08
"""Taken for each tile, times ``exponent ** _TILE_POWER``: fewer and larger tiles are better."""


def line_value(line: Sequence[int]) -> float:
    """The value of one row or column, given as exponents; its mirror image has the same."""
    tiles = [exponent for exponent in line if exponent]
    pairs = list(pairwise(tiles))
    powers: list[float] = [exponent**_TURN_POWER for exponent in line]
    steps = [after - before for before, after in pairwise(powers)]
    rises = sum(step for step in steps if step > 0)
    falls = -sum(step for step in steps if step < 0)
    return (
        _ALIVE
        + _EMPTY * (len(line) - len(tiles))
        + _MERGE * sum(one == other for one, other in pairs)
        - _TURN * min(rises, falls)
        - _ROUGH * sum(abs(one - other) for one, other in pairs)
        - _TILE * sum(float(exponent**_TILE_POWER) for exponent in tiles)
    )


@cache
def row_values() -> NDArray[np.float32]:
    """The values of all lines of four cells with exponents up to 15, four bits a cell: shape (65536,)."""
    values = [line_value([row >> shift & 15 for shift in (0, 4, 8, 12)]) for row in range(1 << 16)]
    return np.array(values, np.float32)


class Expectimax:
    """Chooses moves by looking ahead.

    Args:
        depth: How many of its own moves it looks ahead, 1 to 16.

    Raises:
        ValueError: For a depth out of range.
    """

    def __init__(self, depth: int = 8) -> None:
        if not 1 <= depth <= DEEPEST:
            raise ValueError(f"depth must be from 1 to {DEEPEST}, not {depth}")
        self.depth = depth
        self._search: CompiledSearch | PythonSearch | None = None

    def __call__(self, rules: Rules, board: int) -> int:
        """The best action on a board that has a legal one; of equal ones the first in ``ACTIONS``."""
        values = self.values(rules, board)
        enough = max(values) - _EQUAL
        return next(action for action, value in enumerate(values) if value >= enough)

    def values(self, rules: Rules, board: int) -> tuple[float, ...]:
        """What each of ``ACTIONS`` is worth; minus infinity if it is illegal."""
        values = self._searcher(rules).values(board, self.depth)
        return tuple(
            value if legal else -np.inf for value, legal in zip(values, rules.legal(board), strict=True)
        )

    def _searcher(self, rules: Rules) -> CompiledSearch | PythonSearch:
        if self._search is None or self._search.rules is not rules:
            compiled = rules.size == _COMPILED_SIZE and find_spec("numba") is not None
            self._search = (CompiledSearch if compiled else PythonSearch)(rules, _UNLIKELY)
        return self._search


class CompiledSearch:
    """The search on 4 x 4 boards by Numba."""

    def __init__(self, rules: Rules, cutoff: float) -> None:
        from art_gym.envs.game_2048.search import kernels

        self.rules = rules
        self._cutoff = cutoff
        self._kernels = kernels
        self._tables = kernels.Tables(*kernels.slides(), row_values())
        self._memory = kernels.new_memory()
        self._worth = np.zeros(len(ACTIONS))

    def values(self, board: int, depth: int) -> Sequence[float]:
        """What each action is worth; 0 if it is illegal."""
        packed = np.uint64(self._kernels.pack(self.rules.exponents(board)))
        self._kernels.value_moves(packed, depth, self._cutoff, self._tables, self._memory, self._worth)
        worth: list[float] = self._worth.tolist()
        return worth


class PythonSearch:
    """The same search in Python, on boards of any size."""

    def __init__(self, rules: Rules, cutoff: float) -> None:
        self.rules = rules
        self._cutoff = cutoff
        self._known: dict[tuple[int, int], tuple[float, float]] = {}

    def values(self, board: int, depth: int) -> Sequence[float]:
        """What each action is worth; 0 if it is illegal."""
        self._known.clear()
        worth = []
        for action in range(len(ACTIONS)):
            after, _ = self.rules.slide(board, action)
            if after == board:
                worth.append(0.0)
            else:
                worth.append(self._value(after) if depth == 1 else self._expected(after, depth - 1, 1.0))
        return worth

    def _expected(self, board: int, depth: int, chance: float) -> float:
        """What a board is worth on average before a tile appears; ``depth`` more moves are looked at."""
        likelier, value = self._known.get((board, depth), (-1.0, 0.0))
        if likelier >= chance:
            return value
        empty = [cell for cell, exponent in enumerate(self.rules.exponents(board)) if not exponent]
        total = 0.0
        for cell in empty:
            for exponent, probability in _TILES:
                reply = self.rules.place(board, cell, exponent)
                total += probability * self._best_move(reply, depth, chance / len(empty) * probability)
        value = total / len(empty)
        self._known[board, depth] = chance, value
        return value

    def _best_move(self, board: int, depth: int, chance: float) -> float:
        """The value of the best move; 0 if none is legal."""
        best = 0.0
        for action in range(len(ACTIONS)):
            after, _ = self.rules.slide(board, action)
            if after == board:
                continue
            if depth == 1 or chance < self._cutoff:
                best = max(best, self._value(after))
            else:
                best = max(best, self._expected(after, depth - 1, chance))
        return best

    def _value(self, board: int) -> float:
        size, cells = self.rules.size, self.rules.exponents(board)
        rows = sum(_line_value(cells[at : at + size]) for at in range(0, size * size, size))
        return rows + sum(_line_value(cells[at::size]) for at in range(size))


@lru_cache(maxsize=1 << 17)
def _line_value(line: tuple[int, ...]) -> float:
    """As exact as the compiled search's table."""
    return float(np.float32(line_value(line)))
