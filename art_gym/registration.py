"""The ids of the environments that come with the project."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

_ENVS: dict[str, dict[str, Any]] = {
    "art/Email-v0": {"entry_point": "art_gym.envs.mail.env:EmailEnv"},
    "art/2048-v0": {
        "entry_point": "art_gym.envs.game_2048.env:Game2048Env",
        "vector_entry_point": "art_gym.envs.game_2048.text_vector:TextVector2048Env",
    },
    "art/2048Array-v0": {
        "entry_point": "art_gym.envs.game_2048.array_env:Array2048Env",
        "vector_entry_point": "art_gym.envs.game_2048.vector_env:Vector2048Env",
    },
    "art/Coding-v0": {"entry_point": "art_gym.envs.coding.env:CodingEnv"},
    # Other people's environments in words; their packages are asked for when one is made.
    "toy/FrozenLake-v0": {"entry_point": "art_gym.wrappers.adapters.frozen_lake:FrozenLakeTextEnv"},
    "toy/Taxi-v0": {"entry_point": "art_gym.wrappers.adapters.taxi:TaxiTextEnv"},
    "toy/Blackjack-v0": {"entry_point": "art_gym.wrappers.adapters.blackjack:BlackjackTextEnv"},
    "gem/Env-v0": {"entry_point": "art_gym.wrappers.adapters.gem_env:GemTextEnv"},
    "textarena/Solo-v0": {"entry_point": "art_gym.wrappers.adapters.textarena_env:TextArenaSoloEnv"},
    "reasoning-gym/Task-v0": {
        "entry_point": "art_gym.wrappers.adapters.reasoning_gym_env:ReasoningGymTextEnv"
    },
    "textworld/Game-v0": {"entry_point": "art_gym.wrappers.adapters.textworld_env:TextWorldTextEnv"},
    "babyai/Text-v0": {"entry_point": "art_gym.wrappers.adapters.babyai_env:BabyAITextEnv"},
}


def register_envs() -> None:
    """Register every environment with Gymnasium; ids already there are left alone.

    No wrappers are asked for: our environments keep their own turn limits and refuse a step out of order in
    their own words, and ``check_text_env`` holds what Gymnasium's passive checker would look at on every
    step.
    """
    for env_id, entry_points in _ENVS.items():
        if env_id not in gym.registry:
            gym.register(env_id, **entry_points, order_enforce=False, disable_env_checker=True)
