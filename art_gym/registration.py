"""Registration of environments with Gymnasium and of games with PettingZoo."""

from __future__ import annotations

import importlib.util
import warnings
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Final

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

_ADAPTERS = "art_gym.wrappers.adapters"
_ENVS: dict[str, dict[str, Any]] = {
    "art/Email-v0": {"entry_point": "art_gym.envs.mail.env:EmailEnv"},
    "art/2048-v0": {"entry_point": "art_gym.envs.game_2048.env:Game2048Env"},
    "art/2048Array-v0": {
        "entry_point": "art_gym.envs.game_2048.array_env:Array2048Env",
        "vector_entry_point": "art_gym.envs.game_2048.vector:make_vector_env",
    },
    "art/Coding-v0": {"entry_point": "art_gym.envs.coding.env:CodingEnv"},
    "art/Judge-v0": {"entry_point": f"{_ADAPTERS}.judge_env:JudgeEnv"},
    # Environments of other libraries; a missing library is reported when one of them is made.
    "toy/FrozenLake-v0": {"entry_point": f"{_ADAPTERS}.frozen_lake:FrozenLakeTextEnv"},
    "gem/Env-v0": {"entry_point": f"{_ADAPTERS}.gem_env:GemTextEnv"},
    "textarena/Solo-v0": {"entry_point": f"{_ADAPTERS}.textarena_env:TextArenaSoloEnv"},
    "reasoning-gym/Task-v0": {"entry_point": f"{_ADAPTERS}.reasoning_gym_env:ReasoningGymTextEnv"},
    "verifiers/Env-v0": {"entry_point": f"{_ADAPTERS}.verifiers_env:VerifiersTextEnv"},
    "openenv/Env-v0": {"entry_point": f"{_ADAPTERS}.openenv_env:OpenEnvTextEnv"},
}
_GAMES = {
    "art/2048Duel-v0": "art_gym.envs.game_2048.duel:Duel2048Env",
}

PLUGIN_GROUP: Final = "art_gym.envs"
"""The group of entry points whose modules are imported with ``art_gym``."""


def register_envs() -> None:
    """Register every environment with Gymnasium; ids that are already registered are left alone.

    No wrappers are added: the environments keep their own turn limits and reject a step out of order, and
    ``check_text_env`` checks what Gymnasium's passive checker would look at on every step.
    """
    for env_id, points in _ENVS.items():
        if env_id not in gym.registry:
            gym.register(env_id, **points, order_enforce=False, disable_env_checker=True)


def register_games() -> None:
    """Register every game with PettingZoo, if that is installed; ids that are registered are left alone.

    Each is registered as an AEC environment and as a parallel one.
    """
    if importlib.util.find_spec("pettingzoo") is None:
        return
    import pettingzoo  # type: ignore[import-untyped]

    if not hasattr(pettingzoo, "aec_registry"):  # before version 1.27
        return
    for game_id, game in _GAMES.items():
        if game_id not in pettingzoo.aec_registry:
            pettingzoo.register("aec", game_id, entry_point=game)
        if game_id not in pettingzoo.parallel_registry:
            pettingzoo.register("parallel", game_id, entry_point=partial(_parallel_game, game))


def _parallel_game(game: str, *, max_cycles: int | None = None, **arguments: Any) -> Any:
    """Make a game for code that steps all seats at once; actions of seats that are not to move are ignored.

    Args:
        game: The game's class, as ``"module:Class"``.
        max_cycles: A cycle is the move of one seat, so each of the two seats has half of this, rounded up.
        arguments: Of the class.
    """
    from pettingzoo.utils.conversions import turn_based_aec_to_parallel  # type: ignore[import-untyped]

    if max_cycles is not None:
        arguments["max_cycles"] = (max_cycles + 1) // 2
    return turn_based_aec_to_parallel(load_env_creator(game)(**arguments))


def load_plugins() -> None:
    """Import the modules that installed packages name in :data:`PLUGIN_GROUP`; they register environments.

    A package declares its module in ``pyproject.toml``::

        [project.entry-points."art_gym.envs"]
        my_envs = "my_envs"

    A module that fails is reported by a warning, so that one broken package does not break ``art_gym``.
    (Gymnasium has had no such entry point since version 1.0.)
    """
    for entry_point in entry_points(group=PLUGIN_GROUP):
        try:
            entry_point.load()
        except Exception as error:  # another package's code may raise anything
            package = entry_point.dist.name if entry_point.dist is not None else "a package"
            warnings.warn(
                f"{package} registers environments in `{entry_point.value}`, but importing that raised "
                f"{type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
