"""Trajectories of an environment under test: what each call returned, serialised at once to be compared."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from art_gym.testing.rules import Rule, broken, must_not_raise

_RETURNED = ("observation", "reward", "terminated", "truncated", "info")
_TRIES = 4
_SHOWN = 80  # code points of a reply in an error message


@dataclass(frozen=True)
class Transition:
    """What one call of ``reset`` or ``step`` returned."""

    reply: str | None
    """The reply; ``None`` for a reset."""
    observation: str
    info: dict[str, Any]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    frozen: tuple[str, ...] = field(init=False)
    """Each value that was returned, as JSON written before anything could change it."""

    def __post_init__(self) -> None:
        returned = (self.observation, self.reward, self.terminated, self.truncated, self.info)
        frozen = (json.dumps(part, sort_keys=True, ensure_ascii=False, default=repr) for part in returned)
        object.__setattr__(self, "frozen", tuple(frozen))

    @property
    def ended(self) -> bool:
        """Whether the episode was over after this call."""
        return self.terminated or self.truncated


Trajectory = list[Transition]
"""An episode or its beginning: a reset, then steps."""


def quoted(reply: str | None) -> str:
    """A reply, or a reset, for an error message."""
    if reply is None:
        return "reset"
    cut = f"… ({len(reply):,} code points)" if len(reply) > _SHOWN else ""
    return f"the reply {reply[:_SHOWN]!r}{cut}"


def reset(env: Any, seed: int | None = None, options: dict[str, Any] | None = None) -> Transition:
    """Reset and check the types of what came back."""
    with must_not_raise(Rule.RESETS, f"reset(seed={seed}, options={options})"):
        result = env.reset(seed=seed, options=options)
    if not isinstance(result, tuple) or len(result) != 2:
        raise broken(Rule.RESETS, f"It returned {type(result).__name__}, not a pair.")
    observation, info = result
    if not isinstance(observation, str) or not _is_info(info):
        raise broken(Rule.RESETS, f"It returned a {type(observation).__name__} and {_kind(info)}.")
    return Transition(None, observation, info)


def step(env: Any, reply: str, rule: Rule = Rule.NEVER_RAISES) -> Transition:
    """Step and check the types of what came back; ``rule`` is broken if the step raises."""
    with must_not_raise(rule, quoted(reply)):
        result = env.step(reply)
    if not isinstance(result, tuple) or len(result) != 5:
        raise broken(Rule.STEPS, f"After {quoted(reply)} it returned {type(result).__name__}, not a 5-tuple.")
    observation, reward, terminated, truncated, info = result
    exact = type(reward) is float and type(terminated) is bool and type(truncated) is bool
    if not (isinstance(observation, str) and exact and _is_info(info)):
        kinds = ", ".join(type(part).__name__ for part in result[:4])
        raise broken(Rule.STEPS, f"After {quoted(reply)} it returned {kinds} and {_kind(info)}.")
    return Transition(reply, observation, info, reward, terminated, truncated)


def replay(env: Any, seed: int | None, replies: Iterable[str]) -> Trajectory:
    """Reset with a seed and give these replies, as many as the episode takes."""
    return [reset(env, seed), *follow(env, replies)]


def follow(env: Any, replies: Iterable[str], rule: Rule = Rule.NEVER_RAISES) -> Trajectory:
    """Give these replies in a running episode, as many as it takes."""
    trajectory: Trajectory = []
    for reply in replies:
        trajectory.append(step(env, reply, rule))
        if trajectory[-1].ended:
            break
    return trajectory


def replies_of(trajectory: Trajectory) -> list[str]:
    """The replies of a trajectory."""
    return [seen.reply for seen in trajectory if seen.reply is not None]


def difference(expected: Trajectory, actual: Trajectory) -> str | None:
    """Describe where two trajectories differ; ``None`` if they are equal."""
    for place, (one, other) in enumerate(zip(expected, actual, strict=False)):
        if one.frozen != other.frozen:
            return f"At turn {place}, after {quoted(one.reply)}: {_first_difference(one, other)}."
    if len(expected) != len(actual):
        return f"One episode took {len(expected) - 1} turns, the other {len(actual) - 1}."
    return None


def _first_difference(one: Transition, other: Transition) -> str:
    """Describe the first returned value that differs, around the position of the difference."""
    values = zip(_RETURNED, one.frozen, other.frozen, strict=True)
    name, before, after = next(value for value in values if value[1] != value[2])
    places = enumerate(zip(before, after, strict=False))
    same = next((place for place, (a, b) in places if a != b), min(len(before), len(after)))
    part = slice(max(0, same - _SHOWN // 2), same + _SHOWN // 2)
    return f"{name} …{before[part]}… became …{after[part]}…"


class Subject:
    """An environment under test, with the trajectories that several checks look at.

    Args:
        env: A new environment.
        seeds: The seeds of the episodes.
        steps: The most turns of an episode.
    """

    def __init__(self, env: gym.Env[Any, Any], seeds: Iterable[int], steps: int) -> None:
        self.env: Any = env.unwrapped
        self.seeds = tuple(seeds)
        self.steps = steps
        self._pristine = copy.deepcopy(self.env) if self.env.spec is None else None
        self._others: list[Any] = []

    def another(self) -> Any:
        """One more instance: from the spec, or else a copy of the environment as it was handed in."""
        if self._pristine is not None:
            return self.adopt(copy.deepcopy(self._pristine))
        return self.adopt(self.env.spec.make().unwrapped)

    def adopt(self, env: Any) -> Any:
        """Take an instance that :meth:`close` closes."""
        self._others.append(env)
        return env

    def close(self) -> None:
        """Close all instances but the one under test, which is the caller's."""
        for env in self._others:
            env.close()

    @cached_property
    def random_episodes(self) -> dict[int, Trajectory]:
        """For each seed an episode of random valid calls: the longest of some, as many end at once."""
        tries = range(_TRIES)
        return {seed: max((self._random_episode(seed, n) for n in tries), key=len) for seed in self.seeds}

    @cached_property
    def wasted_episode(self) -> Trajectory:
        """An episode of empty replies, to its end."""
        return replay(self.env, self.seeds[0], [""] * (self.env.max_turns + 1))

    @property
    def episodes(self) -> list[Trajectory]:
        """All of them."""
        return [*self.random_episodes.values(), self.wasted_episode]

    @property
    def transitions(self) -> list[Transition]:
        """Every transition of every episode."""
        return [seen for episode in self.episodes for seen in episode]

    def _random_episode(self, seed: int, chance: int) -> Trajectory:
        episode = [reset(self.env, seed)]
        with must_not_raise(Rule.BASELINE, "making it"):
            act = self.env.baselines["random"](self.env, np.random.default_rng((seed, chance)))
        while not episode[-1].ended and len(episode) <= self.steps:
            with must_not_raise(Rule.BASELINE, f"its reply to {episode[-1].observation[-_SHOWN:]!r}"):
                reply = act(episode[-1].observation)
            episode.append(step(self.env, reply))
        return episode


def _is_info(info: Any) -> bool:
    return type(info) is dict and all(type(key) is str for key in info)


def _kind(info: Any) -> str:
    return f"a dict with the keys {list(info)}" if isinstance(info, dict) else f"a {type(info).__name__}"
