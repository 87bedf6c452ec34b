"""Baseline policies: players that use no model, and the score that they reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

Act = Callable[[str], str]
"""Takes an observation and returns the reply."""
Baseline = Callable[[Any, np.random.Generator], Act]
"""A policy without a model: ``baseline(env, rng)``, called after a reset, returns ``act(observation)``."""


def players(env: gym.Env[Any, Any]) -> dict[str, Baseline]:
    """The environment's scripted players by name: its baselines, then its teachers."""
    bare = env.unwrapped
    return {**getattr(bare, "baselines", {}), **getattr(bare, "teachers", {})}


def noisy(player: Act, random: Act, share: float, rng: np.random.Generator) -> Act:
    """A player with a share of its replies replaced by random ones, so that it fails in various ways."""

    def act(observation: str) -> str:
        # A random reply takes up a turn, but no line of the player's script.
        if rng.random() < share:
            return random(observation)
        try:
            return player(observation)
        except (LookupError, StopIteration):  # the script has no action for this state
            return random(observation)

    return act


def play_on(
    env: gym.Env[Any, Any], act: Act, observation: str
) -> Iterator[tuple[str, str, float, bool, bool, dict[str, Any]]]:
    """Play an episode from an observation to its end; yields each reply and what ``step`` returned for it."""
    ended = False
    while not ended:
        reply = act(observation)
        observation, reward, terminated, truncated, info = env.step(reply)
        yield reply, observation, float(reward), terminated, truncated, info
        ended = terminated or truncated


@dataclass(frozen=True, slots=True)
class PlayerScore:
    """The average result of a scripted player's episodes."""

    reward: float
    """The mean return."""
    error: float
    """The standard error of that mean; NaN for a single episode."""
    success: float
    """The share of episodes that ended with success."""
    turns: float
    """The mean number of replies."""


def play(
    env: gym.Env[Any, Any], name: str, *, episodes: int, split: str | None = None, seed: int = 0
) -> PlayerScore:
    """Let a scripted player play episodes; the same seed gives the same score.

    Args:
        env: The environment.
        name: One of :func:`players`.
        episodes: At least one; episode ``i`` begins from ``seed + i``.
        split: The split whose tasks are played; ``None`` leaves it to the environment.
        seed: The first episode's seed.
    """
    options = None if split is None else {"split": split}
    rewards, successes, turns = [], [], []
    for number in range(episodes):
        observation, _ = env.reset(seed=seed + number, options=options)
        act = players(env)[name](env.unwrapped, np.random.default_rng((seed, number)))
        total, replies, success = 0.0, 0, False
        for _, _, reward, _, _, info in play_on(env, act, observation):
            total, replies, success = total + reward, replies + 1, info.get("success", False)
        rewards.append(total)
        successes.append(float(success))
        turns.append(float(replies))
    error = float(np.std(rewards, ddof=1)) / math.sqrt(episodes) if episodes > 1 else math.nan
    return PlayerScore(float(np.mean(rewards)), error, float(np.mean(successes)), float(np.mean(turns)))
