"""The vector environment of ``art/2048Array-v0``, made by ``gym.make_vec``, and the state of its games."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from art_gym.base import require_choice, require_count
from art_gym.envs.game_2048 import rendering
from art_gym.envs.game_2048.array_env import RENDER_MODES, Array2048Env
from art_gym.envs.game_2048.options import GameOptions, split_of
from art_gym.envs.game_2048.rules import rewards
from art_gym.envs.game_2048.rules.tile_rng import SPLITS
from art_gym.envs.game_2048.vector import engine
from art_gym.envs.game_2048.vector.engine import Games, Supply
from art_gym.errors import ResetNeededError

_Arrays = NDArray[Any]


class Vector2048Env(gym.vector.VectorEnv[_Arrays, _Arrays, _Arrays]):
    """``num_envs`` games of 2048, each the same as an ``Array2048Env`` of its own would play.

    It gives what Gymnasium's ``SyncVectorEnv`` of as many array environments gives, value by value, in all
    three autoreset modes, only faster, by code that Numba compiles once, for some seconds (``pip install
    "art-gym[fast]"``).

    Args:
        num_envs: How many games.
        autoreset_mode: An ``AutoresetMode`` or its value: ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``.
        render_mode: ``"ansi"``, ``"rgb_array"`` or ``None``.
        options: The other arguments of ``Array2048Env``.

    Raises:
        TypeError: For an argument of the wrong type.
        ValueError: For one out of range.
    """

    metadata = Array2048Env.metadata

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        require_count("num_envs", num_envs)
        if render_mode is not None:
            require_choice("render_mode", render_mode, RENDER_MODES)
        self.options = GameOptions.checked(**options)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self.options.observation_space()
        self.single_action_space = gym.spaces.Discrete(4)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._batch = GameBatch(
            num_envs, self.options.board_size, shared=self.options.shared_chance, split=self.options.split
        )
        self._waiting = np.ones(num_envs, np.bool_)  # for their first reset, or since their last game's end
        self._begun = False  # whether every environment was reset once

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as SyncVectorEnv
        """The seed of each game's generator."""
        return tuple(self._batch.seeds)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[_Arrays, dict[str, Any]]:
        """Begin new games.

        Args:
            seed: One seed for the first environment, the next number for the next and so on; or a seed (or
                ``None``) for each.
            options: ``{"reset_mask": array}``, of ``bool`` and shape (num_envs,), resets those alone;
                ``{"split": name}`` chooses the split.

        Returns:
            The observations of all games, and ``info`` about those that were reset.

        Raises:
            TypeError: For a mask of the wrong type.
            ValueError: For seeds or a mask of the wrong length, or an unknown option.
        """
        seeds = _seeds_for(seed, self.num_envs)
        options = dict(options or {})
        mask = _reset_mask(options.pop("reset_mask", None), self.num_envs)
        split = split_of(options, self.options.split)
        games = mask.nonzero()[0]
        self._batch.seed(games.tolist(), seeds)
        self._batch.start_games(games, split)
        self._waiting = self._waiting & ~mask
        self._begun = self._begun or not self._waiting.any()
        grids, masks, _ = self._batch.observe_all()
        infos = self._infos(masks, np.zeros(self.num_envs, np.bool_), mask)
        return self._observations(grids), infos

    def step(self, actions: _Arrays) -> tuple[_Arrays, _Arrays, _Arrays, _Arrays, dict[str, Any]]:
        """Make a move in every game; those that have ended begin anew as the autoreset mode says.

        Args:
            actions: Integers from 0 to 3, of shape (num_envs,).

        Raises:
            ResetNeededError: Before ``reset``; if autoreset is disabled, also for games that have ended.
            TypeError: If the actions are not integers.
            ValueError: If they are of another shape or out of range.
        """
        self._check_running()
        waiting = self._waiting
        moves = _moves_of(actions, self.num_envs)
        batch = self._batch
        points, moved = batch.advance(moves, ~waiting)
        fresh = waiting.nonzero()[0]
        if len(fresh):
            batch.start_games(fresh)
        grids, masks, over = batch.observe_all()
        terminated = over
        if self.options.stop_at_target:
            terminated = over | (moved & (grids.max(1) >= self.options.target.bit_length() - 1))
        truncated = (batch.games.turns >= self.options.max_turns) & ~terminated
        ended = terminated | truncated
        rewards = batch_rewards(self.options, points, moved, grids, ended)
        illegal = ~moved
        if len(fresh):
            rewards[fresh] = 0.0
            illegal[fresh] = False
        infos: dict[str, Any] = {}
        if self.autoreset_mode == AutoresetMode.SAME_STEP and ended.any():
            infos = self._finals(grids, masks, illegal, ended)
            batch.start_games(ended.nonzero()[0])
            grids, masks, _ = batch.observe_all()
            illegal = illegal & ~ended
        elif self.autoreset_mode != AutoresetMode.SAME_STEP:
            self._waiting = ended
        infos |= self._infos(masks, illegal)
        return self._observations(grids), rewards, terminated, truncated, infos

    def render(self) -> tuple[Any, ...] | None:
        """The boards of all games: texts in ``"ansi"`` mode, pictures in ``"rgb_array"`` mode."""
        if self.render_mode not in ("ansi", "rgb_array"):
            return None
        draw = rendering.ansi if self.render_mode == "ansi" else rendering.picture
        grids, size = self._batch.observe_all()[0].tolist(), self.options.board_size
        scores = self._batch.games.scores.tolist()
        return tuple(draw(tuple(grid), size, score) for grid, score in zip(grids, scores, strict=True))

    def _check_running(self) -> None:
        """Refuse a step before ``reset`` and, without autoreset, one in a game that has ended."""
        if not self._begun or (self.autoreset_mode == AutoresetMode.DISABLED and self._waiting.any()):
            games = self._waiting.nonzero()[0].tolist()
            named = ", ".join(map(str, games[:5])) + (", …" if len(games) > 5 else "")
            raise ResetNeededError(f"call reset() first: no episode is running in environments {named}")

    def _observations(self, grids: NDArray[np.uint8]) -> NDArray[np.uint8]:
        size = self.options.board_size
        return self.options.observe(grids.reshape(-1, size, size))

    def _infos(
        self, masks: NDArray[np.int8], illegal: NDArray[np.bool_], present: NDArray[np.bool_] | None = None
    ) -> dict[str, Any]:
        """``info`` about all games, or about those present with zeros for the others, in new arrays."""
        scores = self._batch.games.scores.copy()
        if present is None:
            present = np.ones(self.num_envs, np.bool_)
        else:
            masks, scores, illegal = masks * present[:, np.newaxis], scores * present, illegal & present
        return {
            "action_mask": masks,
            "_action_mask": present.copy(),
            "score": scores,
            "_score": present.copy(),
            "illegal": illegal,
            "_illegal": present,
        }

    def _finals(
        self,
        grids: NDArray[np.uint8],
        masks: NDArray[np.int8],
        illegal: NDArray[np.bool_],
        ended: NDArray[np.bool_],
    ) -> dict[str, Any]:
        """The last observation and ``info`` of the games that ended."""
        final = np.full(self.num_envs, None, dtype=object)
        for game, observation in zip(ended.nonzero()[0], self._observations(grids[ended]), strict=True):
            final[game] = observation
        infos = self._infos(masks, illegal, ended)
        return {
            "final_obs": final,
            "_final_obs": ended.copy(),
            "final_info": infos,
            "_final_info": ended.copy(),
        }


def _seeds_for(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """A seed for each environment: from one number upwards, or as listed."""
    if seed is None:
        return [None] * count
    if isinstance(seed, int | np.integer):
        seeds: list[int | None] = [int(seed) + game for game in range(count)]
    elif isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str):
        seeds = list(seed)
    else:
        raise TypeError(f"seed must be an int, a list of one for each environment or None, not {seed!r}")
    if len(seeds) != count:
        raise ValueError(f"{len(seeds)} seeds for {count} environments: there must be one for each")
    for game, one in enumerate(seeds):
        if one is not None and (isinstance(one, bool) or not isinstance(one, int | np.integer)):
            raise TypeError(f"a seed must be an int or None, not {one!r} (environment {game})")
        if one is not None and one < 0:
            raise ValueError(f"a seed must be 0 or more, not {one} (environment {game})")
    return [None if one is None else int(one) for one in seeds]


def _reset_mask(mask: Any, count: int) -> NDArray[np.bool_]:
    """Which environments to reset: those of the mask, or all if there is none."""
    if mask is None:
        return np.ones(count, np.bool_)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] must be an array of bool, not {mask!r:.80}")
    if mask.shape != (count,):
        raise ValueError(f"options['reset_mask'] must have shape ({count},), not {mask.shape}")
    if not mask.any():
        raise ValueError("options['reset_mask'] must pick at least one environment")
    return mask


def _moves_of(actions: Any, count: int) -> NDArray[np.int64]:
    """The actions of all games as 64-bit integers; the engine checks their range."""
    moves = np.asarray(actions)
    if moves.dtype.kind not in "iu":
        raise TypeError(f"actions must be integers from 0 (up) to 3 (left), not {moves.dtype}")
    if moves.shape != (count,):
        raise ValueError(f"actions must have shape ({count},), one for each game, not {moves.shape}")
    return np.ascontiguousarray(moves, np.int64)


_AHEAD = 32  # words drawn from a generator at a time: one alone costs as much as 300 moves
_SPLITS = {split: np.uint64(number) for number, split in enumerate(SPLITS)}


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
        width = min(count, engine.BLOCK)
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
        if engine.start_games(self.games, places, self._supply, number):
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
        if not engine.advance(self.games, actions, live, self.shared, points, moved):
            place = int(((actions & ~3) != 0).argmax())
            raise ValueError(f"an action is from 0 (up) to 3 (left), not {actions[place]} (game {place})")
        return points, moved

    def observe_all(self) -> tuple[NDArray[np.uint8], NDArray[np.int8], NDArray[np.bool_]]:
        """How the games stand, in new arrays: exponents (games, cells), masks (games, 4), whether over."""
        count = len(self.games.scores)
        grids = np.empty((count, self.size * self.size), np.uint8)
        masks, over = np.empty((count, 4), np.int8), np.empty(count, np.bool_)
        engine.observe_all(self.games, grids, masks, over)
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
