"""Environments by name: an id, ``module:id``, or the file that defines them.

Every command reads names here. A file is imported as a module of its own name with its folder on
``sys.path``: it can import its neighbours, and what one process pickles can be loaded in another.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym

from art_gym.arguments import check_arguments
from art_gym.catalog import defining_module, env_spec
from art_gym.env import TextEnv
from art_gym.errors import EnvLookupError, did_you_mean, user_line

NAMESPACE = "mine"
"""The namespace of an environment whose author chose none."""
_PACKAGE = "__init__.py"
_registered_by: dict[Path, list[str]] = {}
"""The ids of each file that was imported here."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundEnv:
    """An environment that a name stands for."""

    id: str
    """Its id for ``gym.make`` or, if it is a game, for ``pettingzoo.make``."""
    name: str
    """The name that finds it from any folder: ``/home/me/guess.py:mine/Guess-v0`` if a file defines it."""


def find_env(name: str) -> FoundEnv:
    """Import what a name says, and return the environment's id.

    Args:
        name: ``art/Email-v0``; ``module:mine/Guess-v0``, whose module may lie in the current folder;
            ``guess.py`` for the only environment of a file; or ``guess.py:mine/Guess-v0``.

    Raises:
        EnvLookupError: If the file or module is missing, cannot be imported, or has no such environment.
    """
    head, _, env_id = name.rpartition(":")
    if env_id.endswith(".py"):
        head, env_id = name, ""
    if not head:
        return FoundEnv(env_id, name)
    file = Path(head) if head.endswith(".py") else _file_here(head)
    if file is None:
        try:
            importlib.import_module(head)
        except ModuleNotFoundError as error:
            missing = f"{name} needs a module that is neither in {Path.cwd()} nor installed: {error}"
            raise EnvLookupError(missing) from error
        return FoundEnv(env_id, name)
    path = file.expanduser().resolve()
    known = _ids_of(path)
    env_id = env_id or _only(path, known)
    if env_id not in _registry():
        raise EnvLookupError(f"{path} has no environment `{env_id}`{did_you_mean(env_id, known)}")
    return FoundEnv(env_id, f"{path}:{env_id}")


def make_env(name: str, arguments: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Find an environment, check its arguments and make it.

    Raises:
        EnvLookupError: As :func:`find_env`.
        EnvArgumentError: If it does not take these arguments.
        ValueError: If it is not registered, a game with several seats, or lacks what Gymnasium asks for.
    """
    env_id = find_env(name).id
    check_arguments(env_id, env_spec(env_id).entry_point, arguments)
    try:
        env = gym.make(env_id, **arguments)
        _ = env.observation_space, env.action_space  # Gymnasium's checker may be switched off
        return env
    except (AttributeError, AssertionError) as error:  # of Gymnasium, if there are no spaces
        if user_line(error) is not None:
            raise
        raise ValueError(f"{env_id}: {error}") from error


def _file_here(module: str) -> Path | None:
    """Make the current folder importable; return the file of a module or package of that folder."""
    here = Path.cwd()
    _add_to_path(here)
    for file in (here / f"{module}.py", here / module / _PACKAGE):
        if file.is_file() and _origin(module) == file.resolve():
            return file
    return None


def _add_to_path(folder: Path) -> None:
    # At the end, so that a file there hides no module of Python's or of a library.
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()


def _origin(module: str) -> Path | None:
    """The file of a module that could be imported; Python's own for one that is built in."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # no parent package, or a module without a spec, such as __main__
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin if spec.has_location else sys.executable).resolve()


def _ids_of(path: Path) -> list[str]:
    """Import a file once; return the ids that it registers."""
    if path not in _registered_by:
        before, loaded = set(_registry()), {*sys.modules}
        module = _import_file(path)
        home = {env_id: defining_module(spec.entry_point) for env_id, spec in _registry().items()}
        own = [env_id for env_id in home if _is_of(module, home[env_id])]
        new = [env_id for env_id in home if env_id not in before]
        # A file may also import a module that registers some of its own, or hundreds.
        here = [env_id for env_id in new if home[env_id] not in sys.modules.keys() - loaded]
        _registered_by[path] = own or here or _register_class(path, module, new)
    return _registered_by[path]


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise EnvLookupError(
            f"there is no file {path} on this machine: copy it here, or name it where it is now"
        )
    name, folder = path.stem, path.parent
    if path.name == _PACKAGE:
        name, folder = folder.name, folder.parent
    _add_to_path(folder)
    taken = _origin(name)
    if taken != path:
        raise EnvLookupError(
            f"{path} cannot be imported as `{name}`"
            f"{f', which is {taken}' if taken else ': use letters, digits and _'}; rename the file"
        )
    try:
        return importlib.import_module(name)
    except Exception as error:  # the author's code may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path]
        where = f", line {lines[-1]}" if lines else ""
        raise EnvLookupError(f"{path}{where}: {type(error).__name__}: {error}") from error


def _is_of(module: ModuleType, home: str) -> bool:
    """Whether a module is this one, or a part of this package."""
    return f"{home}.".startswith(f"{module.__name__}.")


def _register_class(path: Path, module: ModuleType, others: list[str]) -> list[str]:
    """Register the only environment class of a file that registers nothing; without one, take the others."""
    classes = [one for one in vars(module).values() if inspect.isclass(one) and issubclass(one, TextEnv)]
    classes = [one for one in classes if one.tools and _is_of(module, one.__module__)]
    if others and not classes:
        return others
    if len(classes) != 1:
        names = ", ".join(found.__name__ for found in classes)
        what = (
            f"several environment classes ({names})"
            if names
            else "no class derived from TextEnv that has a @tool"
        )
        raise EnvLookupError(
            f'{path} registers no environment and has {what}: add gym.register("mine/Name-v0", entry_point=…)'
            ', or for a game of several seats pettingzoo.register("aec", "mine/Name-v0", entry_point=…)'
        )
    name = classes[0].__name__
    env_id = f"{NAMESPACE}/{name.removesuffix('Env') or name}-v0"
    if env_id in _registry():
        raise EnvLookupError(f"{path} registers nothing, and {env_id} exists already: register {name} there")
    _log.info("%s registers nothing: its class %s is %s.", path.name, name, env_id)
    entry_point = f"{module.__name__}:{name}"
    gym.register(env_id, entry_point=entry_point, order_enforce=False, disable_env_checker=True)
    return [env_id]


def _only(path: Path, ids: list[str]) -> str:
    if len(ids) > 1:
        listed = ", ".join(ids[:10]) + ", …" * (len(ids) > 10)
        example = f"{path.name}:{ids[0]}"
        raise EnvLookupError(f"{path} registers several environments, {listed}: name one, as in {example}")
    return ids[0]


def _registry() -> dict[str, Any]:
    """Everything that is registered: environments and, if PettingZoo is loaded, games."""
    pettingzoo = sys.modules.get("pettingzoo")
    return {**gym.registry, **(pettingzoo.aec_registry if pettingzoo else {})}
