"""What the adapters share: optional imports, known ids, split tasks, free-text actions, and optimal play."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from art_gym.errors import did_you_mean
from art_gym.spaces import UnicodeText
from art_gym.tasks import Task, TaskSet
from art_gym.wrappers.text_adapter import EpisodeProgress


def import_optional(module: str, install: str) -> ModuleType:
    """Import a library that an adapter needs; ``install`` is its name for ``pip install``.

    Raises:
        ModuleNotFoundError: If it is missing, or something that it needs; the message says what to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"this environment needs {module}, which cannot be imported ({missing}): pip install {install}",
            name=missing.name,
        ) from missing


def require_known(library: str, kind: str, name: str, known: Collection[str]) -> None:
    """Raise ``ValueError`` if a library has no environment of this name."""
    if name not in known:
        raise ValueError(f"{library} has no {kind} `{name}`{did_you_mean(name, known)}")


def split_tasks(sizes: Mapping[str, int], data: Callable[[int], Mapping[str, Any]]) -> TaskSet:
    """Number tasks through all splits: task ``n`` of the whole set has ``data(n)``."""
    names = [(split, place) for split, size in sizes.items() for place in range(size)]
    return TaskSet(
        Task(f"{split}-{place}", "", split, data(number)) for number, (split, place) in enumerate(names)
    )


def positive_return(progress: EpisodeProgress) -> bool:
    """Whether the environment's rewards sum to more than 0."""
    return progress.env_return > 0


class FreeTextEnv(gym.Env[str, str]):
    """Base of an environment with Gymnasium's interface around a library with another one."""

    def __init__(self) -> None:
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()


_SWEEPS = 300
_DISCOUNT = 0.999
_NOWHERE = (0.0, 0, 0, True)
_MOST_OUTCOMES = 3


def action_values(chances: Mapping[int, Mapping[int, Sequence[tuple[Any, ...]]]]) -> NDArray[np.float64]:
    """What each action is worth in each state to an optimal policy, by value iteration.

    Args:
        chances: By state and action the outcomes: probability, next state, reward, whether the episode ends.
            At most three outcomes.

    Returns:
        Expected returns, later rewards counting a little less; shape (states, actions).
    """
    outcomes = np.array(
        [
            [(*chances[state][action], _NOWHERE, _NOWHERE)[:_MOST_OUTCOMES] for action in chances[state]]
            for state in chances
        ]
    )
    chance, after, reward, over = np.moveaxis(outcomes, -1, 0)
    after = after.astype(int)
    values = np.zeros(chance.shape[:2])
    for _ in range(_SWEEPS):
        later = np.where(over, 0, values.max(axis=1)[after])
        values = (chance * (reward + _DISCOUNT * later)).sum(axis=2)
    return values


def best_action(values: NDArray[np.float64], rng: np.random.Generator) -> int:
    """One of the best actions, given what each is worth; equal ones are equally likely."""
    best = np.flatnonzero(values >= values.max() - 1e-9)
    return int(best[rng.integers(len(best))])
