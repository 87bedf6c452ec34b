"""``art/2048-v0``: the game of 2048 as text."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from art_gym.base import require_choice
from art_gym.env import Baseline, TextEnv
from art_gym.envs.game_2048 import rendering
from art_gym.envs.game_2048.options import GameOptions
from art_gym.envs.game_2048.players import BASELINES
from art_gym.envs.game_2048.rendering import observation, observation_with_points
from art_gym.envs.game_2048.rules.board import ACTIONS, Rules
from art_gym.envs.game_2048.rules.rewards import shaped_terms, target_terms
from art_gym.envs.game_2048.rules.tile_rng import SPLITS, TileRng, draw_key
from art_gym.tasks import Task
from art_gym.terminal import visible
from art_gym.tools import Outcome, tool

_NUMBERS = {name: number for number, name in enumerate(ACTIONS)}

_openings: dict[Hashable, tuple[int, int]] = {}
"""Boards after openings, with their numbers of tiles: the attempts of a group begin alike."""
_MOST_OPENINGS = 1024


class Game2048Env(TextEnv):
    """Slide the tiles of 2048, as text.

    ## Description
    A move slides all tiles in one direction; equal tiles that meet merge into one of twice the value. After a
    move that changed the board a new tile appears in an empty cell, each equally likely: a 2 with probability
    0.9, else a 4. A move that would change nothing is illegal: no tile appears, and the observation says so.

    ## Action Space
    Text: ``left``, ``move("left")``, ``<move>left</move>`` or a native call of ``move``, and so ``up``,
    ``right`` and ``down``.

    ## Observation Space
    Text: the board in aligned columns with a dot for an empty cell, the score, and the legal moves, with
    ``show_points`` as ``up 0 right 8 down - left 4``: the points of each, a dash if it is illegal. It says
    all there is to know, so a policy needs no memory of earlier turns.

    ## Starting State
    Two tiles, drawn as after a move. With ``opening_moves`` so many of ``opening_player`` at most are played
    first, how many is drawn too; the score begins at 0 after them.

    ## Rewards
    ``reward="score"`` (the default) pays the points of each merge, the value of the new tile. The return is
    the game's score and cannot be gamed; but it is in the thousands for a good game, and if ``max_turns``
    cuts games short it pays for merging now rather than for building. An illegal move pays nothing, and costs
    the turn alone.

    ``reward="shaped"`` pays for a legal move points / 100, 0.01 for each empty cell, 0.1 times log2 of the
    best tile, and 0.05 times the smoothness (minus the mean difference of neighbours' log2, empty cells
    left out); an illegal move costs 0.1. It can be gamed by lasting: the points are a tenth to a fifth of it,
    and any legal move at a best tile of 128 pays 0.7. Over 40 moves a policy that avoids points earns 15,
    random play 20 and expectimax 24 (their scores: 172, 235 and 327). Over whole games it ranks policies as
    the score does. An illegal move pays none of it, so standing still earns nothing.

    ``reward="target"``, after OpenPipe ART's example, pays at the end alone: 2 if the target was
    reached, else ``(log2(best) - 1) / (log2(target) - 1) + 0.2 * (log2(total) - 1) / (log2(target * cells)
    - 1)``, less than 1.2; an illegal move costs 1. Every doubling is worth the same however much harder it
    is, so most of the reward below the target comes with the first few tiles.

    A reply that is no move costs ``invalid_action_penalty``, and no less than an illegal move.

    ## Episode End
    Terminated when no move is legal and, with ``stop_at_target``, when the target is reached; truncated after
    ``max_turns`` replies. ``success`` says whether the target was reached.

    ## Information
    The standard keys. At the end ``metrics`` also has ``score``, ``best_tile``, ``moves`` (legal ones) and
    ``illegal_moves``, and ``facts`` how many doublings of the score were wanted and reached.

    ## Arguments
    * ``board_size``: cells on a side, 3 to 8.
    * ``target``: the tile to reach, a power of two of at least 8; by default 2048, on a board of size 3
      1024.
    * ``reward``: ``"score"``, ``"shaped"`` or ``"target"``.
    * ``stop_at_target``: whether reaching the target ends the episode; by default with ``"target"`` alone.
    * ``illegal_move_penalty``: what an illegal move costs, instead of the reward's own figure.
    * ``shared_chance``: whether the n-th tile of a seed's game is drawn alike whatever was played before, so
      that attempts at one game differ by their moves and little by luck; see ``TileRng``.
    * ``opening_moves``: the most moves that are played before the first turn; how many is drawn.
    * ``opening_player``: the baseline that plays them.
    * ``show_points``: whether observations show the points of each move.
    * ``split``: ``"train"``, ``"validation"`` or ``"test"``; no game is in two of them.
    * ``max_turns``, ``invalid_action_penalty``, ``render_mode``: as in every ``TextEnv``; ``render_mode`` may
      also be ``"rgb_array"``.

    ## References
    Gabriele Cirulli's 2048 (2014). OpenPipe ART's 2048 example, for ``reward="target"``.

    ## Version History
    * v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    instructions: ClassVar[str] = (
        "You play 2048. A move slides all tiles; equal tiles that meet merge into one of twice the value, "
        "which is added to the score. Then a 2 or a 4 appears in an empty cell, shown as a dot. Reply with "
        "the direction alone: up, right, down or left. The game is over when no move is legal."
    )
    shared: ClassVar[tuple[str, ...]] = ("rules", "options", "opening_moves", "opening_player", "show_points")
    baselines: ClassVar[Mapping[str, Baseline]] = BASELINES

    def __init__(
        self,
        *,
        board_size: int = 4,
        target: int | None = None,
        reward: str = "score",
        stop_at_target: bool | None = None,
        illegal_move_penalty: float | None = None,
        shared_chance: bool = True,
        opening_moves: int = 0,
        opening_player: str = "random",
        show_points: bool = False,
        split: str = "train",
        max_turns: int = 10_000,
        invalid_action_penalty: float = 0.1,
        render_mode: str | None = None,
    ) -> None:
        if isinstance(opening_moves, bool) or not isinstance(opening_moves, int):
            raise TypeError(f"opening_moves must be an int, not {opening_moves!r}")
        if opening_moves < 0:
            raise ValueError(f"opening_moves must be 0 or more, not {opening_moves}")
        self.options = options = GameOptions.checked(
            board_size=board_size,
            target=target,
            reward=reward,
            stop_at_target=stop_at_target,
            illegal_move_penalty=illegal_move_penalty,
            shared_chance=shared_chance,
            split=split,
            max_turns=max_turns,
        )
        require_choice("opening_player", opening_player, self.baselines)
        self.opening_moves = opening_moves
        self.opening_player = opening_player
        self.show_points = bool(show_points)
        self.rules = Rules.of(board_size)
        self.board = 0
        self.score = 0
        self.moves = 0
        self.illegal_moves = 0
        self.legal: tuple[bool, ...] = (False,) * 4
        self._tile_rng = TileRng(0)
        self._tiles = 0
        prompt = f"Reach the tile {options.target} and make as many points as you can."
        super().__init__(
            [Task(name, prompt, name) for name in SPLITS],
            split=split,
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            render_mode=render_mode,
        )
        self.invalid_action_penalty = max(self.invalid_action_penalty, options.illegal_move_penalty)

    def begin(self, task: Task) -> str:
        """Deal the first two tiles and play the opening moves."""
        key = draw_key(self.np_random, task.split)
        self._tile_rng = TileRng(key, self.options.shared_chance)
        self.board = self.rules.start(self._tile_rng.opening())
        self._tiles = 2
        self.score = self.moves = self.illegal_moves = 0
        if self.opening_moves:
            where = (type(self), key, self.options, self.opening_player, self.opening_moves)
            if where not in _openings:
                if len(_openings) == _MOST_OPENINGS:
                    _openings.clear()
                _openings[where] = self._play_opening(np.random.default_rng(key))
            self.board, self._tiles = _openings[where]
        self.legal = self.rules.legal(self.board)
        return f"{task.prompt}\n\n{self._words()}"

    @tool
    def move(self, direction: Literal["up", "right", "down", "left"]) -> Outcome:
        """Slide all tiles.

        Args:
            direction: Where to.
        """
        action = _NUMBERS[direction]
        if not self.legal[action]:
            self.illegal_moves += 1
            words = f"{direction} is illegal: it would change nothing.\n{self._words()}"
            penalty = self.options.illegal_move_penalty
            return Outcome(words, {"illegal_move": -penalty if penalty else 0.0})
        rules = self.rules
        after, points = rules.slide(self.board, action)
        self.board = board = rules.spawn(after, self._tile_rng.draw(self._tiles, after))
        self._tiles += 1
        self.moves += 1
        self.score = score = self.score + points
        self.legal = legal = rules.legal(board)
        exponents = rules.exponents(board)
        words = self._words() if self.show_points else observation(exponents, rules.size, score, legal)
        terms: dict[str, float] = {}
        if self.options.reward == "score":
            terms = {"points": float(points)}
        elif self.options.reward == "shaped":
            terms = shaped_terms(points, exponents, rules.size)
        if True not in legal:
            return self._end(f"{words}\nNo move is legal: the game is over.", terms)
        if self.options.stop_at_target and self.reached:
            return self._end(f"{words}\nThe tile {self.options.target} is reached.", terms)
        return Outcome(words, terms)

    def on_truncation(self) -> Outcome:
        """Running out of turns ends the game as it stands."""
        return self._end("No turns are left.", {})

    def observation_after_error(self) -> str:
        """The board again: each observation says all there is to know."""
        return self._words()

    def facts(self) -> dict[str, Any]:
        """For judges, how far the game came, in doublings of the score: log2(1 + score).

        Wanted is the score of a game that builds the target out of twos alone. A game that reached the target
        has it, and no game has more. Doublings, because the score of a beginner's game is a hundredth of it.
        """
        target = self.options.target
        wanted = target * (target.bit_length() - 2)
        reached = wanted if self.reached else min(self.score, wanted)
        return {
            "task_type": "game",
            "expected": {"score_doublings": math.log2(1 + wanted)},
            "result": {"score_doublings": math.log2(1 + reached)},
            "required_actions": ["move"],
        }

    @property
    def reached(self) -> bool:
        """Whether the board holds the target tile or a larger one."""
        return 1 << self.rules.best(self.board) >= self.options.target

    @property
    def exponents(self) -> tuple[int, ...]:
        """The cells row by row: 0 for an empty one, else log2 of the tile."""
        return self.rules.exponents(self.board)

    def render(self) -> str | NDArray[np.uint8] | None:  # type: ignore[override]  # text environments have no picture
        """The board: text with the latest reply in ``"ansi"`` mode, a picture in ``"rgb_array"`` mode.

        Returns:
            In ``"rgb_array"`` mode an array of shape (height, width, 3); ``None`` in ``"human"`` mode, in
            which every step prints the board in colours.
        """
        if self.render_mode == "rgb_array":
            return rendering.picture(self.exponents, self.rules.size, self.score)
        return super().render()

    def _render_human(self, reply: str, observation: str) -> None:
        """Print the board in colours in place of plain text."""
        if self.render_mode != "human":
            super()._render_human(reply, observation)
            return
        board = rendering.colored(self.exponents, self.rules.size, self.score)
        print(f"> {visible(reply)}\n{board}" if reply else board)

    def _words(self) -> str:
        if not self.show_points:
            return observation(self.exponents, self.rules.size, self.score, self.legal)
        points = [
            self.rules.slide(self.board, action)[1] if legal else None
            for action, legal in enumerate(self.legal)
        ]
        return observation_with_points(self.exponents, self.rules.size, self.score, points)

    def _end(self, words: str, terms: dict[str, float]) -> Outcome:
        if self.options.reward == "target":
            target = self.options.target
            terms = terms | target_terms(self.exponents, self.rules.size, target, reached=self.reached)
        metrics = {
            "score": float(self.score),
            "best_tile": float(1 << self.rules.best(self.board)),
            "moves": float(self.moves),
            "illegal_moves": float(self.illegal_moves),
        }
        return Outcome(words, terms, ends=True, success=self.reached, metrics=metrics)

    def _play_opening(self, rng: np.random.Generator) -> tuple[int, int]:
        """Play the opening player's moves, but none that ends the game or reaches the target.

        Returns:
            The board, and how many tiles have appeared.
        """
        moves = int(rng.integers(self.opening_moves + 1))
        player = self.baselines[self.opening_player](self, rng)
        for _ in range(moves):
            self.legal = self.rules.legal(self.board)
            after, _ = self.rules.slide(self.board, _NUMBERS[player("")])
            board = self.rules.spawn(after, self._tile_rng.draw(self._tiles, after))
            if not any(self.rules.legal(board)) or 1 << self.rules.best(board) >= self.options.target:
                break
            self.board = board
            self._tiles += 1
        return self.board, self._tiles
