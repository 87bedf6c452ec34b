"""A suite: a fixed list of starts in an environment, and how they are played and measured, as data.

A suite names every task and every seed, so it stays the same when an environment's splits grow or are drawn
otherwise. A hash of what the environment says these tasks are (:mod:`art_trainer.suites.task_list`) goes with
it, so that an environment that has changed is noticed instead of measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from art_gym.errors import did_you_mean
from art_trainer.errors import ConfigError
from art_trainer.evaluation_starts import attempts
from art_trainer.starts import Start

AUTO = "auto"
"""As a metric: success where the environment tells it, else the reward."""


@dataclass(frozen=True, slots=True)
class Suite:
    """What is played.

    Attributes:
        env: The environment's id.
        starts: The task's id (``None`` where episodes differ by seed alone) and the seed of each reset.
        name: What it is called; empty for one that was put together by a command's flags.
        about: One line for the reader.
        env_args: Arguments of the environment, its ``max_turns`` among them.
        split: The split the tasks are of, for the reader.
        seed: What the policy's randomness is derived from.
        samples: Attempts at each start.
        temperature: Sampling temperature of a model; 0 is greedy.
        max_completion_length: Most tokens of one reply of a model.
        metric: What policies are ranked by: ``success``, ``reward``, one of the environment's metrics, or
            :data:`AUTO`.
        task_list_sha256: The hash of what the tasks are; empty where none was taken.

    Raises:
        ConfigError: For values out of range.
    """

    env: str
    starts: tuple[tuple[str | None, int], ...]
    name: str = ""
    about: str = ""
    env_args: Mapping[str, Any] = field(default_factory=dict)
    split: str | None = None
    seed: int = 0
    samples: int = 1
    temperature: float = 0.0
    max_completion_length: int = 256
    metric: str = AUTO
    task_list_sha256: str = ""

    def __post_init__(self) -> None:
        where = f"suite {self.name or self.env}"
        if not self.starts:
            raise ConfigError(f"{where}: starts is empty: list at least one task with its seed")
        for start in self.starts:
            if not _is_start(start):
                raise ConfigError(
                    f"{where}: the start {start!r} is not a task's id (or null) and a seed from 0, as in "
                    "[known-04975, 7]"
                )
        for name, least in (("samples", 1), ("max_completion_length", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{where}: {name} is {getattr(self, name)}: set at least {least}")
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"{where}: temperature is {self.temperature}: set a finite number from 0")

    @property
    def episodes(self) -> int:
        """How many episodes one policy plays."""
        return len(self.starts) * self.samples

    def rollout_starts(self) -> list[Start]:
        """The starts as a rollout takes them, attempts at one start after each other."""
        return [
            start
            for place, (task, seed) in enumerate(self.starts)
            for start in attempts(place, task, seed, seed=self.seed, samples=self.samples)
        ]

    def to_mapping(self) -> dict[str, Any]:
        """A copy for JSON or YAML, without what is at its default."""
        mapping: dict[str, Any] = {}
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if entry.name in ("env", "starts") or value != _default(entry):
                mapping[entry.name] = value
        return {**mapping, "env_args": dict(self.env_args), "starts": [list(start) for start in self.starts]}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], where: str = "the suite") -> Suite:
        """Read a suite from YAML or JSON.

        Args:
            mapping: As :meth:`to_mapping` gives it.
            where: What an error calls it.

        Raises:
            ConfigError: For a name that is not known, one that is missing, or a value of a wrong type.
        """
        kinds = {entry.name: _KINDS[entry.name] for entry in dataclasses.fields(cls)}
        for name, value in mapping.items():
            if name not in kinds:
                raise ConfigError(f"{where}: nothing is called `{name}`{did_you_mean(str(name), kinds)}")
            if not isinstance(value, kinds[name]) or isinstance(value, bool):
                wanted = " or ".join(kind.__name__ for kind in kinds[name])
                raise ConfigError(f"{where}: {name} is {value!r}: set a value of type {wanted}")
        for name in ("env", "starts"):
            if name not in mapping:
                raise ConfigError(f"{where}: {name} is missing")
        starts = tuple(tuple(start) if isinstance(start, Sequence) else start for start in mapping["starts"])
        return cls(**{**mapping, "starts": starts})


_TEXT, _WHOLE = (str,), (int,)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "env": _TEXT,
    "starts": (list, tuple),
    "name": _TEXT,
    "about": _TEXT,
    "env_args": (dict,),
    "split": (str, type(None)),
    "seed": _WHOLE,
    "samples": _WHOLE,
    "temperature": (int, float),
    "max_completion_length": _WHOLE,
    "metric": _TEXT,
    "task_list_sha256": _TEXT,
}


def _is_start(start: object) -> bool:
    if not isinstance(start, tuple) or len(start) != 2:
        return False
    task, seed = start
    whole = isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0
    return whole and (task is None or isinstance(task, str))


def _default(entry: dataclasses.Field[Any]) -> Any:
    return entry.default_factory() if callable(entry.default_factory) else entry.default
