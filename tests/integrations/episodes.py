"""What an episode is outside of any other library: the measure for what it is inside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np

import art_gym  # noqa: F401 (registers the environments)

TEXT_IDS = ("art/2048-v0", "art/Email-v0")
REPLIES = ("left", "up", 'search("budget")', "no call, 日本語", "right", "down", "left")
"""Some are calls in the one environment, some in the other, one in neither."""
MOVES = (3, 0, 1, 2, 3, 3, 0, 1, 0, 3)


def played(env: gym.Env[Any, Any], seed: int, actions: Iterable[Any]) -> list[tuple[Any, float, bool, bool]]:
    """Observation, reward, terminated and truncated of a reset and of each step; arrays as lists."""
    observation, _ = env.reset(seed=seed)
    met = [(_plain(observation), 0.0, False, False)]
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        met.append((_plain(observation), float(reward), terminated, truncated))
        if terminated or truncated:
            break
    return met


def mean_score_by_chance(games: int, **options: Any) -> float:
    """Mean score of uniformly random legal moves in the array game."""
    env = gym.make("art/2048Array-v0", **options)
    rng, scores = np.random.default_rng(0), []
    for seed in range(games):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            move = int((info["action_mask"] * rng.random(4)).argmax())
            _, _, terminated, truncated, info = env.step(move)
            over = terminated or truncated
        scores.append(info["score"])
    return float(np.mean(scores))


def _plain(observation: Any) -> Any:
    return observation.tolist() if isinstance(observation, np.ndarray) else observation
