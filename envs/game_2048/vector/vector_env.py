"""The vector environment of ``art/2048Array-v0``, as ``gym.make_vec`` makes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from art_gym.envs.game_2048 import rendering
from art_gym.envs.game_2048.array_env import Array2048Env, check_render_mode
from art_gym.envs.game_2048.options import GameOptions, split_of
from art_gym.envs.game_2048.vector.batch import GameBatch, batch_rewards
from art_gym.errors import ResetNeededError

_Arrays = NDArray[Any]


class Vector2048Env(gym.vector.VectorEnv[_Arrays, _Arrays, _Arrays]):
    """``num_envs`` games of 2048, each the same as an ``Array2048Env`` of its own would play.

    It gives what Gymnasium's ``SyncVectorEnv`` of as many array environments gives, value by value, in all
    three autoreset modes, only faster: by compiled code if Numba is installed (``pip install
    "art-gym[fast]"``; it compiles once, for some seconds), by NumPy otherwise.

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
        if isinstance(num_envs, bool) or not isinstance(num_envs, int):
            raise TypeError(f"num_envs must be an int, not {num_envs!r}")
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, not {num_envs}")
        check_render_mode(render_mode)
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
