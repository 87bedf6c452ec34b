"""Degenerate policies: what a trainer finds first if a reward pays for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from art_gym.baselines import Act, Baseline

CONSTANT = "I do not know."
_TRIES = 50


def degenerate_policies(env: Any, endings: Iterable[str] = ()) -> dict[str, Baseline]:
    """Policies that do not try, by what they do.

    They say nothing, say the same words, copy the observation, or repeat their first valid call. For every
    call that ends an episode there is one that makes it at once, and one that first makes random calls.

    Args:
        env: A text environment with ``tools``, ``max_turns`` and ``baselines["random"]``.
        endings: More replies that end an episode without trying, such as ``answer("unknown")``.
    """
    ends = {name: item for name, item in env.tools.items() if getattr(item, "ends", False)}
    replies = [*(item.example() for item in ends.values()), *endings]
    looks = partial(_looking, ends=tuple(ends))
    made: dict[str, Baseline] = {
        "saying nothing": partial(constant, reply=""),
        f'saying "{CONSTANT}"': partial(constant, reply=CONSTANT),
        "copying the observation": _copying,
        "repeating its first call": _repeating,
    }
    made |= {f"replying {reply} at once": partial(constant, reply=reply) for reply in replies}
    return made | {f"replying {reply} after random calls": partial(looks, reply=reply) for reply in replies}


def constant(env: Any, rng: np.random.Generator, reply: str) -> Act:
    """Give the same reply at every turn."""
    return lambda observation: reply


def _copying(env: Any, rng: np.random.Generator) -> Act:
    return lambda observation: observation


def _repeating(env: Any, rng: np.random.Generator) -> Act:
    act, first = env.baselines["random"](env, rng), list[str]()

    def repeat(observation: str) -> str:
        if not first:
            first.append(act(observation))
        return first[0]

    return repeat


def _looking(env: Any, rng: np.random.Generator, reply: str, ends: tuple[str, ...]) -> Act:
    """Random calls that do not end the episode, in all turns but the last, then the reply."""
    act, turn = env.baselines["random"](env, rng), 0

    def look(observation: str) -> str:
        nonlocal turn
        turn += 1
        if turn >= env.max_turns:
            return reply
        tries = (act(observation) for _ in range(_TRIES))
        return next(
            (call for call in tries if not any(re.search(rf"\b{name}\b", call) for name in ends)), reply
        )

    return look
