"""Guess-the-number that waits until a test lets it go on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym

from tests.art_trainer.guess import GuessEnv

ENV = "tests.art_trainer.distributed.fault_envs:fault/Guess-v0"
GATE = "FAULT_GATE"


class GatedGuessEnv(GuessEnv):
    """Says so where a step begins, and takes it when the file is there that the environment names."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if GATE in os.environ:
            gate = Path(os.environ[GATE])
            gate.with_name("reached").touch()
            while not gate.exists():
                time.sleep(0.01)
        return super().step(action)


gym.register("fault/Guess-v0", GatedGuessEnv, disable_env_checker=True, order_enforce=False)
