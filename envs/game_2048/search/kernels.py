"""Expectimax kernels for 4 x 4 boards, compiled by Numba; equal to the search in ``expectimax.py``.

A board is one 64-bit word with four bits a cell, row by row, so a row is sixteen bits: sliding and valuing
one is looking it up in a table. Up and down are left and right of the transposed board, and since no value
changes when a board is transposed, it is never transposed back. A cell holds an exponent of at most 15, the
tile 32,768; larger ones are searched as if they were that.

The search goes down a stack of its own and not by recursion: Numba 0.68 crashes when it loads functions that
call each other from its cache on disk.
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


class Stack(NamedTuple):
    """The boards between the one that is searched and the one that is looked at, each of shape (depth,)."""

    board: _Words
    """A board on which a tile is to appear."""
    turned: _Words
    """The same transposed."""
    empty: NDArray[np.int64]
    """How many cells of it are empty."""
    chance: NDArray[np.float64]
    """How likely it is."""
    tile: NDArray[np.int64]
    """The tile that appeared: twice the cell, and 1 more if it is a 4."""
    replies: _Words
    """The board with the tile, and the same transposed: shape (depth, 2)."""
    move: NDArray[np.int64]
    """How many of the four moves on it have been looked at."""
    best: NDArray[np.float64]
    """The best value among them."""
    total: NDArray[np.float64]
    """The values of the tiles before it, each times its probability in its cell."""


def new_memory() -> Memory:
    """An empty transposition table."""
    return Memory(
        np.zeros(ENTRIES, np.uint64), np.zeros(ENTRIES, np.int64), np.zeros(ENTRIES), np.zeros(ENTRIES)
    )


def new_stack(depth: int) -> Stack:
    """Room for a search that looks this many moves ahead, or fewer."""
    return Stack(
        board=np.zeros(depth, np.uint64),
        turned=np.zeros(depth, np.uint64),
        empty=np.zeros(depth, np.int64),
        chance=np.zeros(depth),
        tile=np.zeros(depth, np.int64),
        replies=np.zeros((depth, 2), np.uint64),
        move=np.zeros(depth, np.int64),
        best=np.zeros(depth),
        total=np.zeros(depth),
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
    stack: Stack,
    worth: NDArray[np.float64],
) -> None:
    """Write the value of each move into ``worth`` (4,), in the order of ``ACTIONS``; 0 if it is illegal.

    Args:
        board: Four bits a cell.
        depth: Moves to look ahead, at least 1.
        cutoff: A board less likely than this is valued by one more move, however deep the search.
        tables: What is looked up for a row.
        memory: Emptied first, so that a value depends on the arguments before it alone.
        stack: From :func:`new_stack`, for this depth or more.
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
            worth[action] = _expected(after, depth - 1, cutoff, tables, memory, stack)


@compiled
def _expected(board: Any, depth: int, cutoff: float, tables: Tables, memory: Memory, stack: Stack) -> float:
    """What a board is worth on average when a tile is to appear and ``depth`` more moves are looked at."""
    level = 0
    _enter(level, board, 1.0, stack)
    while True:
        if stack.move[level] == 4:
            if _next_tile(level, stack):
                if level + 1 == depth or _reply_chance(level, stack) < cutoff:
                    stack.best[level] = _best_last_move(level, tables, stack)
                    stack.move[level] = 4
                continue
            value: float = stack.total[level] / stack.empty[level]
            _remember(level, depth - level, value, memory, stack)
            if level == 0:
                return value
            level -= 1
            stack.best[level] = max(stack.best[level], value)
            continue
        move = stack.move[level]
        stack.move[level] = move + 1
        before = stack.replies[level, move >> 1]
        after = _slid(before, tables.right if move & 1 else tables.left)
        if after == before:
            continue
        chance = _reply_chance(level, stack)
        place = _place(after)
        known = memory.boards[place] == after and memory.depths[place] == depth - level - 1
        if known and memory.chances[place] >= chance:
            stack.best[level] = max(stack.best[level], memory.values[place])
        else:
            level += 1
            _enter(level, after, chance, stack)


@compiled
def _enter(level: int, board: Any, chance: float, stack: Stack) -> None:
    """Begin with a board on which a tile is to appear."""
    empty = 0
    for cell in range(16):
        empty += (board >> np.uint64(4 * cell)) & _CELL == _ZERO
    stack.board[level] = board
    stack.turned[level] = _transposed(board)
    stack.empty[level] = empty
    stack.chance[level] = chance
    stack.tile[level] = -1
    stack.move[level] = 4
    stack.best[level] = 0.0
    stack.total[level] = 0.0


@compiled
def _next_tile(level: int, stack: Stack) -> bool:
    """Add up the best reply to the tile before and let the next one appear; whether there was one."""
    tile, board = stack.tile[level], stack.board[level]
    stack.total[level] += stack.best[level] * (_P4 if tile & 1 else _P2)
    tile += 1
    while tile < 32 and (board >> np.uint64(4 * (tile >> 1))) & _CELL != _ZERO:
        tile += 2
    if tile >= 32:
        return False
    cell = tile >> 1
    new = _TWO if tile & 1 else _ONE
    stack.replies[level, 0] = board | new << np.uint64(4 * cell)
    stack.replies[level, 1] = stack.turned[level] | new << np.uint64(4 * (cell % 4 * 4 + cell // 4))
    stack.tile[level] = tile
    stack.move[level] = 0
    stack.best[level] = 0.0
    return True


@compiled
def _reply_chance(level: int, stack: Stack) -> float:
    """How likely the board with the tile is."""
    chance: float = stack.chance[level] / stack.empty[level] * (_P4 if stack.tile[level] & 1 else _P2)
    return chance


@compiled
def _best_last_move(level: int, tables: Tables, stack: Stack) -> float:
    """The value of the best move on the board with the tile; 0 if none is legal."""
    best: float = 0.0
    for side in range(2):
        before = stack.replies[level, side]
        for rows in (tables.left, tables.right):
            after = _slid(before, rows)
            if after != before:
                best = max(best, _value(after, tables.values))
    return best


@compiled
def _remember(level: int, depth: int, value: float, memory: Memory, stack: Stack) -> None:
    place = _place(stack.board[level])
    memory.boards[place] = stack.board[level]
    memory.depths[place] = depth
    memory.chances[place] = stack.chance[level]
    memory.values[place] = value


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
