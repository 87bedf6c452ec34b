"""The state of many 2048 games, with their random keys and rewards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from art_gym.envs.game_2048.options import GameOptions
from art_gym.envs.game_2048.rules import rewards
from art_gym.envs.game_2048.rules.tile_rng import SPLITS
from art_gym.envs.game_2048.vector import numpy_engine
from art_gym.envs.game_2048.vector.numpy_engine import Games, Supply

_AHEAD = 32  # words drawn from a generator at a time: one alone costs as much as 300 moves
_SPLITS = {split: np.uint64(number) for number, split in enumerate(SPLITS)}


@cache
def engine() -> ModuleType:
    """The module with ``start_games``, ``advance``, ``observe_all`` and ``BLOCK``: compiled, or in NumPy."""
    try:
        from art_gym.envs.game_2048.vector import numba_engine
    except ModuleNotFoundError as missing:
        if missing.name != "numba":
            raise
        return numpy_engine
    return numba_engine


class GameBatch:
    """Games in play, side by side, each with a generator of its own for the keys of its next games.

    A game's key is the next word of its generator, as ``draw_key`` would draw it. Words are drawn some at a
    time, so a generator is ahead of the keys it has given.

    Args:
        count: How many games.
        size: Cells on a side of each board.
        shared: As in ``TileRng``.
        split: The split of the games that begin by themselves.
    """

    def __init__(self, count: int, size: int, *, shared: bool, split: str) -> None:
        width = min(count, engine().BLOCK)
        self.size = size
        self.shared = shared
        self.split = split
        self.seeds: list[int | None] = [None] * count
        self.games = Games(
            cells=np.zeros((-(-count // width), size, size, width), np.uint8),
            keys=np.zeros(count, np.uint64),
            tiles=np.zeros(count, np.uint64),
            scores=np.zeros(count, np.int64),
            turns=np.zeros(count, np.int64),
        )
        self._generators: dict[int, np.random.Generator] = {}
        self._supply = Supply(np.zeros((count, _AHEAD), np.uint64), np.zeros(count, np.int64))

    def seed(self, places: Iterable[int], seeds: Sequence[int | None]) -> None:
        """Give games new generators: by seed, or by the system's entropy if there is none yet."""
        for place in places:
            seed = seeds[place]
            if seed is not None or place not in self._generators:
                self._generators[place], self.seeds[place] = gym.utils.seeding.np_random(seed)
                self._refill(place)

    def start_games(self, places: NDArray[np.intp], split: str | None = None) -> None:
        """Begin new games in these places, of another split than usual if one is given."""
        number = _SPLITS[self.split if split is None else split]
        if engine().start_games(self.games, places, self._supply, number):
            for place in places[self._supply.used[places] == _AHEAD].tolist():
                self._refill(place)

    def _refill(self, place: int) -> None:
        self._supply.words[place] = self._generators[place].integers(0, 2**64, _AHEAD, dtype=np.uint64)
        self._supply.used[place] = 0

    def advance(
        self, actions: NDArray[np.int64], live: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Make a move in every live game: the points of each, and whether its board changed.

        Raises:
            ValueError: For an action that is not from 0 to 3; nothing has changed then.
        """
        points, moved = np.empty(len(actions)), np.empty(len(actions), np.bool_)
        if not engine().advance(self.games, actions, live, self.shared, points, moved):
            place = int(((actions & ~3) != 0).argmax())
            raise ValueError(f"an action is from 0 (up) to 3 (left), not {actions[place]} (game {place})")
        return points, moved

    def observe_all(self) -> tuple[NDArray[np.uint8], NDArray[np.int8], NDArray[np.bool_]]:
        """How the games stand, in new arrays: exponents (games, cells), masks (games, 4), whether over."""
        count = len(self.games.scores)
        grids = np.empty((count, self.size * self.size), np.uint8)
        masks, over = np.empty((count, 4), np.int8), np.empty(count, np.bool_)
        engine().observe_all(self.games, grids, masks, over)
        return grids, masks, over


def batch_rewards(
    options: GameOptions,
    points: NDArray[np.float64],
    moved: NDArray[np.bool_],
    grids: NDArray[np.uint8],
    ended: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """What each of N games pays for its turn.

    Args:
        options: Which reward, and its figures.
        points: (N,); merged points.
        moved: (N,); whether the move was legal.
        grids: (N, size * size); the exponents after the turn.
        ended: (N,); whether the episode ended with it.

    Returns:
        (N,); may be ``points`` itself.
    """
    penalty = -options.illegal_move_penalty
    if options.reward == "score":
        return np.where(moved, points, penalty) if penalty else points
    if options.reward == "shaped":
        paid = np.zeros(len(points))
        for values in _shaped_terms(points, grids, options.board_size):
            paid += values  # in the order in which single games add them up, so that no bit differs
        return np.where(moved, paid, penalty)
    paid = np.where(moved, 0.0, penalty)
    for game in ended.nonzero()[0].tolist():
        exponents = tuple(grids[game].tolist())
        reached = 1 << max(exponents) >= options.target
        terms = rewards.target_terms(exponents, options.board_size, options.target, reached=reached)
        for value in terms.values():
            paid[game] += value
    return paid


def _shaped_terms(points: NDArray[np.float64], grids: NDArray[np.uint8], size: int) -> list[NDArray[Any]]:
    """``rewards.shaped_terms`` for N legal moves: their points (N,), and the boards after (N, cells)."""
    boards = grids.reshape(-1, size, size).view(np.int8)
    differences = np.zeros(len(boards), np.int64)
    for one, other in ((boards[:, :-1], boards[:, 1:]), (boards[:, :, :-1], boards[:, :, 1:])):
        differences += (np.abs(one - other) * ((one > 0) & (other > 0))).sum((1, 2))
    return [
        rewards.POINTS * points,
        rewards.EMPTY * (grids == 0).sum(1),
        rewards.BEST * grids.max(1),
        rewards.SMOOTH * (-differences / (2 * size * (size - 1))),
    ]
