"""Options of the 2048 environments, checked in one place for the text, array and vector ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from art_gym.base import require_choice, require_count
from art_gym.envs.game_2048.rules.board import Rules
from art_gym.envs.game_2048.rules.rewards import ILLEGAL_MOVE, REWARDS
from art_gym.envs.game_2048.rules.tile_rng import SPLITS
from art_gym.errors import UnknownTaskError, did_you_mean

OBSERVATIONS = ("exponents", "one_hot")
"""The forms of observation by name."""


@dataclass(frozen=True, slots=True)
class GameOptions:
    """The arguments that ``art/2048-v0`` and ``art/2048Array-v0`` share; see there for what they mean.

    Raises:
        TypeError: For an argument of the wrong type.
        ValueError: For one out of range.
        UnknownTaskError: If ``split`` is none.
    """

    board_size: int = 4
    observation: str = "exponents"
    reward: str = "score"
    target: int = 2048
    stop_at_target: bool = False
    illegal_move_penalty: float = 0.0
    shared_chance: bool = True
    split: str = "train"
    max_turns: int = 10_000

    @classmethod
    def checked(
        cls,
        *,
        board_size: int = 4,
        reward: str = "score",
        target: int | None = None,
        stop_at_target: bool | None = None,
        illegal_move_penalty: float | None = None,
        **others: Any,
    ) -> GameOptions:
        """The options, with ``None`` replaced by what goes with the board's size and the reward."""
        Rules.of(board_size)
        require_choice("reward", reward, REWARDS)
        return cls(
            board_size=board_size,
            reward=reward,
            target=min(2048, _largest(board_size)) if target is None else target,
            stop_at_target=reward == "target" if stop_at_target is None else stop_at_target,
            illegal_move_penalty=ILLEGAL_MOVE[reward]
            if illegal_move_penalty is None
            else illegal_move_penalty,
            **others,
        )

    def __post_init__(self) -> None:
        require_choice("observation", self.observation, OBSERVATIONS)
        check_target(self.target, self.board_size)
        if not 0 <= self.illegal_move_penalty < float("inf"):
            raise ValueError(f"illegal_move_penalty must be 0 or more, not {self.illegal_move_penalty}")
        require_count("max_turns", self.max_turns)
        check_split(self.split)

    def observation_space(self) -> gym.spaces.Box:
        """The space of one board's observation."""
        size, largest = self.board_size, self.board_size**2 + 1
        if self.observation == "one_hot":
            return gym.spaces.Box(0, 1, (size, size, largest + 1), np.uint8)
        return gym.spaces.Box(0, largest, (size, size), np.uint8)

    def observe(self, grids: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Observations of boards, from their exponents of shape (…, size, size)."""
        if self.observation == "exponents":
            return grids
        planes = np.arange(self.board_size**2 + 2, dtype=np.uint8)
        return np.equal(grids[..., np.newaxis], planes).view(np.uint8)


def _largest(board_size: int) -> int:
    """The largest tile that a board can come to hold."""
    return int(2 ** (board_size**2 + 1))


def check_target(target: int, board_size: int) -> int:
    """The target, refused if a board of this size cannot reach it.

    Raises:
        TypeError: If it is no integer.
        ValueError: If it is no power of two in range.
    """
    if isinstance(target, bool) or not isinstance(target, int):
        raise TypeError(f"target must be an int such as 2048, not {target!r}")
    largest = _largest(board_size)
    if not 8 <= target <= largest or target & (target - 1):
        size = f"on a board of size {board_size}"
        raise ValueError(f"target must be a power of two from 8 to {largest} {size}, not {target}")
    return target


def check_split(split: str) -> None:
    """Refuse a split that does not exist.

    Raises:
        UnknownTaskError: For a split that is not one of ``SPLITS``.
    """
    if split not in SPLITS:
        raise UnknownTaskError(f"no split `{split}`{did_you_mean(str(split), SPLITS)}")


def split_of(options: Mapping[str, Any] | None, default: str) -> str:
    """The split that the options of a ``reset`` ask for.

    Raises:
        ValueError: For any other option.
        UnknownTaskError: If the split does not exist.
    """
    for name in options or {}:
        if name != "split":
            raise ValueError(f"no option `{name}` of reset{did_you_mean(str(name), ('split',))}")
    split = (options or {}).get("split")
    if split is None:
        return default
    check_split(split)
    return str(split)
