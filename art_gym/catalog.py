"""The list of registered environments, and their docstrings."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from art_gym.arguments import check_arguments
from art_gym.errors import did_you_mean

__all__ = ["EnvEntry", "documented_class", "entries", "env_spec", "games", "make_game", "sections", "summary"]

EntryPoint = str | Callable[..., Any] | None
_HEADING = re.compile(r"^#+[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """A registered environment."""

    id: str
    """The id for ``gym.make``, or for ``pettingzoo.make`` if it is a game."""
    summary: str
    """The first sentence of its docstring, or why that cannot be read."""
    game: bool = False
    """Whether it is a game with several seats, in PettingZoo's registry."""


def entries() -> list[EnvEntry]:
    """List every environment that does not come with Gymnasium or PettingZoo, this project's first.

    Games are included if PettingZoo is installed.
    """
    found = [
        EnvEntry(env_id, _summary(spec.entry_point))
        for env_id, spec in gym.registry.items()
        if spec.namespace is not None and not _comes_with("gymnasium", spec.entry_point)
    ]
    found += [EnvEntry(game_id, _summary(game.entry_point), game=True) for game_id, game in games().items()]
    return sorted(found, key=lambda entry: (not entry.id.startswith("art/"), entry.game, entry.id))


def games() -> dict[str, Any]:
    """PettingZoo's registry of AEC games without PettingZoo's own games; empty without PettingZoo."""
    if importlib.util.find_spec("pettingzoo") is None:
        return {}
    registry = importlib.import_module("pettingzoo").aec_registry
    return {
        game_id: spec for game_id, spec in registry.items() if not _comes_with("pettingzoo", spec.entry_point)
    }


def env_spec(env_id: str) -> EnvSpec:
    """Return the spec of a registered environment.

    Raises:
        ValueError: If there is none; the message suggests the nearest id.
    """
    if env_id in games():
        raise ValueError(
            f"`{env_id}` is a game with several seats: pettingzoo.make('aec', …) makes it, PettingZoo's "
            "api_test checks it, and art-trainer self-play trains in it"
        )
    if env_id not in gym.registry:
        known = [entry.id for entry in entries() if not entry.game]
        raise ValueError(f"no environment `{env_id}`{did_you_mean(env_id, known)} ({own_file(env_id)})")
    return gym.registry[env_id]


def own_file(env_id: str) -> str:
    """How an environment in a file of the user's own is named."""
    return f"one of your own is named by its file: my_env.py, or my_env.py:{env_id}"


def check_env_arguments(env_id: str, arguments: Mapping[str, Any]) -> None:
    """Check the arguments of an environment or game, if one of this id is registered, without making it.

    Raises:
        EnvArgumentError: If it does not take them.
        ImportError: If it cannot be imported.
    """
    spec = gym.registry.get(env_id) or games().get(env_id)
    if spec is not None:
        check_arguments(env_id, spec.entry_point, arguments)


def make_game(game_id: str, arguments: Mapping[str, Any]) -> Any | None:
    """Make a game with several seats; ``None`` if PettingZoo knows no game of this id."""
    if game_id not in games():
        return None
    check_env_arguments(game_id, arguments)
    return importlib.import_module("pettingzoo").make("aec", game_id, **arguments)


def defining_module(entry_point: EntryPoint) -> str:
    """The name of the module that defines an entry point."""
    named = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return str(named).partition(":")[0]


def documented_class(entry_point: EntryPoint) -> Any:
    """Return the object whose docstring describes an entry point: its class, or the class that it makes.

    Raises:
        ImportError: If its module cannot be imported.
        AttributeError: If its module has no such name.
    """
    made = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if not inspect.isfunction(made):
        return made
    returned = typing.get_type_hints(made).get("return")
    return returned if inspect.isclass(returned) and inspect.getdoc(returned) else made


def summary(made: object) -> str:
    """Return the first sentence of a docstring on one line; empty without a docstring."""
    first = (inspect.getdoc(made) or "").strip().split("\n\n")[0]
    return _plain(" ".join(first.split()))


def sections(made: object) -> dict[str, str]:
    """Return the text below each heading of a docstring, by heading and in its order."""
    parts = _HEADING.split(inspect.getdoc(made) or "")
    return {title: _plain(text).strip("\n") for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def _plain(text: str) -> str:
    """Remove reStructuredText's roles."""
    return _ROLE.sub(r"``\1``", text)


def _summary(entry_point: EntryPoint) -> str:
    try:
        return summary(documented_class(entry_point))
    except (ImportError, AttributeError) as error:
        return f"(cannot be loaded: {error})"


def _comes_with(package: str, entry_point: EntryPoint) -> bool:
    return defining_module(entry_point).partition(".")[0] == package
