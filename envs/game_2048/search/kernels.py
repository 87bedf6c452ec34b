"""Expectimax kernels for 4 x 4 boards, compiled by Numba; equal to the search in ``expectimax.py``.

A board is one 64-bit word with four bits a cell, row by row, so a row is sixteen bits: sliding and valuing
one is looking it up in a table. Up and down are left and right of the transposed board, and since no value
changes when a board is transposed, it is never transposed back. A cell holds an exponent of at most 15, the
tile 32,768; larger ones are searched as if they were that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from art_gym.envs.game_2048.compiling import compiled
from art_gym.envs.game_2048.rules.board import merge

_Words = NDArray[np.uint64]
_Rows = NDArray[np.uint16]

ENTRIES = 1 << 13
"""Places in the transposition table."""

# Numba makes a float of a signed and an unsigned integer, so every number that meets a board is unsigned.
_ZERO, _ONE, _TWO, _CELL, _ROW = (np.uint64(number) for number in (0, 1, 2, 0xF, 0xFFFF))
_S12, _S16, _S24, _S32, _S48 = (np.uint64(shift) for shift in (12, 16, 24, 32, 48))
# Transposing swaps cells within each 2 x 2 block, then the blocks.
_CELLS_STAY, _CELLS_UP, _CELLS_DOWN = (
    np.uint64(mask) for mask in (0xF0F00F0FF0F00F0F, 0x0000F0F00000F0F0, 0x0F0F00000F0F0000)
)
_BLOCKS_STAY, _BLOCKS_DOWN, _BLOCKS_UP = (
    np.uint64(mask) for mask in (0xFF00FF0000FF00FF, 0x00FF00FF00000000, 0x00000000FF00FF00)
)
_MULTIPLIER, _HASH_SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(65 - ENTRIES.bit_length())
_P2, _P4 = 0.9, 0.1


class Tables(NamedTuple):
    """What is looked up for a row of four cells, each of shape (65536,)."""

    left: _Rows
    """The row slid to its first cell."""
    right: _Rows
    """The row slid to its last cell."""
    values: NDArray[np.float32]
    """What it is worth."""


class Memory(NamedTuple):
    """A transposition table: what boards were found to be worth, each of shape (ENTRIES,)."""

    boards: _Words
    depths: NDArray[np.int64]
    """Moves that were looked ahead."""
    chances: NDArray[np.float64]
    """How likely the board was; if it is less likely now, its value then will do."""
    values: NDArray[np.float64]


def new_memory() -> Memory:
    """An empty transposition table."""
    return Memory(
        np.zeros(ENTRIES, np.uint64), np.zeros(ENTRIES, np.int64), np.zeros(ENTRIES), np.zeros(ENTRIES)
    )


@cache
def slides() -> tuple[_Rows, _Rows]:
    """Every row slid to its first and to its last cell, four bits a cell: two arrays of shape (65536,).

    Two tiles of 32,768 make one of 32,768, for a cell can hold no more.
    """
    left, right = np.zeros(1 << 16, np.uint16), np.zeros(1 << 16, np.uint16)
    for row in range(1 << 16):
        cells = [row >> shift & 15 for shift in (0, 4, 8, 12)]
        left[row] = pack(merge(cells)[0])
        right[row] = pack(merge(cells[::-1])[0][::-1])
    return left, right


def pack(exponents: Sequence[int]) -> int:
    """Cells as four bits each, the first one lowest; exponents above 15 become 15."""
    return sum(min(exponent, 15) << 4 * cell for cell, exponent in enumerate(exponents))


@compiled
def value_moves(
    board: Any,
    depth: int,
    cutoff: float,
    tables: Tables,
    memory: Memory,
    worth: NDArray[np.float64],
) -> None:
    """Write the value of each move into ``worth`` (4,), in the order of ``ACTIONS``; 0 if it is illegal.

    Args:
        board: Four bits a cell.
        depth: Moves to look ahead, at least 1.
        cutoff: A board less likely than this is valued by one more move, however deep the search.
        tables: What is looked up for a row.
        memory: Emptied first, so that a value depends on the arguments before it alone.
        worth: Where the values go.
    """
    memory.boards[:] = _ZERO
    for action in range(4):
        before = board if action & 1 else _transposed(board)
        after = _slid(before, tables.left if action in (0, 3) else tables.right)
        worth[action] = 0.0
        if after != before and depth == 1:
            worth[action] = _value(after, tables.values)
        elif after != before:
            worth[action] = _expected(after, depth - 1, 1.0, cutoff, tables, memory)


@compiled
def _expected(board: Any, depth: int, chance: float, cutoff: float, tables: Tables, memory: Memory) -> float:
    """What a board is worth on average when a tile is to appear and ``depth`` more moves are looked at.

    The one function that calls itself: Numba 0.68 crashes when it loads functions that call each other from
    its cache on disk.
    """
    place = _place(board)
    known = memory.boards[place] == board and memory.depths[place] == depth
    if known and memory.chances[place] >= chance:
        found: float = memory.values[place]
        return found
    turned, empty, total = _transposed(board), _empty_cells(board), 0.0
    for tile in range(32):  # twice the cell, and 1 more if it is a 4
        cell = tile >> 1
        if (board >> np.uint64(4 * cell)) & _CELL != _ZERO:
            continue
        new, share = (_TWO, _P4) if tile & 1 else (_ONE, _P2)
        reply = board | new << np.uint64(4 * cell)
        reply_turned = turned | new << np.uint64(4 * (cell % 4 * 4 + cell // 4))
        likely, best = chance / empty * share, 0.0
        for move in range(4):
            before = reply_turned if move >> 1 else reply
            after = _slid(before, tables.right if move & 1 else tables.left)
            if after == before:
                continue
            if depth == 1 or likely < cutoff:
                best = max(best, _value(after, tables.values))
            else:
                best = max(best, _expected(after, depth - 1, likely, cutoff, tables, memory))
        total += best * share
    value = total / empty
    memory.boards[place], memory.depths[place] = board, depth
    memory.chances[place], memory.values[place] = chance, value
    return value


@compiled
def _empty_cells(board: Any) -> int:
    empty = 0
    for cell in range(16):
        empty += (board >> np.uint64(4 * cell)) & _CELL == _ZERO
    return empty


@compiled
def _place(board: Any) -> Any:
    return (board * _MULTIPLIER) >> _HASH_SHIFT


@compiled
def _transposed(board: Any) -> Any:
    turned = board & _CELLS_STAY | (board & _CELLS_UP) << _S12 | (board & _CELLS_DOWN) >> _S12
    return turned & _BLOCKS_STAY | (turned & _BLOCKS_DOWN) >> _S24 | (turned & _BLOCKS_UP) << _S24


@compiled
def _slid(board: Any, rows: _Rows) -> Any:
    return (
        np.uint64(rows[board & _ROW])
        | np.uint64(rows[board >> _S16 & _ROW]) << _S16
        | np.uint64(rows[board >> _S32 & _ROW]) << _S32
        | np.uint64(rows[board >> _S48]) << _S48
    )


@compiled
def _value(board: Any, values: NDArray[np.float32]) -> float:
    return _value_of_rows(board, values) + _value_of_rows(_transposed(board), values)


@compiled
def _value_of_rows(board: Any, values: NDArray[np.float32]) -> float:
    return (
        np.float64(values[board & _ROW])
        + np.float64(values[board >> _S16 & _ROW])
        + np.float64(values[board >> _S32 & _ROW])
        + np.float64(values[board >> _S48])
    )
