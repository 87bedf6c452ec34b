"""Registers guess-the-number as ``guess/Guess-v0``, for processes that know environments by their ids."""

from __future__ import annotations

import gymnasium as gym

from tests.art_trainer.guess import GuessEnv

gym.register("guess/Guess-v0", entry_point=GuessEnv, order_enforce=False, disable_env_checker=True)
