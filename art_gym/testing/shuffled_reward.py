"""``testing/ShuffledReward-v0``: an environment that pays what its other episodes earned, in a random order.

A control for training: what an agent gains here it did not learn from the reward.

    art-trainer train --env art_gym.testing.shuffled_reward:testing/ShuffledReward-v0 --env-args env=my_env.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from art_gym.lookup import make_env

CONTROL = "testing/ShuffledReward-v0"


class ShuffledReward(gym.Wrapper[str, str, str, str]):
    """Pay an episode's last step the return of an earlier one, 0 in the first, and no other step anything."""

    def __init__(self, env: gym.Env[str, str]) -> None:
        super().__init__(env)
        self._returns: list[float] = []
        self._total = 0.0
        # Not the environment's: its episodes stay as they are.
        self._chance = np.random.default_rng(0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode."""
        self._total = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Step; ``success`` and the observations stay as they are."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._total, paid = self._total + float(reward), 0.0
        if terminated or truncated:
            paid = float(self._chance.choice(self._returns)) if self._returns else 0.0
            self._returns.append(self._total)
        info["score_terms"] = {"shuffled": paid}
        return observation, paid, terminated, truncated, info


def make(env: str, env_args: Mapping[str, Any] | None = None, **more: Any) -> ShuffledReward:
    """Make the control of an environment.

    Args:
        env: Its name, as every command takes it.
        env_args: Its arguments.
        more: More of its arguments, such as ``render_mode``.
    """
    return ShuffledReward(make_env(env, {**(env_args or {}), **more}))


gym.register(CONTROL, f"{__name__}:make", order_enforce=False, disable_env_checker=True)
