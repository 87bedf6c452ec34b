"""The player that every text environment has without writing one: random valid calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any, Literal

import numpy as np

from art_gym.parameters import Code, Parameter
from art_gym.tools import Tool

_OPTIONAL_GIVEN = 0.25  # how often an optional argument is given


def random_calls(env: Any, rng: np.random.Generator) -> Callable[[str], str]:
    """A player that calls a random tool with random arguments of the right types.

    Text arguments are words of the latest observation. An environment whose arguments need more than the
    right type (an id that exists) should put a better one in its ``baselines["random"]``.

    Args:
        env: The environment, for its tools.
        rng: Where the choices come from.
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
