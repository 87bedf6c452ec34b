"""The NumPy engine of many 2048 games: used by the vector environments if Numba is not installed.

The boards of a batch lie cell by cell in one array of bytes, ``cells``, of shape (blocks, size, size, width):
the ``width`` boards of a block side by side, so that one operation does the same to the same cell of all of
them. Here the whole batch is one block; ``numba_engine.py`` does the same with small blocks and compiled
loops, and the tests hold the two equal. The rules are those of ``board.py``, held equal as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from art_gym.envs.game_2048.rules.board import FOUR
from art_gym.envs.game_2048.rules.tile_rng import GAMMA, MIX

BLOCK = 2**62
"""Boards in a block: all of them."""

_Bytes = NDArray[np.uint8]
_Words = NDArray[np.uint64]


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


def advance(
    games: Games,
    actions: NDArray[np.int64],
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
    if (actions & ~3).any():
        return False
    board = games.cells[0]
    sideways, backwards = -(actions & 1).astype(np.int8), -(actions + 1 >> 1 & 1).astype(np.int8)
    turned = _flip(_transpose(board, sideways.view(np.uint8)), backwards.view(np.uint8))
    gained = _slide(turned)
    turned = _transpose(_flip(turned, backwards.view(np.uint8)), sideways.view(np.uint8))
    np.logical_and((turned != board).any((0, 1)), live, out=moved)
    np.multiply(gained, moved, out=points)
    games.scores[:] += gained * moved
    games.turns[:] += live
    np.copyto(board, turned, where=moved)
    keys = games.keys if shared else _fold(board, games.keys)
    draws = _mix(keys + (games.tiles + np.uint64(1)) * np.uint64(GAMMA))
    games.tiles[:] += moved
    _spawn(board.reshape(-1, board.shape[-1]), draws, moved)
    return True


def observe_all(games: Games, grids: _Bytes, masks: NDArray[np.int8], over: NDArray[np.bool_]) -> None:
    """Say how the games stand.

    Args:
        games: N games.
        grids: (N, size * size); filled with each board's exponents, row by row.
        masks: (N, 4); filled with 1 for a legal action, else 0.
        over: (N,); filled with whether no action is legal.
    """
    board = games.cells[0]
    filled = board != 0
    grids[:] = board.reshape(-1, board.shape[-1]).T
    for axis, (back, forth) in ((0, (0, 2)), (1, (3, 1))):
        one, other = (slice(None),) * axis + (slice(-1),), (slice(None),) * axis + (slice(1, None),)
        equal = filled[one] & (board[one] == board[other])
        masks[:, back] = (equal | filled[other] & ~filled[one]).any((0, 1))
        masks[:, forth] = (equal | filled[one] & ~filled[other]).any((0, 1))
    np.logical_not(masks.any(1), out=over)


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
    used = supply.used[places]
    supply.used[places] = used + 1
    keys = supply.words[places, used] & np.uint64(2**64 - 4) | split
    size, width = games.cells.shape[1], games.cells.shape[3]
    fresh = np.zeros((size * size, len(places)), np.uint8)
    every = np.ones(len(places), np.bool_)
    for count in (1, 2):
        _spawn(fresh, _mix(keys + np.uint64(count * GAMMA % 2**64)), every)
    block, at = np.divmod(places, width)
    games.cells[block, :, :, at] = fresh.reshape(size, size, -1).transpose(2, 0, 1)
    games.keys[places], games.tiles[places] = keys, 2
    games.scores[places] = games.turns[places] = 0
    return bool((used + 1 == supply.words.shape[1]).any())


def _transpose(board: _Bytes, chosen: _Bytes) -> _Bytes:
    return board ^ (board ^ board.transpose(1, 0, 2)) & chosen


def _flip(board: _Bytes, chosen: _Bytes) -> _Bytes:
    return board ^ (board ^ board[::-1]) & chosen


def _slide(rows: _Bytes) -> NDArray[np.int64]:
    """Slide every column towards the first row, in place, and return the points of each board."""
    points = np.zeros(rows.shape[-1], np.int64)
    for at in range(len(rows) - 2, -1, -1):  # close the gaps: what lies behind one is closed up already
        _pull(rows[at:], rows[at] == 0)
    for at in range(len(rows) - 1):  # merge from the front, and close the gap at once
        pairs = (rows[at] == rows[at + 1]) & (rows[at] != 0)
        rows[at] += pairs
        points += np.left_shift(pairs, rows[at], dtype=np.int64).sum(0)
        _pull(rows[at + 1 :], pairs)
    return points


def _pull(rows: _Bytes, chosen: NDArray[np.bool_]) -> None:
    """Move the chosen columns up by one: the first row's cell goes, the last row's becomes empty."""
    mask = -chosen.view(np.int8)
    rows[:-1] ^= (rows[:-1] ^ rows[1:]) & mask.view(np.uint8)
    rows[-1] &= ~mask.view(np.uint8)


def _spawn(cells: _Bytes, draws: _Words, chosen: NDArray[np.bool_]) -> None:
    """Put a tile by each draw into the chosen boards of ``cells`` (cells, boards)."""
    gaps = cells == 0
    before = np.cumsum(gaps, axis=0, dtype=np.uint8)
    wanted = (draws >> np.uint64(32)) * before[-1] >> np.uint64(32)
    place = gaps & (before == (wanted + np.uint64(1)).astype(np.uint8)) & chosen
    cells |= place * np.where(draws & np.uint64(2**32 - 1) < FOUR, np.uint8(2), np.uint8(1))


def _fold(board: _Bytes, keys: _Words) -> _Words:
    """Mix the boards into their keys, as ``tile_rng.fold`` does for one."""
    cells = board.reshape(-1, board.shape[-1])
    padded = np.zeros((board.shape[-1], -(-len(cells) // 8) * 8), np.uint8)
    padded[:, : len(cells)] = cells.T
    words = padded.view("<u8")
    last = words.shape[1] - (words[:, ::-1] != 0).argmax(1)
    for at in range(words.shape[1]):
        keys = np.where(at < last, _mix(keys ^ words[:, at]), keys)
    return keys


def _mix(state: _Words) -> _Words:
    state = (state ^ state >> np.uint64(30)) * np.uint64(MIX[0])
    state = (state ^ state >> np.uint64(27)) * np.uint64(MIX[1])
    return state ^ state >> np.uint64(31)
