"""What changes an environment from outside. Imports as ``art_gym.wrappers``.

``GroupEnv`` and ``RulerReward`` need PettingZoo; the rest needs nothing but ``art_gym``.
"""

from __future__ import annotations

from typing import Any

if __name__ != "art_gym.wrappers":
    raise ImportError(f"import `art_gym.wrappers`, not `{__name__}`")

from art_gym.wrappers.record_episodes import RecordEpisodes
from art_gym.wrappers.rubric_reward import RubricReward
from art_gym.wrappers.text_adapter import TextAdapter

__all__ = [
    "GroupEnv",
    "RecordEpisodes",
    "RubricReward",
    "RulerReward",
    "TextAdapter",
]


def __getattr__(name: str) -> Any:
    if name == "GroupEnv":
        from art_gym.wrappers.group_env import GroupEnv

        return GroupEnv
    if name == "RulerReward":
        from art_gym.wrappers.ruler_reward import RulerReward

        return RulerReward
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
