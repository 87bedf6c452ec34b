"""``art/2048Array-v0``: the game of 2048 as arrays, for classic reinforcement learning."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar, SupportsInt, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from art_gym.base import SnapshotMixin, TurnLimitSpec, require_choice
from art_gym.envs.game_2048 import rendering
from art_gym.envs.game_2048.options import GameOptions, split_of
from art_gym.envs.game_2048.rules.board import ACTIONS, Rules
from art_gym.envs.game_2048.rules.rewards import shaped_terms, target_terms
from art_gym.envs.game_2048.rules.tile_rng import TileRng, draw_key
from art_gym.errors import ResetNeededError

_BYTE = np.dtype(np.uint8)
RENDER_MODES = ("ansi", "human", "rgb_array")


class Array2048Env(TurnLimitSpec, SnapshotMixin, gym.Env[NDArray[np.uint8], SupportsInt]):
    """Slide the tiles of 2048, with the board as an array and the move as a number.

    ## Description
    The game of ``art/2048-v0``: the same seed and moves give the same boards, scores and rewards there, here
    and in the vector environment, ``gym.make_vec("art/2048Array-v0",
    vectorization_mode="vector_entry_point")``, which plays thousands of games at once.

    ## Action Space
    ``Discrete(4)``: 0 up, 1 right, 2 down, 3 left. An illegal move changes nothing.

    ## Observation Space
    With ``observation="exponents"`` a ``Box`` of bytes of shape (size, size): 0 for an empty cell, else log2
    of its tile. With ``"one_hot"`` of shape (size, size, size * size + 2): a 1 in the plane of the cell's
    exponent.

    ## Starting State
    Two tiles, drawn as after a move.

    ## Rewards
    ``"score"``, ``"shaped"`` or ``"target"``, as in ``art/2048-v0``, which also says how each can be gamed.

    ## Episode End
    Terminated when no move is legal and, with ``stop_at_target``, when the target is reached; truncated after
    ``max_turns`` actions.

    ## Information
    After ``reset`` and every step, in objects of its own: ``action_mask`` (int8, 1 for a legal action; what
    ``action_space.sample(mask=…)`` takes), ``score`` (points so far) and ``illegal`` (whether the action
    was). :meth:`action_masks` gives the mask in the form that MaskablePPO of sb3-contrib asks for.

    ## Arguments
    * ``board_size``: cells on a side, 3 to 8.
    * ``observation``: ``"exponents"`` or ``"one_hot"``.
    * ``reward``: ``"score"``, ``"shaped"`` or ``"target"``.
    * ``target``: the tile to reach, a power of two of at least 8; by default 2048, on a 3 x 3 board 1024, the
      largest that it can hold.
    * ``stop_at_target``: whether reaching the target ends the episode; by default with ``"target"`` alone.
    * ``illegal_move_penalty``: what an illegal move costs, instead of the reward's own figure.
    * ``shared_chance``: whether the n-th tile of a seed's game is drawn alike whatever was played before; see
      ``TileRng``.
    * ``split``: ``"train"``, ``"validation"`` or ``"test"``; no game is in two of them. ``reset`` takes
      another one in ``options={"split": …}``.
    * ``max_turns``: the episode is truncated after this many actions.
    * ``render_mode``: ``"ansi"``, ``"human"`` (prints every board) or ``"rgb_array"``.

    ## References
    Gabriele Cirulli's 2048 (2014).

    ## Version History
    * v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012
    shared: ClassVar[tuple[str, ...]] = (
        "action_space",
        "observation_space",
        "options",
        "render_mode",
        "rules",
        "_spec",
        "max_turns",
    )

    def __init__(
        self,
        *,
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
        if render_mode is not None:
            require_choice("render_mode", render_mode, RENDER_MODES)
        self.max_turns = max_turns
        self.rules = Rules.of(board_size)
        self.render_mode = render_mode
        self.observation_space = cast(gym.Space[NDArray[np.uint8]], self.options.observation_space())
        self.action_space = gym.spaces.Discrete(len(ACTIONS))
        self.board = 0
        self.score = 0
        self.turn = 0
        self._legal = (False, False, False, False)
        self._tile_rng = TileRng(0)
        self._tiles = 0
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin a game.

        Args:
            seed: The same seed gives the same game.
            options: ``{"split": name}`` chooses the split.

        Raises:
            ValueError: For any other option.
            UnknownTaskError: For a split that does not exist.
        """
        super().reset(seed=seed)
        split = split_of(options, self.options.split)
        self._tile_rng = TileRng(draw_key(self.np_random, split), self.options.shared_chance)
        self.board = self.rules.start(self._tile_rng.opening())
        self._legal = self.rules.legal(self.board)
        self._tiles = 2
        self.score = self.turn = 0
        self._running = True
        if self.render_mode == "human":
            self._render_human()
        return self._observation(), self._info(illegal=False)

    def step(self, action: SupportsInt) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Make a move.

        Raises:
            ResetNeededError: Before ``reset`` or after the episode's end.
            TypeError: If ``action`` is no integer.
            ValueError: If it is not from 0 to 3.
        """
        if not self._running:
            raise ResetNeededError("call reset() first: no episode is running")
        move = action if type(action) is int else _as_int(action)
        if not 0 <= move < 4:
            raise ValueError(f"an action is from 0 (up) to 3 (left), not {move}")
        self.turn += 1
        legal = self._legal[move]
        points = 0
        if legal:
            after, points = self.rules.slide(self.board, move)
            self.board = board = self.rules.spawn(after, self._tile_rng.draw(self._tiles, after))
            self._legal = self.rules.legal(board)
            self._tiles += 1
            self.score += points
        options = self.options
        terminated = legal and (True not in self._legal or (options.stop_at_target and self.reached))
        truncated = not terminated and self.turn >= options.max_turns
        self._running = not (terminated or truncated)
        plain = legal and options.reward == "score"
        reward = float(points) if plain else self._reward(points, legal=legal)
        if self.render_mode == "human":
            self._render_human()
        return self._observation(), reward, terminated, truncated, self._info(illegal=not legal)

    def action_masks(self) -> NDArray[np.bool_]:
        """Which of the four actions are legal now, as MaskablePPO of sb3-contrib asks an environment."""
        return np.array(self._legal)

    @property
    def reached(self) -> bool:
        """Whether the board holds the target tile or a larger one."""
        return 1 << self.rules.best(self.board) >= self.options.target

    def render(self) -> str | NDArray[np.uint8] | None:
        """The board: text in ``"ansi"`` mode, a picture (height, width, 3) in ``"rgb_array"`` mode."""
        exponents = self.rules.exponents(self.board)
        if self.render_mode == "ansi":
            return rendering.ansi(exponents, self.rules.size, self.score)
        if self.render_mode == "rgb_array":
            return rendering.picture(exponents, self.rules.size, self.score)
        return None

    def _reward(self, points: int, *, legal: bool) -> float:
        options = self.options
        exponents = self.rules.exponents(self.board)
        terms: dict[str, float] = {}
        if not legal:
            terms["illegal_move"] = -options.illegal_move_penalty
        elif options.reward == "shaped":
            terms = shaped_terms(points, exponents, options.board_size)
        if options.reward == "target" and not self._running:
            terms |= target_terms(exponents, options.board_size, options.target, reached=self.reached)
        reward = 0.0
        for value in terms.values():  # as the vector environment adds them: sum() may round otherwise
            reward += value
        return reward

    def _observation(self) -> NDArray[np.uint8]:
        # On a bytearray of its own the array can be written to; this is the quickest way to one.
        size = self.rules.size
        cells = bytearray(self.board.to_bytes(size * size, "little"))
        grid: NDArray[np.uint8] = np.ndarray((size, size), _BYTE, cells)
        return grid if self.options.observation == "exponents" else self.options.observe(grid)

    def _info(self, *, illegal: bool) -> dict[str, Any]:
        return {"action_mask": _MASKS[self._legal].copy(), "score": self.score, "illegal": illegal}

    def _render_human(self) -> None:
        print(rendering.colored(self.rules.exponents(self.board), self.rules.size, self.score))


def _as_int(action: object) -> int:
    """An integer of NumPy's as one of Python's; nothing else is an action."""
    if isinstance(action, np.integer):
        return int(action)
    if not isinstance(action, np.ndarray):
        raise TypeError(f"an action is an integer from 0 (up) to 3 (left), not {action!r}")
    if action.shape or action.dtype.kind not in "iu":
        found = f"an array of shape {action.shape}, {action.dtype}"
        raise TypeError(f"an action is an integer from 0 (up) to 3 (left), not {found}")
    return int(action)


# An array for each set of legal moves, to be copied: quicker than making one anew.
_MASKS = {legal: np.array(legal, np.int8) for legal in itertools.product((False, True), repeat=4)}
