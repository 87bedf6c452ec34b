"""Python values as text and back: ``ast.literal_eval``, plus the few built-in values it cannot write."""

from __future__ import annotations

import ast
import math
from typing import Any

_LARGE = 10**600  # Python refuses to print an int of more than 4300 digits; far below that, hex is used.


def write_literal(value: object) -> str:
    """The value as one Python expression that `read_literal` reads back, equal in type and value.

    Raises:
        ValueError: Where it holds something that is no built-in value, or holds itself.
    """
    return _write(value, ())


def read_literal(text: str) -> Any:
    """The value of a Python literal; also ``set()``, ``frozenset(…)``, ``bytearray(…)`` and ``float("nan")``.

    Raises:
        ValueError: Where the text is anything else. Nothing is ever executed.
    """
    try:
        return _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"not a Python literal ({error}): {text[:80]!r}") from None


def _write(value: object, above: tuple[int, ...]) -> str:
    kind = type(value)
    if value is None or kind in (bool, str, bytes, bytearray):
        return repr(value)
    if isinstance(value, int) and kind is int:
        return hex(value) if abs(value) > _LARGE else repr(value)
    if isinstance(value, float) and kind is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, complex) and kind is complex:
        return f"complex({_write(value.real, ())}, {_write(value.imag, ())})"
    if id(value) in above:
        raise ValueError("the value holds itself and cannot be written as a literal")
    inner = (*above, id(value))
    if isinstance(value, dict) and kind is dict:
        return "{" + ", ".join(f"{_write(k, inner)}: {_write(v, inner)}" for k, v in value.items()) + "}"
    if not isinstance(value, (list, tuple, set, frozenset)) or kind not in (list, tuple, set, frozenset):
        raise ValueError(f"{kind.__name__} is no built-in value and cannot be written as a literal")
    if isinstance(value, (set, frozenset)):
        parts = ", ".join(sorted(_write(item, inner) for item in value))  # sets have no order of their own
        if kind is frozenset:
            return f"frozenset({{{parts}}})" if parts else "frozenset()"
        return f"{{{parts}}}" if parts else "set()"
    parts = ", ".join(_write(item, inner) for item in value)
    if kind is list:
        return f"[{parts}]"
    return f"({parts},)" if len(value) == 1 else f"({parts})"


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
