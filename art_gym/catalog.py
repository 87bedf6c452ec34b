"""Which environments there are, and what is to be known of one."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator

from art_gym.docstrings import summary
from art_gym.errors import did_you_mean

__all__ = ["Entry", "Score", "documented", "entries", "env_spec", "make_game", "play", "players"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One environment of the list.

    Attributes:
        id: For ``gym.make``, or for ``pettingzoo.make`` where it is a game.
        summary: The first sentence of its docstring, or why that cannot be read.
        game: Whether it is a game of several seats, in PettingZoo's registry.
    """

    id: str
    summary: str
    game: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """What a player got.

    Attributes:
        reward: The mean return of an episode.
        error: The standard error of that mean; NaN of a single episode.
        success: The share of episodes that ended with success.
        turns: The mean number of replies.
    """

    reward: float
    error: float
    success: float
    turns: float


def entries() -> list[Entry]:
    """Every environment that does not come with Gymnasium or PettingZoo: ours first, then other packages'.

    Games of several seats are among them where PettingZoo is installed.
    """
    found = [
        Entry(env_id, _summary(spec.entry_point))
        for env_id, spec in gym.registry.items()
        if spec.namespace is not None and not _comes_with("gymnasium", spec.entry_point)
    ]
    for game_id, game in _games().items():
        found.append(Entry(game_id, _summary(game.entry_point), game=True))
    return sorted(found, key=lambda entry: (not entry.id.startswith("art/"), entry.game, entry.id))


def env_spec(env_id: str) -> EnvSpec:
    """The registered environment of this id.

    Raises:
        ValueError: Where there is none, with the nearest id.
    """
    if env_id in _games():
        raise ValueError(
            f"`{env_id}` is a game of several seats: PettingZoo's api_test and check_env hold it"
        )
    if env_id not in gym.registry:
        known = [entry.id for entry in entries() if not entry.game]
        raise ValueError(f"no environment `{env_id}`{did_you_mean(env_id, known)}")
    return gym.registry[env_id]


def make_game(game_id: str, arguments: Mapping[str, Any]) -> Any | None:
    """The game of several seats that has this id; ``None`` where PettingZoo knows none."""
    if game_id not in _games():
        return None
    return importlib.import_module("pettingzoo").make("aec", game_id, **arguments)


def documented(entry_point: str | Callable[..., Any] | None) -> Any:
    """What has the docstring: the class of an entry point, be it a class or a function that makes one.

    Raises:
        ImportError: Where its module cannot be imported.
        AttributeError: Where its module has no such name.
    """
    made = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if not inspect.isfunction(made):
        return made
    returned = typing.get_type_hints(made).get("return")
    return returned if inspect.isclass(returned) and inspect.getdoc(returned) else made


def players(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """The environment's scripted players by name: its baselines, then its teachers."""
    bare = env.unwrapped
    return {**getattr(bare, "baselines", {}), **getattr(bare, "teachers", {})}


def play(
    env: gym.Env[Any, Any], name: str, *, episodes: int, split: str | None = None, seed: int = 0
) -> Score:
    """Let a scripted player play, each episode from a seed of its own.

    Args:
        env: The environment.
        name: One of :func:`players`.
        episodes: How many are played, at least one.
        split: Whose tasks are played; ``None`` leaves it to the environment.
        seed: The first episode's; the same seed gives the same score.
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
    return Score(float(np.mean(rewards)), error, float(np.mean(successes)), float(np.mean(turns)))


def _summary(entry_point: str | Callable[..., Any] | None) -> str:
    """The first sentence of what an entry point leads to, or why it cannot be read."""
    try:
        return summary(documented(entry_point))
    except (ImportError, AttributeError) as error:
        return f"(cannot be loaded: {error})"


def _comes_with(package: str, entry_point: str | Callable[..., Any] | None) -> bool:
    module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return module.split(".")[0].split(":")[0] == package


def _games() -> dict[str, Any]:
    """PettingZoo's registry of AEC games, with ours in it and its own left out; empty without PettingZoo."""
    if importlib.util.find_spec("pettingzoo") is None:
        return {}
    importlib.import_module("art_gym.games")
    registry = importlib.import_module("pettingzoo").aec_registry
    return {
        game_id: spec for game_id, spec in registry.items() if not _comes_with("pettingzoo", spec.entry_point)
    }
