"""Games of 2048 side by side, with the keys they begin from: what both vector environments run on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from types import ModuleType

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from art_gym.envs.game_2048 import batch
from art_gym.envs.game_2048.batch import Games, Supply
from art_gym.envs.game_2048.splits import SPLITS

_AHEAD = 32  # words drawn from a generator at a time: one alone costs as much as 300 moves
_SPLITS = {split: np.uint64(number) for number, split in enumerate(SPLITS)}


@cache
def engine() -> ModuleType:
    """The quickest module with ``deal``, ``advance``, ``survey`` and ``BLOCK``: compiled, else NumPy's."""
    try:
        from art_gym.envs.game_2048 import kernels
    except ModuleNotFoundError as missing:
        if missing.name != "numba":
            raise
        return batch
    return kernels


class Fleet:
    """Games in play, side by side, each with a generator of its own for the keys of its next games.

    A game's key is the next word of its generator, as ``draw_key`` would draw it. Words are drawn some at a
    time, so a generator is ahead of the keys it has given.

    Args:
        count: How many games.
        size: Cells on a side of each board.
        shared: As in ``Chance``.
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
        """Give games new generators: by seed, or by the system's entropy where there is none yet."""
        for place in places:
            seed = seeds[place]
            if seed is not None or place not in self._generators:
                self._generators[place], self.seeds[place] = gym.utils.seeding.np_random(seed)
                self._refill(place)

    def deal(self, places: NDArray[np.intp], split: str | None = None) -> None:
        """Begin new games in these places, of another split than usual where one is given."""
        number = _SPLITS[self.split if split is None else split]
        if engine().deal(self.games, places, self._supply, number):
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

    def put(self, place: int, exponents: Sequence[int], tiles: int) -> None:
        """Lay out a board by hand, as it stands after so many tiles have appeared."""
        width = self.games.cells.shape[3]
        cells = np.array(exponents, np.uint8).reshape(self.size, self.size)
        self.games.cells[place // width, :, :, place % width] = cells
        self.games.tiles[place] = tiles

    def survey(self) -> tuple[NDArray[np.uint8], NDArray[np.int8], NDArray[np.bool_]]:
        """How the games stand, in new arrays: exponents (games, cells), masks (games, 4), whether over."""
        count = len(self.games.scores)
        grids = np.empty((count, self.size * self.size), np.uint8)
        masks, over = np.empty((count, 4), np.int8), np.empty(count, np.bool_)
        engine().survey(self.games, grids, masks, over)
        return grids, masks, over
