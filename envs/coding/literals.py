"""Read Python literals: ``ast.literal_eval`` plus the few built-in values that it lacks."""

from __future__ import annotations

import ast
from typing import Any


def read_literal(text: str) -> Any:
    """The value of a Python literal; also ``set()``, ``frozenset(…)``, ``bytearray(…)`` and ``float("nan")``.

    Raises:
        ValueError: If the text is anything else. Nothing is ever executed.
    """
    try:
        return _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"not a Python literal ({error}): {text[:80]!r}") from None


def _read(node: ast.expr) -> Any:
    match node:
        case ast.List(elts=items):
            return [_read(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_read(item) for item in items)
        case ast.Set(elts=items):
            return {_read(item) for item in items}
        case ast.Dict(keys=keys, values=values):
            return {_read(_not_none(k)): _read(v) for k, v in zip(keys, values, strict=True)}
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _call(name, [_read(argument) for argument in arguments])
        case _:
            return ast.literal_eval(node)


def _not_none(key: ast.expr | None) -> ast.expr:
    if key is None:
        raise ValueError("`**` has no place in a literal")
    return key


def _call(name: str, arguments: list[Any]) -> Any:
    match name, arguments:
        case "set", []:
            return set()
        case "frozenset", []:
            return frozenset()
        case "frozenset", [set() as items]:
            return frozenset(items)
        case "bytearray", [bytes() as data]:
            return bytearray(data)
        case "float", [str() as text] if text.lstrip("+-") in ("inf", "nan"):
            return float(text)
        case "complex", [float() as real, float() as imag]:
            return complex(real, imag)
        case _:
            raise ValueError(f"`{name}(…)` is not a literal")
