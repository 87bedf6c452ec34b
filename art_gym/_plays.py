"""How the conformance kit plays an environment: what each call returned, frozen at once, to be compared."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from art_gym.errors import ContractError

RESETS = "reset must return a str and a dict with str keys, and never raise for a seed."
NEVER_RAISES = "step must not raise for what a model said."
BASELINE = "baselines['random'] must reply with valid calls."
STEPS = "step must return a str, a float, two bools and a dict with str keys, all of exactly these types."

_RETURNED = ("observation", "reward", "terminated", "truncated", "info")
_TRIES = 4
_SHOWN = 80  # code points of a reply in an error message


@dataclass(frozen=True)
class Seen:
    """What one call of ``reset`` or ``step`` returned.

    Attributes:
        reply: What was said; ``None`` for a reset.
        frozen: Each value that was returned, as JSON written before anything could change it.
    """

    reply: str | None
    observation: str
    info: dict[str, Any]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    frozen: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        returned = (self.observation, self.reward, self.terminated, self.truncated, self.info)
        frozen = (json.dumps(part, sort_keys=True, ensure_ascii=False, default=repr) for part in returned)
        object.__setattr__(self, "frozen", tuple(frozen))

    @property
    def ended(self) -> bool:
        """Whether the episode was over after this call."""
        return self.terminated or self.truncated


Play = list[Seen]
"""An episode or its beginning: a reset, then steps."""


def fail(sentence: str, detail: str) -> ContractError:
    """The error for a broken sentence, to be raised."""
    return ContractError(f"{sentence} {detail}")


def quoted(reply: str | None) -> str:
    """A reply, or a reset, for an error message."""
    if reply is None:
        return "reset"
    cut = f"… ({len(reply):,} code points)" if len(reply) > _SHOWN else ""
    return f"the reply {reply[:_SHOWN]!r}{cut}"


@contextlib.contextmanager
def promised(sentence: str, doing: str) -> Iterator[None]:
    """Turn any error of an environment while ``doing`` something into one about the broken sentence."""
    try:
        yield
    except ContractError:
        raise
    except Exception as error:
        raise fail(sentence, f"{doing} raised {type(error).__name__}: {error}") from error


def reset(env: Any, seed: int | None = None, options: dict[str, Any] | None = None) -> Seen:
    """Reset and look at what came back.

    Raises:
        ContractError: If that is not what the contract promises.
    """
    with promised(RESETS, f"reset(seed={seed}, options={options})"):
        result = env.reset(seed=seed, options=options)
    if not isinstance(result, tuple) or len(result) != 2:
        raise fail(RESETS, f"It returned {type(result).__name__}, not a pair.")
    observation, info = result
    if not isinstance(observation, str) or not _is_info(info):
        raise fail(RESETS, f"It returned a {type(observation).__name__} and {_kind(info)}.")
    return Seen(None, observation, info)


def step(env: Any, reply: str, sentence: str = NEVER_RAISES) -> Seen:
    """Step and look at what came back.

    Args:
        env: The environment.
        reply: What is said to it.
        sentence: The sentence that is broken where the step raises.

    Raises:
        ContractError: If that is not what the contract promises.
    """
    with promised(sentence, quoted(reply)):
        result = env.step(reply)
    if not isinstance(result, tuple) or len(result) != 5:
        raise fail(STEPS, f"After {quoted(reply)} it returned {type(result).__name__}, not a 5-tuple.")
    observation, reward, terminated, truncated, info = result
    exact = type(reward) is float and type(terminated) is bool and type(truncated) is bool
    if not (isinstance(observation, str) and exact and _is_info(info)):
        kinds = ", ".join(type(part).__name__ for part in result[:4])
        raise fail(STEPS, f"After {quoted(reply)} it returned {kinds} and {_kind(info)}.")
    return Seen(reply, observation, info, reward, terminated, truncated)


def replay(env: Any, seed: int | None, replies: Iterable[str]) -> Play:
    """Reset with a seed and say these replies, as many as the episode takes."""
    play = [reset(env, seed)]
    return play + follow(env, replies)


def follow(env: Any, replies: Iterable[str], sentence: str = NEVER_RAISES) -> Play:
    """Say these replies in a running episode, as many as it takes."""
    play: Play = []
    for reply in replies:
        play.append(step(env, reply, sentence))
        if play[-1].ended:
            break
    return play


def replies_of(play: Play) -> list[str]:
    """What was said in a play."""
    return [seen.reply for seen in play if seen.reply is not None]


def difference(expected: Play, actual: Play) -> str | None:
    """Where two plays differ, in words; ``None`` where they do not."""
    for place, (one, other) in enumerate(zip(expected, actual, strict=False)):
        if one.frozen != other.frozen:
            return f"At turn {place}, after {quoted(one.reply)}: {_first_difference(one, other)}."
    if len(expected) != len(actual):
        return f"One play took {len(expected) - 1} turns, the other {len(actual) - 1}."
    return None


def _first_difference(one: Seen, other: Seen) -> str:
    """The first returned value that differs, around the place where it does."""
    values = zip(_RETURNED, one.frozen, other.frozen, strict=True)
    name, before, after = next(value for value in values if value[1] != value[2])
    places = enumerate(zip(before, after, strict=False))
    same = next((place for place, (a, b) in places if a != b), min(len(before), len(after)))
    part = slice(max(0, same - _SHOWN // 2), same + _SHOWN // 2)
    return f"{name} …{before[part]}… became …{after[part]}…"


class Case:
    """An environment under test, with the plays that several checks look at.

    Args:
        env: A new environment.
        seeds: The seeds of the plays.
        steps: The most turns of a play.
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
    def random_plays(self) -> dict[int, Play]:
        """For each seed an episode of random valid calls: the longest of some, for many end at once."""
        tries = range(_TRIES)
        return {seed: max((self._random_play(seed, n) for n in tries), key=len) for seed in self.seeds}

    @cached_property
    def wasted_play(self) -> Play:
        """An episode of empty replies, to its end."""
        return replay(self.env, self.seeds[0], [""] * (self.env.max_turns + 1))

    @property
    def plays(self) -> list[Play]:
        """All of them."""
        return [*self.random_plays.values(), self.wasted_play]

    def _random_play(self, seed: int, chance: int) -> Play:
        play = [reset(self.env, seed)]
        with promised(BASELINE, "making it"):
            act = self.env.baselines["random"](self.env, np.random.default_rng((seed, chance)))
        while not play[-1].ended and len(play) <= self.steps:
            with promised(BASELINE, f"its reply to {play[-1].observation[-_SHOWN:]!r}"):
                reply = act(play[-1].observation)
            play.append(step(self.env, reply))
        return play


def _is_info(info: Any) -> bool:
    return type(info) is dict and all(type(key) is str for key in info)


def _kind(info: Any) -> str:
    return f"a dict with the keys {list(info)}" if isinstance(info, dict) else f"a {type(info).__name__}"
