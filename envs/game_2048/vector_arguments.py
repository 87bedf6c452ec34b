"""What the vector environments of 2048 are told by their callers, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from art_gym.errors import did_you_mean


def check_count(num_envs: int) -> None:
    """Refuse a number of environments that is none.

    Raises:
        TypeError: Where it is no integer.
        ValueError: Where it is less than 1.
    """
    if isinstance(num_envs, bool) or not isinstance(num_envs, int):
        raise TypeError(f"num_envs must be an int, not {num_envs!r}")
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, not {num_envs}")


def autoreset_of(mode: AutoresetMode | str) -> AutoresetMode:
    """The autoreset mode of this name.

    Raises:
        ValueError: Where there is none.
    """
    names = [known.value for known in AutoresetMode]
    if not isinstance(mode, AutoresetMode) and mode not in names:
        raise ValueError(f"no autoreset mode `{mode}`{did_you_mean(str(mode), names)}")
    return AutoresetMode(mode)


def seeds_for(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """A seed for each environment: from one number upwards, or as listed.

    Raises:
        TypeError: Where a seed is no integer.
        ValueError: For a negative seed, or a list of another length.
    """
    if seed is None:
        return [None] * count
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        seeds: list[int | None] = [int(seed) + game for game in range(count)]
    elif isinstance(seed, (Sequence, np.ndarray)) and not isinstance(seed, str):
        seeds = [None if one is None else _seed(one) for one in seed]
    else:
        raise TypeError(f"seed must be an int, a list of one for each environment or None, not {seed!r}")
    if len(seeds) != count:
        raise ValueError(f"{len(seeds)} seeds for {count} environments: there must be one for each")
    for game, one in enumerate(seeds):
        if one is not None and one < 0:
            raise ValueError(f"a seed must be 0 or more, not {one} (environment {game})")
    return seeds


def _seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"a seed must be an int or None, not {seed!r}")
    return int(seed)


def reset_mask(mask: Any, count: int) -> NDArray[np.bool_]:
    """Which environments to reset: those of the mask, or all where there is none.

    Raises:
        TypeError: Where the mask is no array of ``bool``.
        ValueError: Where it has another shape or picks none.
    """
    if mask is None:
        return np.ones(count, np.bool_)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        found = f"one of {mask.dtype}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise TypeError(f"options['reset_mask'] must be an array of bool, not {found}")
    if mask.shape != (count,):
        raise ValueError(f"options['reset_mask'] must have shape ({count},), not {mask.shape}")
    if not mask.any():
        raise ValueError("options['reset_mask'] must pick at least one environment")
    return mask


def moves_of(actions: Any, count: int) -> NDArray[np.int64]:
    """The actions of all games as 64-bit integers; whether they are in range is for the engine to see.

    Raises:
        TypeError: Where they are not integers.
        ValueError: Where they are not one for each game.
    """
    moves = np.asarray(actions)
    if moves.dtype.kind not in "iu":
        raise TypeError(f"actions must be integers from 0 (up) to 3 (left), not {moves.dtype}")
    if moves.shape != (count,):
        raise ValueError(f"actions must have shape ({count},), one for each game, not {moves.shape}")
    return np.ascontiguousarray(moves, np.int64)


def replies_of(actions: Any, count: int) -> list[str]:
    """The replies in all games.

    Raises:
        TypeError: Where one is no ``str``.
        ValueError: Where they are not one for each game.
    """
    if isinstance(actions, str) or not isinstance(actions, (Sequence, np.ndarray)):
        raise TypeError(f"actions are a sequence of {count} replies, not {type(actions).__name__}")
    if len(actions) != count:
        raise ValueError(f"{len(actions)} replies for {count} games: there must be one for each")
    for game, reply in enumerate(actions):
        if not isinstance(reply, str):
            raise TypeError(f"an action is the reply as a str, not {type(reply).__name__} (game {game})")
    return list(actions)


def shown(games: Sequence[int]) -> str:
    """The first few of some numbers."""
    return ", ".join(map(str, games[:5])) + (", …" if len(games) > 5 else "")
