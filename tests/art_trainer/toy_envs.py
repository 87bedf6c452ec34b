"""A text environment with tasks and baselines, small enough to train on in a test."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np

from art_gym import Outcome, Task, TextEnv, tool

WORDS = ("red", "green", "blue")


def _scripted(env: Any, rng: np.random.Generator) -> Any:
    return lambda observation: env.task.data["word"]


class Echo(TextEnv):
    """Say the word that is asked for."""

    instructions = "Say the word you are asked for."
    baselines = {"scripted": _scripted}  # noqa: RUF012

    def __init__(self, words: int = 3, fragile: bool = False, **options: Any) -> None:
        if not 1 <= words <= len(WORDS):
            raise ValueError(f"words must be 1 to {len(WORDS)}, not {words}")
        tasks = [
            Task(f"{split}-{k}", f"Say {WORDS[k % words]}!", split, {"word": WORDS[k % words]})
            for split in ("train", "validation", "test")
            for k in range(6)
        ]
        super().__init__(tasks, **({"max_turns": 2} | options))
        self.fragile = fragile

    @tool
    def say(self, word: Literal["red", "green", "blue"]) -> Outcome:
        """Say a word.

        Args:
            word: The word.
        """
        if self.fragile and self.task.id == "test-1":
            raise RuntimeError("out of paint")
        right = word == self.task.data["word"]
        return Outcome("Right." if right else "Wrong.", {"word": float(right), "speed": -0.1}, right, right)


if "toy/Echo-v0" not in gym.registry:
    gym.register("toy/Echo-v0", entry_point=Echo, order_enforce=False, disable_env_checker=True)
