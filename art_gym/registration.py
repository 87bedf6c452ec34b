"""The ids of the environments that come with the project."""

from __future__ import annotations

import gymnasium as gym

_ENTRY_POINTS = {
    "art/Email-v0": "art_gym.envs.mail.env:EmailEnv",
}


def register_envs() -> None:
    """Register every environment with Gymnasium; ids already there are left alone.

    No wrappers are asked for: a ``TextEnv`` keeps its own turn limit and refuses a step out of order in its
    own words, and ``check_text_env`` holds what Gymnasium's passive checker would look at on every step.
    """
    for env_id, entry_point in _ENTRY_POINTS.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=entry_point, order_enforce=False, disable_env_checker=True)
