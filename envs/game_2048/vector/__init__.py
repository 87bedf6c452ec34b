"""Many games of 2048 at once."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from art_gym.envs.game_2048.array_env import Array2048Env


def make_vector_env(
    num_envs: int = 1, *, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP, **options: Any
) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Make the vector environment of ``art/2048Array-v0``.

    Without Numba (``pip install "art-gym[fast]"``) it is Gymnasium's ``SyncVectorEnv``: the same games, one
    after the other.

    Args:
        num_envs: How many games.
        autoreset_mode: When games that have ended begin anew.
        options: Arguments of ``Array2048Env``.
    """
    if find_spec("numba") is None:
        envs = [partial(Array2048Env, **options)] * num_envs
        return SyncVectorEnv(envs, autoreset_mode=autoreset_mode)
    from art_gym.envs.game_2048.vector.vector_env import Vector2048Env

    return Vector2048Env(num_envs, autoreset_mode=autoreset_mode, **options)
