"""``art/2048Array-v0`` many times over: the vector environment that ``gym.make_vec`` gives."""

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
from art_gym.envs.game_2048.batch_rewards import batch_rewards
from art_gym.envs.game_2048.board import ACTIONS
from art_gym.envs.game_2048.fleet import Fleet
from art_gym.envs.game_2048.options import GameOptions, split_of
from art_gym.envs.game_2048.vector_arguments import (
    autoreset_of,
    check_count,
    moves_of,
    reset_mask,
    seeds_for,
    shown,
)
from art_gym.errors import ResetNeeded

_Arrays = NDArray[Any]


class Vector2048Env(gym.vector.VectorEnv[_Arrays, _Arrays, _Arrays]):
    """``num_envs`` games of 2048, each the same as an ``Array2048Env`` of its own would play.

    It gives what Gymnasium's ``SyncVectorEnv`` of as many array environments gives, value by value, in all
    three autoreset modes, only faster: by compiled code where Numba is installed (``pip install
    "art-gym[fast]"``; it compiles once, for some seconds), by NumPy otherwise.

    Args:
        num_envs: How many games.
        autoreset_mode: An ``AutoresetMode`` or its value: ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``.
        board_size: As in ``Array2048Env``, and so all that follow.
        observation: See there.
        reward: See there.
        target: See there.
        stop_at_target: See there.
        illegal_move_penalty: See there.
        shared_chance: See there.
        split: See there.
        max_turns: See there.
        render_mode: ``"ansi"``, ``"rgb_array"`` or ``None``.

    Raises:
        TypeError: For an argument of the wrong type.
        ValueError: For one out of range.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        board_size: int = 4,
        observation: str = "exponents",
        reward: str = "score",
        target: int | None = None,
        stop_at_target: bool | None = None,
        illegal_move_penalty: float | None = None,
        shared_chance: bool = True,
        split: str = "train",
        max_turns: int = 10_000,
        render_mode: str | None = None,
    ) -> None:
        check_count(num_envs)
        self.options = GameOptions.checked(
            board_size=board_size,
            observation=observation,
            reward=reward,
            target=target,
            stop_at_target=stop_at_target,
            illegal_move_penalty=illegal_move_penalty,
            shared_chance=shared_chance,
            split=split,
            max_turns=max_turns,
        )
        check_render_mode(render_mode)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.autoreset_mode = autoreset_of(autoreset_mode)
        self.metadata = {**Array2048Env.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self.options.observation_space()
        self.single_action_space = gym.spaces.Discrete(len(ACTIONS))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._fleet = Fleet(num_envs, board_size, shared=shared_chance, split=split)
        self._waiting = np.ones(num_envs, np.bool_)  # for their first reset, or since their last game's end
        self._begun = False  # whether every environment was reset once

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as SyncVectorEnv
        """The seed of each game's generator."""
        return tuple(self._fleet.seeds)

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
        seeds = seeds_for(seed, self.num_envs)
        options = dict(options or {})
        mask = reset_mask(options.pop("reset_mask", None), self.num_envs)
        split = split_of(options, self.options.split)
        games = mask.nonzero()[0]
        self._fleet.seed(games.tolist(), seeds)
        self._fleet.deal(games, split)
        self._waiting = self._waiting & ~mask
        self._begun = self._begun or not self._waiting.any()
        grids, masks, _ = self._fleet.survey()
        infos = self._infos(masks, np.zeros(self.num_envs, np.bool_), mask)
        return self._observations(grids), infos

    def step(self, actions: _Arrays) -> tuple[_Arrays, _Arrays, _Arrays, _Arrays, dict[str, Any]]:
        """Make a move in every game; those that have ended begin anew as the autoreset mode says.

        Args:
            actions: Integers from 0 to 3, of shape (num_envs,).

        Raises:
            ResetNeeded: Before ``reset``; where autoreset is disabled, also for games that have ended.
            TypeError: Where the actions are not integers.
            ValueError: Where they are of another shape or out of range.
        """
        waiting = self._waiting
        if not self._begun or (self.autoreset_mode == AutoresetMode.DISABLED and waiting.any()):
            games = waiting.nonzero()[0].tolist()
            raise ResetNeeded(f"call reset() first: no episode is running in environments {shown(games)}")
        moves = moves_of(actions, self.num_envs)
        fleet = self._fleet
        points, moved = fleet.advance(moves, ~waiting)
        fresh = waiting.nonzero()[0]
        if len(fresh):
            fleet.deal(fresh)
        grids, masks, over = fleet.survey()
        terminated = over
        if self.options.stop_at_target:
            terminated = over | (moved & (grids.max(1) >= self.options.target.bit_length() - 1))
        truncated = (fleet.games.turns >= self.options.max_turns) & ~terminated
        ended = terminated | truncated
        rewards = batch_rewards(self.options, points, moved, grids, ended)
        illegal = ~moved
        if len(fresh):
            rewards[fresh] = 0.0
            illegal[fresh] = False
        infos: dict[str, Any] = {}
        if self.autoreset_mode == AutoresetMode.SAME_STEP and ended.any():
            infos = self._finals(grids, masks, illegal, ended)
            fleet.deal(ended.nonzero()[0])
            grids, masks, _ = fleet.survey()
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
        grids, size = self._fleet.survey()[0].tolist(), self.options.board_size
        scores = self._fleet.games.scores.tolist()
        return tuple(draw(tuple(grid), size, score) for grid, score in zip(grids, scores, strict=True))

    def _observations(self, grids: NDArray[np.uint8]) -> NDArray[np.uint8]:
        size = self.options.board_size
        return self.options.observe(grids.reshape(-1, size, size))

    def _infos(
        self, masks: NDArray[np.int8], illegal: NDArray[np.bool_], present: NDArray[np.bool_] | None = None
    ) -> dict[str, Any]:
        """``info`` about all games, or about those present with zeros for the others, in new arrays."""
        scores = self._fleet.games.scores.copy()
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
