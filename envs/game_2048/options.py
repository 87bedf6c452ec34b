"""What the environments of 2048 can be told: checked once, for words, for arrays and for many games."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from art_gym.envs.game_2048.board import Rules
from art_gym.envs.game_2048.rewards import ILLEGAL_MOVE, REWARDS
from art_gym.envs.game_2048.splits import SPLITS
from art_gym.errors import UnknownTask, did_you_mean

OBSERVATIONS = ("exponents", "one_hot")
"""The forms of observation by name."""


@dataclass(frozen=True, slots=True)
class GameOptions:
    """The arguments that ``art/2048-v0`` and ``art/2048Array-v0`` share; see there for what they mean.

    Raises:
        TypeError: For an argument of the wrong type.
        ValueError: For one out of range.
        UnknownTask: Where ``split`` is none.
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
        board_size: int,
        reward: str,
        target: int | None,
        stop_at_target: bool | None,
        illegal_move_penalty: float | None,
        **others: Any,
    ) -> GameOptions:
        """The options, with ``None`` replaced by what goes with the board's size and the reward."""
        Rules.of(board_size)
        if reward not in REWARDS:
            raise ValueError(f"no reward `{reward}`{did_you_mean(str(reward), REWARDS)}")
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
        Rules.of(self.board_size)
        if self.observation not in OBSERVATIONS:
            wrong = f"no observation `{self.observation}`"
            raise ValueError(f"{wrong}{did_you_mean(str(self.observation), OBSERVATIONS)}")
        if isinstance(self.target, bool) or not isinstance(self.target, int):
            raise TypeError(f"target must be an int such as 2048, not {self.target!r}")
        largest = _largest(self.board_size)
        if not 8 <= self.target <= largest or self.target & (self.target - 1):
            size = f"on a board of size {self.board_size}"
            raise ValueError(f"target must be a power of two from 8 to {largest} {size}, not {self.target}")
        if not 0 <= self.illegal_move_penalty < float("inf"):
            raise ValueError(f"illegal_move_penalty must be 0 or more, not {self.illegal_move_penalty}")
        if isinstance(self.max_turns, bool) or not isinstance(self.max_turns, int):
            raise TypeError(f"max_turns must be an int, not {self.max_turns!r}")
        if self.max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {self.max_turns}")
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


def check_split(split: str) -> None:
    """Refuse a split that does not exist.

    Raises:
        UnknownTask: For a split that is not one of ``SPLITS``.
    """
    if split not in SPLITS:
        raise UnknownTask(f"no split `{split}`{did_you_mean(str(split), SPLITS)}")


def split_of(options: Mapping[str, Any] | None, default: str) -> str:
    """The split that the options of a ``reset`` ask for.

    Raises:
        ValueError: For any other option.
        UnknownTask: Where the split does not exist.
    """
    for name in options or {}:
        if name != "split":
            raise ValueError(f"no option `{name}` of reset{did_you_mean(str(name), ('split',))}")
    split = (options or {}).get("split")
    if split is None:
        return default
    check_split(split)
    return str(split)
