"""``art/2048-v0`` many times over: the vector environment that ``gym.make_vec`` gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from art_gym.envs.game_2048.batch_rewards import shaped_terms
from art_gym.envs.game_2048.board import ACTIONS
from art_gym.envs.game_2048.chance import Chance
from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.fleet import Fleet
from art_gym.envs.game_2048.vector_arguments import (
    autoreset_of,
    check_count,
    replies_of,
    reset_mask,
    seeds_for,
    shown,
)
from art_gym.envs.game_2048.words import observation
from art_gym.errors import ResetNeeded
from art_gym.parser import Call, parse
from art_gym.tasks import Task

_NUMBERS = {name: number for number, name in enumerate(ACTIONS)}
_FEW_LEFT = 2  # turns: from here on a TextEnv counts them in words
_Step = tuple[tuple[str, ...], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]


class _Before(NamedTuple):
    """How the games stood before a turn."""

    grids: NDArray[np.uint8]
    masks: NDArray[np.int8]
    scores: NDArray[np.int64]
    tiles: NDArray[np.uint64]
    counts: NDArray[np.int64]


class TextVector2048Env(gym.vector.VectorEnv[tuple[str, ...], Sequence[str], NDArray[Any]]):
    """``num_envs`` games of 2048 in words, each the same as a ``Game2048Env`` of its own would play.

    It gives what Gymnasium's ``SyncVectorEnv`` of as many text environments gives, in all three autoreset
    modes, only faster. All games move at once, on the engine of ``Vector2048Env``. A legal move in the middle
    of a game, which is nearly every turn, is put into words here; anything else (an illegal move, a reply
    that is no move, the last turns of a game) is told by a ``Game2048Env`` set to the state of that game.

    Args:
        num_envs: How many games.
        autoreset_mode: An ``AutoresetMode`` or its value: ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``.
        render_mode: Always ``None``: a batch of texts is its own picture.
        kwargs: The arguments of ``Game2048Env``.

    Raises:
        TypeError: For an argument of the wrong type.
        ValueError: For one out of range.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: None = None,
        **kwargs: Any,
    ) -> None:
        check_count(num_envs)
        if render_mode is not None:
            raise ValueError(f"many games in words have no render_mode, so it cannot be `{render_mode}`")
        self._teller = Game2048Env(**kwargs)
        self.options = self._teller.options
        self.num_envs = num_envs
        self.autoreset_mode = autoreset_of(autoreset_mode)
        self.metadata = {**Game2048Env.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self._teller.observation_space
        self.single_action_space = self._teller.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        options = self.options
        self._fleet = Fleet(num_envs, options.board_size, shared=options.shared_chance, split=options.split)
        self._task_ids = np.full(num_envs, None, object)
        self._counts = np.zeros((4, num_envs), np.int64)  # turns, moves, illegal moves, invalid actions
        self._grids, self._masks, _ = self._fleet.survey()
        self._texts = [""] * num_envs
        self._waiting = np.ones(num_envs, np.bool_)  # for their first reset, or since their last game's end
        self._begun = False  # whether every environment was reset once

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as SyncVectorEnv
        """The seed of each game's generator."""
        return tuple(self._fleet.seeds)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Begin new games.

        Args:
            seed: One seed for the first environment, the next number for the next and so on; or a seed (or
                ``None``) for each.
            options: ``{"reset_mask": array}``, of ``bool`` and shape (num_envs,), resets those alone; any
                other is one of ``Game2048Env``.

        Returns:
            The observations of all games, and ``info`` about those that were reset.

        Raises:
            TypeError: For a mask of the wrong type.
            ValueError: For seeds or a mask of the wrong length, or an unknown option.
        """
        seeds = seeds_for(seed, self.num_envs)
        options = dict(options or {})
        mask = reset_mask(options.pop("reset_mask", None), self.num_envs)
        task = self._teller._choose_task(options)
        games = mask.nonzero()[0]
        self._fleet.seed(games.tolist(), seeds)
        infos = self._deal(games, task, {})
        self._waiting = self._waiting & ~mask
        self._begun = self._begun or not self._waiting.any()
        return tuple(self._texts), infos

    def step(self, actions: Sequence[str]) -> _Step:
        """Take a whole reply in every game; games that have ended begin anew as the autoreset mode says.

        Args:
            actions: ``num_envs`` replies.

        Raises:
            ResetNeeded: Before ``reset``; where autoreset is disabled, also for games that have ended.
            TypeError: Where the replies are not ``str``.
            ValueError: Where they are not one for each game.
        """
        waiting = self._waiting
        if not self._begun or (self.autoreset_mode == AutoresetMode.DISABLED and waiting.any()):
            games = waiting.nonzero()[0].tolist()
            raise ResetNeeded(f"call reset() first: no episode is running in environments {shown(games)}")
        replies = replies_of(actions, self.num_envs)
        calls = [parse(reply, self._teller.tools) for reply in replies]
        is_move = np.array([isinstance(call, Call) for call in calls])
        plain = np.array([isinstance(call, Call) and not call.extra_calls for call in calls])
        moves = np.array(
            [_NUMBERS[call.arguments["direction"]] if isinstance(call, Call) else 0 for call in calls]
        )
        scores, tiles = self._fleet.games.scores.copy(), self._fleet.games.tiles.copy()
        before = _Before(self._grids, self._masks, scores, tiles, self._counts.copy())
        points, moved = self._fleet.advance(moves, is_move & ~waiting)
        live = ~waiting
        self._counts += np.stack([live, moved, is_move & live & ~moved, ~is_move & live])
        self._grids, self._masks, over = self._fleet.survey()
        usual = moved & plain & ~over & (self._counts[0] < self.options.max_turns - _FEW_LEFT)
        if self.options.stop_at_target:
            usual &= self._grids.max(1) < self.options.target.bit_length() - 1
        rewards, infos = self._tell(usual, moves, points)
        others = (~usual & ~waiting).nonzero()[0]
        return self._finish([(game, replies[game]) for game in others.tolist()], before, rewards, infos)

    def _tell(
        self, usual: NDArray[np.bool_], moves: NDArray[np.int64], points: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Put the usual turns into words; the rewards of these games, and ``info`` about them."""
        rewards, games = np.zeros(self.num_envs), usual.nonzero()[0]
        if not len(games):
            return rewards, {}
        self._put_into_words(games)
        terms: dict[str, NDArray[np.float64]] = {}
        if self.options.reward == "score":
            terms = {"points": points[games]}
        elif self.options.reward == "shaped":
            terms = shaped_terms(points[games], self._grids[games], self.options.board_size)
        if terms:
            columns = zip(*(values.tolist() for values in terms.values()), strict=True)
            rewards[games] = [sum(values, 0.0) for values in columns]
        spread = {name: np.zeros(self.num_envs) for name in terms}
        for name, values in terms.items():
            spread[name][games] = values
        arguments = {"direction": _objects(_WORDS[moves[games]], usual)}
        call = {"name": _objects("move", usual), "arguments": _masked(arguments, usual)}
        infos = {
            "task_id": _objects(self._task_ids[games], usual),
            "turn": self._counts[0] * usual,
            "call": _masked(call, usual),
            "score_terms": _masked(spread, usual),
        }
        return rewards, _masked(infos, usual)

    def _finish(
        self,
        others: list[tuple[int, str]],
        before: _Before,
        rewards: NDArray[np.float64],
        infos: dict[str, Any],
    ) -> _Step:
        """Have the other turns told, and begin the games anew that are to begin: the step's results."""
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        ended: list[int] = []
        for game, reply in others:
            self._remind(game, before)
            self._texts[game], rewards[game], terminated[game], truncated[game], info = self._teller.step(
                reply
            )
            if self.autoreset_mode == AutoresetMode.SAME_STEP and (terminated[game] or truncated[game]):
                last = {"final_obs": self._texts[game], "final_info": info}
                infos = self._add_info(infos, last, game)
                ended.append(game)
            else:
                infos = self._add_info(infos, info, game)
        if self.autoreset_mode == AutoresetMode.NEXT_STEP:
            ended = self._waiting.nonzero()[0].tolist()
        if ended:
            infos = self._deal(np.array(ended), self._teller._choose_task({}), infos)
        if self.autoreset_mode != AutoresetMode.SAME_STEP:
            self._waiting = terminated | truncated
        return tuple(self._texts), rewards, terminated, truncated, infos

    def _remind(self, game: int, before: _Before) -> None:
        """Set the telling environment to the state of a game before this turn."""
        teller, options = self._teller, self.options
        teller.board = teller.rules.pack(before.grids[game].tolist())
        teller.legal = tuple((before.masks[game] > 0).tolist())
        teller.score, teller._tiles = int(before.scores[game]), int(before.tiles[game])
        teller.turn, teller.moves, teller.illegal_moves, teller._invalid_actions = before.counts[
            :, game
        ].tolist()
        teller._chance = Chance(int(self._fleet.games.keys[game]), options.shared_chance)
        teller.task = teller.tasks.get(self._task_ids[game])
        teller._running = True

    def _deal(self, games: NDArray[np.intp], task: Task, infos: dict[str, Any]) -> dict[str, Any]:
        """Begin new games in these places and add to ``infos`` what ``reset`` says."""
        teller, fleet = self._teller, self._fleet
        fleet.deal(games, task.split)
        self._task_ids[games] = task.id
        self._counts[:, games] = 0
        self._grids, self._masks, _ = fleet.survey()
        if teller.opening_moves:
            for game in games.tolist():
                key = int(fleet.games.keys[game])
                teller._chance, teller._tiles = Chance(key, self.options.shared_chance), 2
                teller.board = teller.rules.pack(self._grids[game].tolist())
                teller._play_opening(np.random.default_rng(key))
                fleet.put(game, teller.exponents, teller._tiles)
            self._grids, self._masks, _ = fleet.survey()
        self._put_into_words(games)
        for game in games.tolist():
            self._texts[game] = f"{teller.system}\n\n{task.prompt}\n\n{self._texts[game]}"
            info = {
                "task_id": task.id,
                "turn": 0,
                "tools": [item.schema() for item in teller.tools.values()],
                "system": teller.system,
            }
            infos = self._add_info(infos, info, game)
        return infos

    def _put_into_words(self, games: NDArray[np.intp]) -> None:
        size = self.options.board_size
        numbers = (self._masks[games] @ _BITS).tolist()
        boards, scores = self._grids[games].tolist(), self._fleet.games.scores[games].tolist()
        for game, board, score, number in zip(games.tolist(), boards, scores, numbers, strict=True):
            if self._teller.show_points:
                self._texts[game] = self._with_points(board, score, _LEGAL[number])
            else:
                self._texts[game] = observation(board, size, score, _LEGAL[number])

    def _with_points(self, exponents: list[int], score: int, legal: tuple[bool, ...]) -> str:
        teller = self._teller
        teller.board, teller.score, teller.legal = teller.rules.pack(exponents), score, legal
        return teller._words()


def _objects(values: Any, mask: NDArray[np.bool_]) -> NDArray[np.object_]:
    """An array with the values where the mask is, in order, and ``None`` elsewhere."""
    array = np.full(len(mask), None, object)
    array[mask] = values
    return array


def _masked(values: dict[str, Any], mask: NDArray[np.bool_]) -> dict[str, Any]:
    """``info`` of a vector environment: beside each value whose it is."""
    infos: dict[str, Any] = {}
    for name, value in values.items():
        infos |= {name: value, f"_{name}": mask.copy()}
    return infos


_WORDS = np.array(ACTIONS, object)
_BITS = np.array([1, 2, 4, 8], np.int8)
_LEGAL = [tuple(bool(number >> action & 1) for action in range(4)) for number in range(16)]
