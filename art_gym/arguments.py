"""Check an environment's arguments before it is made: their names and, if it declares them, their types."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, Literal

from gymnasium.envs.registration import load_env_creator

from art_gym.errors import EnvArgumentError, did_you_mean

_OF_MAKE = ("max_episode_steps", "disable_env_checker")
"""Arguments of ``gym.make`` itself."""
_TYPES: dict[Any, tuple[str, Any]] = {
    int: ("a whole number", Integral),
    float: ("a number", Real),
    bool: ("true or false", bool),
    str: ("text", str),
    types.NoneType: ("null", types.NoneType),
}


def check_arguments(env_id: str, entry_point: Any, arguments: Mapping[str, Any]) -> None:
    """Check the arguments that an environment will be made with.

    Args:
        env_id: Its id, for the message.
        entry_point: The class or function that makes it, or where that is found.
        arguments: By name. Types that are not simple are not checked.

    Raises:
        EnvArgumentError: For a name that it does not take (with the near miss), or a value of a wrong type.
        ImportError: If the entry point's module cannot be imported.
    """
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    declared, takes_any = _parameters(creator)
    known = {*_OF_MAKE, *declared}
    for name, value in arguments.items():
        if name not in known and not takes_any:
            raise EnvArgumentError(f"{env_id} has no argument `{name}`{did_you_mean(name, declared)}")
        hint = declared.get(name, Any)
        if not _fits(value, hint):
            wanted = " or ".join(dict.fromkeys(_words(hint)))
            raise EnvArgumentError(f"{env_id}: `{name}` must be {wanted}, not {value!r}")


def _parameters(creator: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """The type of each argument, and whether others are taken too.

    A class that takes ``**options`` hands them to the class that it derives from, a function to the class of
    its own module that it returns.
    """
    declared: dict[str, Any] = {}
    makers: list[Any] = [creator]
    made = creator if inspect.isclass(creator) else _hints(creator).get("return")
    if inspect.isclass(made) and made.__module__ == creator.__module__:
        bases = [base for base in made.__mro__[:-1] if "__init__" in vars(base)]
        makers = [*makers * (made is not creator), *(vars(base)["__init__"] for base in bases)]
    takes_any = False
    for maker in makers:
        signature, hints = inspect.signature(maker), _hints(maker)
        takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
        for one in signature.parameters.values():
            if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
                declared.setdefault(one.name, hints.get(one.name, Any))
        if not takes_any:
            break
    declared.pop("self", None)
    return declared, takes_any


def _hints(maker: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(maker)
    except NameError:  # a type that was imported for type checkers alone
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type; true for a type that is not simple."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint in _TYPES:
        return isinstance(value, _TYPES[hint][1])
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if inspect.isclass(origin) and issubclass(origin, Iterable):
        items = value if isinstance(value, list | tuple | set | frozenset) else ()
        kind = typing.get_args(hint)[0]
        if isinstance(value, str) or not isinstance(value, Iterable):
            return False
        return all(_fits(item, kind) for item in items)
    return True


def _words(hint: Any) -> Iterator[str]:
    """The values of a type, as text."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for part in parts:
            yield from _words(part)
    elif origin is Literal:
        yield f"one of {', '.join(map(repr, parts))}"
    elif hint in _TYPES:
        yield _TYPES[hint][0]
    elif inspect.isclass(origin) and issubclass(origin, Iterable):
        yield "a mapping" if issubclass(origin, Mapping) else "a list"
    else:
        yield getattr(hint, "__name__", str(hint))
