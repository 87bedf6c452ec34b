"""What the adapters share: optional imports, known ids, split tasks, free-text actions, and replays."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any, ClassVar

import gymnasium as gym

from art_gym.errors import did_you_mean
from art_gym.spaces import UnicodeText
from art_gym.tasks import Task, TaskSet
from art_gym.tools import Outcome
from art_gym.wrappers.text_adapter import TextAdapter


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


class FreeTextEnv(gym.Env[str, str]):
    """Base of an environment with Gymnasium's interface around a library with another one."""

    def __init__(self) -> None:
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()


class ReplayedAdapter(TextAdapter):
    """Base of an adapter whose environment cannot be copied: what was said is said again instead.

    A snapshot, a copy and a pickle hold the episode's task, seed and replies. The first step after one is
    restored plays them again, so the environment must answer the same each time. Its attribute ``past`` is
    the adapter's, to see whether the two are at the same place.
    """

    shared: ClassVar[tuple[str, ...]] = (*TextAdapter.shared, "env")
    _past: tuple[Any, ...] = ()

    def restart(self, task: Task, seed: int) -> tuple[Any, dict[str, Any]]:
        """Reset the environment for a task."""
        self._past = self.env.past = (task, seed)
        return super().restart(task, seed)

    def _advance(self, action: Any) -> Outcome:
        if self.env.past is not self._past:
            task, seed, *replies = past = self._past
            with self._global_random(seed):
                self.restart(task, seed)
                for reply in replies:
                    self.env.step(reply)
            self._past = past
        outcome = super()._advance(action)
        self._past = self.env.past = (*self._past, action)
        return outcome
