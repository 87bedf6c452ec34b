"""Guess-the-number at a speed that each process sets for itself."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium as gym

from tests.art_trainer.guess import GuessEnv

ENV = "tests.art_trainer.remote.fault_envs:fault/Guess-v0"
DELAY = "FAULT_STEP_SECONDS"


class SlowGuessEnv(GuessEnv):
    """Each step takes as long as the environment variable says."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(float(os.environ.get(DELAY, "0")))
        return super().step(action)


gym.register("fault/Guess-v0", SlowGuessEnv, disable_env_checker=True, order_enforce=False)
