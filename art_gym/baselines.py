"""Baseline policies: players that use no model, and the score that they reach."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from art_gym.parameters import Code, Parameter
from art_gym.tools import Tool

Act = Callable[[str], str]
"""Takes an observation and returns the reply."""
Baseline = Callable[[Any, np.random.Generator], Act]
"""A policy without a model: ``baseline(env, rng)``, called after a reset, returns ``act(observation)``."""

_OPTIONAL_GIVEN = 0.25  # how often an optional argument is given


def random_calls(env: Any, rng: np.random.Generator) -> Act:
    """Return a player that calls a random tool with random arguments of the right types.

    An argument is one of the tool's declared examples; without any, a text is made of words of the latest
    observation. An environment whose arguments need more than that, such as an id that exists, should define
    its own ``baselines["random"]``.
    """
    tools: tuple[Tool, ...] = tuple(env.tools.values())

    def act(observation: str) -> str:
        words = re.findall(r"\w+", observation[-500:]) or ["text"]
        chosen = tools[int(rng.integers(len(tools)))]
        arguments = {
            parameter.name: _value(parameter, words, rng)
            for parameter in chosen.parameters
            if parameter.required or rng.random() < _OPTIONAL_GIVEN
        }
        return chosen.render(arguments)

    return act


def _value(parameter: Parameter, words: list[str], rng: np.random.Generator) -> Any:
    if parameter.examples:
        return parameter.examples[int(rng.integers(len(parameter.examples)))]
    if parameter.kind is Literal:
        return parameter.choices[int(rng.integers(len(parameter.choices)))]
    if parameter.kind is list:
        return [_single(parameter.item, words, rng) for _ in range(int(rng.integers(1, 3)))]
    return _single(parameter.kind, words, rng)


def _single(kind: Any, words: list[str], rng: np.random.Generator) -> Any:
    if kind is bool:
        return bool(rng.integers(2))
    if kind is int:
        return int(rng.integers(1, 10))
    if kind is float:
        return round(float(rng.random()), 3)
    if kind is date:
        return date(2023, 1, 1) + timedelta(days=int(rng.integers(730)))
    if kind is Code:
        return f"print({int(rng.integers(10))})"
    return " ".join(words[int(rng.integers(len(words)))] for _ in range(int(rng.integers(1, 4))))


def players(env: gym.Env[Any, Any]) -> dict[str, Baseline]:
    """The environment's scripted players by name: its baselines, then its teachers."""
    bare = env.unwrapped
    return {**getattr(bare, "baselines", {}), **getattr(bare, "teachers", {})}


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
        observation, info = env.reset(seed=seed + number, options=options)
        act = players(env)[name](env.unwrapped, np.random.default_rng((seed, number)))
        total, replies, ended = 0.0, 0, False
        while not ended:
            observation, reward, terminated, truncated, info = env.step(act(observation))
            total, replies, ended = total + float(reward), replies + 1, terminated or truncated
        rewards.append(total)
        successes.append(float(info.get("success", False)))
        turns.append(float(replies))
    error = float(np.std(rewards, ddof=1)) / math.sqrt(episodes) if episodes > 1 else math.nan
    return PlayerScore(float(np.mean(rewards)), error, float(np.mean(successes)), float(np.mean(turns)))
