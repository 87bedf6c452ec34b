"""The engine of many 2048 games: loops that Numba turns into SIMD code.

The rules are those of ``rules/board.py``; the tests hold the games equal to single ones.

The boards lie in blocks, cell by cell: one row of bytes for the top left cells of all boards in the block,
one for the cells beside them, and so on. An instruction on 64 bytes then works on the same cell of 64 boards,
whatever their moves: each move is first turned into "towards the first row" by choosing between the board
and its mirror images with bit masks, and turned back in the same way. Nothing branches on what a board holds.
``benchmarks/bench_2048.py`` counts the operations and bytes of a move, and measures how near this comes to
the most that the core could do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from art_gym.envs.game_2048.compiling import compiled
from art_gym.envs.game_2048.rules.board import FOUR
from art_gym.envs.game_2048.rules.tile_rng import GAMMA, MIX

_Bytes = NDArray[np.uint8]
_Words = NDArray[np.uint64]
_Counts = NDArray[np.int64]

BLOCK = 4096
"""Boards in a block: few enough for the second-level cache, enough to make the cost of a call small."""

# Numba makes a float of a signed and an unsigned integer, so every number that meets a 64-bit word is one.
_GAMMA, _MIX0, _MIX1 = np.uint64(GAMMA), np.uint64(MIX[0]), np.uint64(MIX[1])
_B8, _B16, _B24 = np.uint32(8), np.uint32(16), np.uint32(24)
_S8, _S27, _S30, _S31, _S32 = (np.uint64(shift) for shift in (8, 27, 30, 31, 32))
_LOW, _FOUR, _ZERO, _ONE = np.uint64(2**32 - 1), np.uint64(FOUR), np.uint64(0), np.uint64(1)
_NO_SPLIT = np.uint64(2**64 - 4)
_ALL, _NONE = np.uint8(255), np.uint8(0)


class Games(NamedTuple):
    """N games in play."""

    cells: _Bytes
    """(blocks, size, size, width): the boards, cell by cell."""
    keys: _Words
    """(N,): each game's key; see ``TileRng``."""
    tiles: _Words
    """(N,): how many tiles have appeared in it."""
    scores: NDArray[np.int64]
    """(N,): points so far."""
    turns: NDArray[np.int64]
    """(N,): actions so far."""


class Supply(NamedTuple):
    """Random words, W for each of N places, to make the keys of the games to come of."""

    words: _Words
    """(N, W)."""
    used: NDArray[np.int64]
    """(N,): how many of a place's words are used up."""


@compiled
def _mix(state: Any) -> Any:
    state = (state ^ (state >> _S30)) * _MIX0
    state = (state ^ (state >> _S27)) * _MIX1
    return state ^ (state >> _S31)


@compiled
def _swap(one: _Bytes, other: _Bytes, chosen: _Bytes) -> None:
    for i in range(len(chosen)):
        difference = (one[i] ^ other[i]) & chosen[i]
        one[i] ^= difference
        other[i] ^= difference


@compiled
def _transpose(board: _Bytes, chosen: _Bytes) -> None:
    for row in range(len(board)):
        for column in range(row):
            _swap(board[row, column], board[column, row], chosen)


@compiled
def _flip(board: _Bytes, chosen: _Bytes) -> None:
    for row in range(len(board) // 2):
        for column in range(len(board)):
            _swap(board[row, column], board[len(board) - 1 - row, column], chosen)


@compiled
def _replace(cells: _Bytes, others: _Bytes, live: _Bytes, change: _Bytes) -> None:
    """Take the other cells over into the live boards; ``change`` is 255 if that changes one, else 0."""
    change[:] = 0
    for at in range(len(cells)):
        into, other = cells[at], others[at]
        for i in range(len(change)):
            difference = (into[i] ^ other[i]) & live[i]
            into[i] ^= difference
            change[i] |= difference
    for i in range(len(change)):
        change[i] = _ALL if change[i] else _NONE


@compiled
def _slide(rows: _Bytes, gained: _Counts, chosen: _Bytes) -> None:
    """Slide every column of ``rows`` (size, columns) towards its first row, and sum up the points of each."""
    size = len(rows)
    gained[:] = 0
    for at in range(size - 2, -1, -1):  # close the gaps: what lies behind one is closed up already
        _find_gaps(rows[at], chosen)
        for row in range(at, size - 1):
            _pull(rows[row], rows[row + 1], chosen)
        _clear(rows[size - 1], chosen)
    for at in range(size - 1):  # merge from the front, and close the gap at once
        _find_pairs(rows[at], rows[at + 1], chosen)
        _merge(rows[at], chosen, gained)
        for row in range(at + 1, size - 1):
            _pull(rows[row], rows[row + 1], chosen)
        _clear(rows[size - 1], chosen)


@compiled
def _find_gaps(here: _Bytes, chosen: _Bytes) -> None:
    for i in range(len(chosen)):
        chosen[i] = _NONE if here[i] else _ALL


@compiled
def _find_pairs(here: _Bytes, behind: _Bytes, chosen: _Bytes) -> None:
    for i in range(len(chosen)):
        chosen[i] = _ALL if (here[i] == behind[i]) & (here[i] != 0) else _NONE


@compiled
def _merge(here: _Bytes, chosen: _Bytes, gained: _Counts) -> None:
    width = len(gained)
    for i in range(len(chosen)):
        here[i] += chosen[i] & 1
    for start in range(0, len(chosen), width):
        merged, pair = here[start : start + width], chosen[start : start + width]
        for i in range(width):
            gained[i] += (1 << np.int64(merged[i])) if pair[i] else 0


@compiled
def _clear(here: _Bytes, chosen: _Bytes) -> None:
    for i in range(len(chosen)):
        here[i] &= ~chosen[i]


@compiled
def _pull(here: _Bytes, behind: _Bytes, chosen: _Bytes) -> None:
    for i in range(len(chosen)):
        here[i] ^= (here[i] ^ behind[i]) & chosen[i]


@compiled
def _fold(board: _Bytes, keys: _Words) -> None:
    """Mix the boards into their keys, as ``tile_rng.fold`` does for one."""
    cells = board.reshape(-1, board.shape[2])
    for i in range(len(keys)):
        filled = len(cells)
        while filled and not cells[filled - 1, i]:
            filled -= 1
        for start in range(0, filled, 8):
            word = _ZERO
            for cell in range(min(start + 8, len(cells)) - 1, start - 1, -1):
                word = (word << _S8) | np.uint64(cells[cell, i])
            keys[i] = _mix(keys[i] ^ word)


@compiled
def _spawn(board: _Bytes, draws: _Words, chosen: _Bytes, wanted: _Bytes) -> None:
    """Put a tile by each draw into the chosen boards (255; else 0)."""
    cells = board.reshape(-1, board.shape[2])
    gaps = np.zeros(len(chosen), np.uint8)
    for cell in cells:
        for i in range(len(chosen)):
            gaps[i] += np.uint8(cell[i] == 0)
    for i in range(len(chosen)):
        # The gaps before the wanted one; 255, which no board has, if no tile is to come.
        wanted[i] = np.uint8(((draws[i] >> _S32) * np.uint64(gaps[i])) >> _S32) | ~chosen[i]
        gaps[i] = np.uint8(2) if (draws[i] & _LOW) < _FOUR else np.uint8(1)
    for cell in cells:
        for i in range(len(chosen)):
            gap = np.uint8(cell[i] == 0)
            cell[i] |= gaps[i] if (gap != 0) & (wanted[i] == 0) else _NONE
            wanted[i] -= gap if wanted[i] != _ALL else _NONE


@compiled
def advance(
    games: Games,
    actions: _Counts,
    live: NDArray[np.bool_],
    shared: bool,
    points: NDArray[np.float64],
    moved: NDArray[np.bool_],
) -> bool:
    """Make a move in every live game, new tile included. All arrays have shape (N,).

    Args:
        games: Changed in place.
        actions: Indices into ``ACTIONS``.
        live: The games that take their action; the others stay as they are.
        shared: As in ``TileRng``.
        points: Filled with the merged points.
        moved: Filled with whether the move changed the board.

    Returns:
        Whether all actions are from 0 to 3; if not, nothing was changed.
    """
    seen = 0
    for i in range(len(actions)):
        seen |= actions[i]
    if seen & ~3:
        return False
    cells, keys, tiles = games.cells, games.keys, games.tiles
    blocks, size, _, width = cells.shape
    turned = np.empty((size, size, width), np.uint8)
    flat, rows = turned.reshape(-1), turned.reshape(size, size * width)
    gained = np.empty(width, np.int64)
    chosen = np.empty(size * width, np.uint8)
    sideways, backwards = np.zeros(width, np.uint8), np.zeros(width, np.uint8)
    alive, change = np.zeros(width, np.uint8), np.zeros(width, np.uint8)
    draws = np.zeros(width, np.uint64)
    for block in range(blocks):
        board, first = cells[block], block * width
        part = slice(first, min(first + width, len(actions)))
        _aim(actions[part], live[part], sideways, backwards, alive)
        flat[:] = board.reshape(-1)
        _transpose(turned, sideways)
        _flip(turned, backwards)
        _slide(rows, gained, chosen)
        _flip(turned, backwards)
        _transpose(turned, sideways)
        _replace(board.reshape(-1, width), turned.reshape(-1, width), alive, change)
        _pay(gained, change, points[part], moved[part], games.scores[part])
        games.turns[part] += live[part]
        draws[: len(keys[part])] = keys[part]
        if not shared:
            _fold(board, draws)
        _draw(draws, tiles[part], change)
        _spawn(board, draws, change, chosen[:width])
    return True


@compiled
def _aim(
    actions: _Counts, live: NDArray[np.bool_], sideways: _Bytes, backwards: _Bytes, alive: _Bytes
) -> None:
    """Masks of the boards whose tiles move along rows, against the order of the cells, and at all."""
    for i in range(len(actions)):
        sideways[i] = _ALL if actions[i] & 1 else _NONE
    for i in range(len(actions)):
        backwards[i] = _ALL if (actions[i] + 1) & 2 else _NONE
    for i in range(len(actions)):
        alive[i] = _ALL if live[i] else _NONE
    alive[len(actions) :] = 0


@compiled
def _pay(
    gained: _Counts, change: _Bytes, points: NDArray[np.float64], moved: NDArray[np.bool_], scores: _Counts
) -> None:
    for i in range(len(points)):
        gained[i] = gained[i] if change[i] else 0
    for i in range(len(points)):
        points[i] = np.float64(gained[i])
    for i in range(len(points)):
        scores[i] += gained[i]
    for i in range(len(moved)):
        moved[i] = change[i] != 0


@compiled
def _draw(draws: _Words, tiles: _Words, change: _Bytes) -> None:
    """Turn the boards' keys into the bits for their next tile, and count the tiles that come."""
    for i in range(len(tiles)):
        draws[i] = _mix(draws[i] + (tiles[i] + _ONE) * _GAMMA)
    for i in range(len(tiles)):
        tiles[i] += np.uint64(change[i] & 1)


@compiled
def start_games(games: Games, places: NDArray[np.intp], supply: Supply, split: np.uint64) -> bool:
    """Begin new games, each with the opening's two tiles.

    Args:
        games: Changed in place.
        places: (M,): which games to begin anew, by number; none twice.
        supply: Where their keys come from: each of these places has at least one word left, and uses it.
        split: What the two lowest bits of the keys are to be; see ``rules/tile_rng.py``.

    Returns:
        Whether one of these places has no word left.
    """
    _, size, _, width = games.cells.shape
    spent = False
    for place in places:
        key = supply.words[place, supply.used[place]] & _NO_SPLIT | split
        supply.used[place] += 1
        spent |= supply.used[place] == supply.words.shape[1]
        board, at = games.cells[place // width], place % width
        board[:, :, at] = 0
        taken = size * size  # the first tile's cell; none yet
        for count in range(2):
            draw = _mix(key + np.uint64(count + 1) * _GAMMA)
            cell = np.int64(((draw >> _S32) * np.uint64(size * size - count)) >> _S32)
            if cell >= taken:
                cell += 1
            board[cell // size, cell % size, at] = 2 if (draw & _LOW) < _FOUR else 1
            taken = cell
        games.keys[place], games.tiles[place] = key, 2
        games.scores[place] = games.turns[place] = 0
    return spent


@compiled
def observe_all(games: Games, grids: _Bytes, masks: NDArray[np.int8], over: NDArray[np.bool_]) -> None:
    """Say how the games stand.

    Args:
        games: N games.
        grids: (N, size * size); filled with each board's exponents, row by row.
        masks: (N, 4); filled with 1 for a legal action, else 0.
        over: (N,); filled with whether no action is legal.
    """
    cells = games.cells
    blocks, size, _, width = cells.shape
    legal = np.empty((4, width), np.uint8)
    for block in range(blocks):
        board, first = cells[block], block * width
        part = slice(first, min(first + width, len(over)))
        legal[:] = 0
        for row in range(size):
            for column in range(size - 1):
                _compare(board[row, column], board[row, column + 1], legal[3], legal[1])
                _compare(board[column, row], board[column + 1, row], legal[0], legal[2])
        _write(board.reshape(-1, width), grids[part])
        _write(legal, masks[part].view(np.uint8))
        ended = over[part]
        for i in range(len(ended)):
            ended[i] = (legal[0, i] | legal[1, i] | legal[2, i] | legal[3, i]) == 0


@compiled
def _compare(one: _Bytes, other: _Bytes, back: _Bytes, forth: _Bytes) -> None:
    """Note in which boards two neighbours allow a move from the other to the one, and forth."""
    for i in range(len(one)):
        equal = (one[i] == other[i]) & (one[i] != 0)
        back[i] |= np.uint8(equal | ((one[i] == 0) & (other[i] != 0)))
        forth[i] |= np.uint8(equal | ((one[i] != 0) & (other[i] == 0)))


@compiled
def _write(cells: _Bytes, grids: _Bytes) -> None:
    """Write the boards that lie cell by cell (cells, boards) out one by one (boards, cells)."""
    if len(cells) % 4:
        for i in range(len(grids)):
            for cell in range(len(cells)):
                grids[i, cell] = cells[cell, i]
        return
    words = grids.view(np.uint32)
    four = np.empty(len(grids), np.uint32)
    for at in range(len(cells) // 4):
        _join(cells[4 * at], cells[4 * at + 1], cells[4 * at + 2], cells[4 * at + 3], four)
        for i in range(len(four)):
            words[i, at] = four[i]


@compiled
def _join(first: _Bytes, second: _Bytes, third: _Bytes, fourth: _Bytes, four: NDArray[np.uint32]) -> None:
    """Four cells of each board side by side in one word: whole words are written out faster than bytes."""
    for i in range(len(four)):
        low = np.uint32(first[i]) | (np.uint32(second[i]) << _B8)
        four[i] = low | (np.uint32(third[i]) << _B16) | (np.uint32(fourth[i]) << _B24)
