"""Serialize Python values as a flat list of tokens, for two processes that do not trust each other.

This source also runs inside the sandbox, on any Python from 3.9, and uses the standard library only.

A token is ``None``, a bool, an int of less than 2**53, or a string whose first letter says what it is:

=====  ====================================================================================
``s``  text                                  ``b`` ``a``  bytes, bytearray, in hex
``i``  a large int, in hex                   ``f`` ``c``  float, complex, in ``float.hex``
``l``  list, ``t`` tuple, ``S`` set, ``F`` frozenset, with the number of items, which follow
``d``  dict, with the number of pairs, which follow as key, value, key, value …
``x``  a standard type built from arguments, by name; a tuple of the arguments follows
``n``  ``NotImplemented``, ``e`` ``Ellipsis``
``o``  an object that only a handle can stand for (see `remote`)
``?``  anything else, by the name of its type: it equals nothing
=====  ====================================================================================

A type counts only when it is exactly that type: an object of a subclass may say it equals everything.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
from collections.abc import Callable
from typing import Any

DEEPEST = 200
"""Nesting beyond this is not sent: some of Python's own functions crash on much deeper values."""
MOST_TOKENS = 3_000_000

_SMALL_INT = 2**53

_LETTERS: dict[Any, str] = {list: "l", tuple: "t", set: "S", frozenset: "F", dict: "d"}


class EncodingError(ValueError):
    """A value cannot be sent: it holds itself, or is too deep or too large."""


STANDARD: dict[str, tuple[Any, str]] = {
    # The type, and the attributes that are the arguments which rebuild a value; "str" and so on convert it.
    "Decimal": (decimal.Decimal, "str"),
    "Fraction": (fractions.Fraction, "numerator denominator"),
    "timedelta": (datetime.timedelta, "days seconds microseconds"),
    "date": (datetime.date, "year month day"),
    "time": (datetime.time, "hour minute second microsecond"),
    "datetime": (datetime.datetime, "year month day hour minute second microsecond"),
    "deque": (collections.deque, "list"),
    "Counter": (collections.Counter, "dict"),
    "OrderedDict": (collections.OrderedDict, "dict"),
    "defaultdict": (collections.defaultdict, "dict"),
}
_NAMES: dict[Any, str] = {kind: name for name, (kind, _) in STANDARD.items()}
_CONVERSIONS: dict[str, Any] = {"str": str, "list": list, "dict": dict}


def _fields(value: Any) -> tuple[Any, ...]:
    """The arguments that rebuild a value of one of the standard types."""
    fields = STANDARD[_NAMES[type(value)]][1]
    if fields in _CONVERSIONS:
        return (_CONVERSIONS[fields](value),)
    return tuple(getattr(value, name) for name in fields.split())


def encode(value: Any, export: Callable[[Any], str] | None = None) -> list[Any]:
    """The value's tokens, in preorder.

    Args:
        value: What to send.
        export: Gives the token of an object of any other type; without it such an object becomes ``?``.

    Raises:
        EncodingError: If it holds itself or is too deep or too large.
    """
    tokens: list[Any] = []
    above: list[int] = []  # the containers around the current item
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if item is _LEAVE:
            above.pop()
            continue
        children = _one(item, tokens, export)
        if children is not None:
            if id(item) in above:
                raise EncodingError("the value holds itself")
            if len(above) >= DEEPEST:
                raise EncodingError(f"the value is nested more than {DEEPEST} deep")
            above.append(id(item))
            todo.append(_LEAVE)
            todo.extend(children[::-1])
        if len(tokens) + len(todo) > MOST_TOKENS:
            raise EncodingError(f"the value has more than {MOST_TOKENS:,} parts")
    return tokens


_LEAVE = object()


def _one(item: Any, tokens: list[Any], export: Callable[[Any], str] | None) -> list[Any] | None:
    """Append the token of one item; return what it contains, or ``None`` if it contains nothing."""
    kind = type(item)
    if item is None or kind is bool:
        tokens.append(item)
    elif kind is int:
        tokens.append(item if -_SMALL_INT < item < _SMALL_INT else "i" + hex(item))
    elif kind is str:
        tokens.append("s" + item)
    elif kind is float:
        tokens.append("f" + item.hex())
    elif kind is complex:
        tokens.append(f"c{item.real.hex()} {item.imag.hex()}")
    elif kind is bytes or kind is bytearray:
        tokens.append(("b" if kind is bytes else "a") + item.hex())
    elif kind in _LETTERS:
        tokens.append(f"{_LETTERS[kind]}{len(item)}")
        return [part for pair in item.items() for part in pair] if kind is dict else list(item)
    elif kind in _NAMES and getattr(item, "tzinfo", None) is None:
        tokens.append("x" + _NAMES[kind])
        return [_fields(item)]
    elif item is NotImplemented or item is Ellipsis:
        tokens.append("n" if item is NotImplemented else "e")
    else:
        tokens.append(export(item) if export is not None else f"?{kind.__name__}")
    return None


def decode(tokens: Any, handle: Callable[[str], Any] | None = None) -> Any:
    """The value of a list of tokens. Runs where a hostile value can do no harm: inside the sandbox.

    Raises:
        ValueError: If the tokens are not those of one value.
    """
    return rebuild(tokens, lambda token: scalar(token, handle), _build)


def rebuild(tokens: Any, leaf: Callable[[Any], Any], build: Callable[[str, list[Any]], Any]) -> Any:
    """Rebuild a value: ``leaf`` makes what a token stands for by itself, ``build`` a container of its parts.

    Raises:
        ValueError: If the tokens are not those of exactly one value.
    """
    if type(tokens) is not list:
        raise ValueError("a value is a list of tokens")
    outer: list[Any] = []
    open_: list[tuple[str, int, list[Any]]] = [("l", 1, outer)]
    for token in tokens:
        if not open_:
            raise ValueError("tokens after the end of the value")
        shape = shape_of(token)
        if shape is None:
            open_[-1][2].append(leaf(token))
        elif len(open_) > DEEPEST + 1:
            raise ValueError(f"the value is nested more than {DEEPEST} deep")
        else:
            open_.append((shape[0], shape[1], []))
        while open_ and len(open_[-1][2]) == open_[-1][1]:
            letter, _, parts = open_.pop()
            if open_:
                open_[-1][2].append(build(letter, parts))
    if open_:
        raise ValueError("the value is cut off")
    return outer[0]


def shape_of(token: Any) -> tuple[str, int] | None:
    """What a container's token says: its letter (or ``x`` and a name) and how many values follow.

    Raises:
        ValueError: If the number is none.
    """
    if type(token) is not str or not token:
        return None
    letter = token[0]
    if letter == "x":
        if token[1:] not in STANDARD:
            raise ValueError(f"no standard type {token[1:41]!r}")
        return token, 1
    if letter not in "ltSFd":
        return None
    digits = token[1:]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 7):
        raise ValueError(f"a container of {digits[:40]!r} items")
    count = int(digits)
    return letter, 2 * count if letter == "d" else count


def scalar(token: Any, handle: Callable[[str], Any] | None = None) -> Any:
    """The value of a token that stands for itself.

    Raises:
        ValueError: If there is no such token.
    """
    if token is None or type(token) is bool or type(token) is int:
        return token
    if type(token) is not str or not token:
        raise ValueError(f"no token: {token!r:.40}")
    letter, rest = token[0], token[1:]
    if letter == "s":
        return rest
    if letter == "i":
        return int(rest, 16)
    if letter == "f":
        return _float(rest)
    if letter == "c":
        real, _, imag = rest.partition(" ")
        return complex(_float(real), _float(imag))
    if letter == "b" or letter == "a":
        return bytes.fromhex(rest) if letter == "b" else bytearray.fromhex(rest)
    if token == "n" or token == "e":
        return NotImplemented if token == "n" else Ellipsis
    if letter == "o" and handle is not None:
        return handle(rest)
    raise ValueError(f"no token: {token!r:.40}")


def _float(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def _build(letter: str, parts: list[Any]) -> Any:
    if letter == "l":
        return parts
    if letter == "t":
        return tuple(parts)
    try:
        if letter == "S" or letter == "F":
            return set(parts) if letter == "S" else frozenset(parts)
        if letter == "d":
            return dict(zip(parts[::2], parts[1::2]))  # noqa: B905 - `strict` is not there in Python 3.9
        return standard(letter[1:], list(parts[0]))
    except TypeError as error:
        raise ValueError(f"no such value: {error}") from None


def standard(name: str, arguments: list[Any]) -> Any:
    """The value of one of the standard types, from the arguments that rebuild it.

    Raises:
        ValueError: If they are not those.
    """
    kind, fields = STANDARD[name]
    wanted = [_CONVERSIONS[fields]] if fields in _CONVERSIONS else [int] * len(fields.split())
    if [type(argument) for argument in arguments] != wanted:
        raise ValueError(f"a {name} is not made of {arguments!r:.40}")
    try:
        return kind(None, *arguments) if kind is collections.defaultdict else kind(*arguments)
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"no such value: {error}") from None
