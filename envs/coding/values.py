"""Parse, compare, show and write values, of untrusted programs and of test cases.

A result arrives as tokens (see `drivers.codec`) and becomes a tree, not Python values: nothing of the
candidate's is called, hashed or compared with its own methods, so neither an object that equals everything
nor a set of numbers chosen to collide gains or costs anything.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from art_gym.envs.coding.drivers.codec import STANDARD, encode, rebuild, scalar, standard

Equality = Literal["exact", "python", "json"]

_DICTS = ("Counter", "OrderedDict", "defaultdict")
_WORDS = {"l": "list", "t": "tuple", "S": "set", "F": "frozenset", "d": "dict"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value without parts; `kind` is its type's name, and ``?`` goes before one that equals nothing."""

    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class Branch:
    """A container: its type's name and its parts; those of a dict are key, value, key, value and so on."""

    kind: str
    parts: tuple[Tree, ...]


Tree = Leaf | Branch


def tree_of(value: object) -> Tree:
    """The tree of a Python value, as a child would send it.

    Raises:
        ValueError: If the value holds itself or is too deep or too large.
    """
    return read_tree(encode(value))


def read_tree(tokens: object) -> Tree:
    """The tree that tokens stand for.

    Raises:
        ValueError: If they are not those of exactly one value.
    """
    tree: Tree = rebuild(tokens, _leaf, _branch)
    return tree


def _branch(letter: str, parts: list[Tree]) -> Branch:
    return Branch(_WORDS.get(letter, letter[1:]), tuple(parts))


def _leaf(token: Any) -> Leaf:
    if isinstance(token, str) and token[:1] in ("?", "o"):
        return Leaf("?", token[1:])
    value = scalar(token)
    return Leaf(type(value).__name__, value)


def same(expected: Tree, got: Tree, *, tolerance: float | None = None, equality: Equality = "exact") -> bool:
    """Whether two values are equal, in type and value, all the way down.

    NaN equals NaN, and 0.0 equals -0.0. Dicts and sets have no order; their keys and members are compared
    exactly. A value of a type that is not among those that `drivers.codec` lists equals nothing.

    Args:
        expected: What should have come.
        got: What came.
        tolerance: How far a float may be off, in absolute terms or relative to the expected one, whichever
            allows more; then an int may stand for an expected float.
        equality: ``"python"`` compares numbers, sets and dicts as ``==`` does: ``1``, ``1.0`` and ``True``
            are equal, and so are a dict and a ``Counter``. ``"json"``: so, but a tuple equals a list.
    """
    pairs = [(expected, got)]
    while pairs:
        left, right = (_unwrapped(side, equality) for side in pairs.pop())
        if isinstance(left, Leaf):
            if not isinstance(right, Leaf) or not _same_leaf(left, right, tolerance, equality):
                return False
            continue
        if not isinstance(right, Branch) or len(left.parts) != len(right.parts):
            return False
        if _kind(left.kind, equality) != _kind(right.kind, equality):
            return False
        if left.kind in ("set", "frozenset"):
            if _members(left.parts, equality) != _members(right.parts, equality):
                return False
        elif left.kind == "dict":
            theirs = dict(_entries(right, equality))
            ours = dict(_entries(left, equality))
            # A forged dict with one key twice has fewer entries than it says.
            if ours.keys() != theirs.keys() or 2 * len(theirs) != len(right.parts):
                return False
            pairs.extend((ours[key], theirs[key]) for key in ours)
        else:
            pairs.extend(zip(left.parts, right.parts, strict=True))
    return True


def show(tree: Tree, limit: int = 300) -> str:
    """The value as Python would write it, cut in the middle to at most `limit` characters."""
    pieces: list[str] = []
    for piece in _pieces(tree):
        pieces.append(piece)
        if len(pieces) > limit:  # each piece has at least one character: the rest will be cut away
            pieces.append(" …")
            break
    return shorten("".join(pieces), limit)


def shorten(text: str, limit: int) -> str:
    """The text, or its two ends with a note of how much was left out between them.

    The note comes on top of `limit`.
    """
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head]} … [{len(text) - limit} characters left out] … {text[len(text) - limit + head :]}"


def _kind(kind: str, equality: Equality) -> str:
    if equality == "json" and kind == "tuple":
        return "list"
    return "set" if equality != "exact" and kind == "frozenset" else kind


def _unwrapped(tree: Tree, equality: Equality) -> Tree:
    """A ``Counter`` and the like as the dict that ``==`` takes it for."""
    if equality != "exact" and isinstance(tree, Branch) and tree.kind in _DICTS:
        arguments = tree.parts[0]
        if isinstance(arguments, Branch) and len(arguments.parts) == 1:
            return arguments.parts[0]
    return tree


_NUMBERS = ("bool", "int", "float", "complex")


def _same_leaf(left: Leaf, right: Leaf, tolerance: float | None, equality: Equality) -> bool:
    if "?" in (left.kind, right.kind):
        return False
    if left.kind == "float" and tolerance is not None and right.kind in ("float", "int"):
        return near(left.value, right.value, tolerance)
    if equality != "exact" and left.kind in _NUMBERS and right.kind in _NUMBERS:
        return bool(left.value == right.value) or (left.value != left.value and right.value != right.value)
    return left.kind == right.kind and _exact(left) == _exact(right)


def near(expected: float, got: float, tolerance: float) -> bool:
    """Whether a float is within the tolerance, see :func:`same`; infinities and NaN are near themselves."""
    try:
        value = float(got)
    except OverflowError:
        return False
    if math.isnan(expected) or math.isinf(expected):
        return value == expected or (math.isnan(expected) and math.isnan(value))
    return abs(value - expected) <= tolerance * max(1.0, abs(expected))


def _exact(leaf: Leaf) -> Any:
    """The leaf's value in a form whose equality is ours: NaN is itself, and there is one zero."""
    if leaf.kind == "float":
        return "nan" if leaf.value != leaf.value else leaf.value
    if leaf.kind == "complex":
        return tuple("nan" if part != part else part for part in (leaf.value.real, leaf.value.imag))
    return leaf.value


def _members(parts: tuple[Tree, ...], equality: Equality) -> list[str]:
    return sorted(_key(part, equality) for part in parts)


def _entries(branch: Branch, equality: Equality) -> Iterator[tuple[str, Tree]]:
    for key, value in zip(branch.parts[::2], branch.parts[1::2], strict=True):
        yield _key(key, equality), value


def _key(tree: Tree, equality: Equality) -> str:
    """A text that is equal for equal trees. Text is hashed with a secret, so nobody can choose collisions."""
    if isinstance(tree, Branch):
        kind = _kind(tree.kind, equality)
        if kind in ("set", "frozenset"):
            keys = _members(tree.parts, equality)
        elif kind == "dict":
            keys = sorted(f"{key}:{_key(value, equality)}" for key, value in _entries(tree, equality))
        else:
            keys = [_key(part, equality) for part in tree.parts]
        return f"{kind}({','.join(keys)})"
    kind, value = tree.kind, _exact(tree)
    if equality != "exact" and kind in _NUMBERS:
        kind, value = "number", _plain_number(value)
    if kind == "?":
        return f"?{id(tree)}"
    if kind in ("float", "number") and value == 0:
        value = 0  # not -0.0
    if isinstance(value, int):
        value = hex(
            value
        )  # decimal digits of a huge int take quadratic time, and Python refuses to write them
    return f"{kind}:{json.dumps(value) if isinstance(value, str) else value!r}"


def _plain_number(value: Any) -> Any:
    """The simplest number equal to this one."""
    if isinstance(value, tuple):
        value = value[0] if value[1] == 0 else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, bool) else value


_BRACKETS = {
    "list": ("[", "]"),
    "tuple": ("(", ")"),
    "set": ("{", "}"),
    "frozenset": ("frozenset({", "})"),
    "dict": ("{", "}"),
}
_LONGEST_INT = 10**600
"""Python refuses to write an int of more than 4300 digits; far below that, hex is used."""


def write_literal(value: object) -> str:
    """The value as one Python expression that `read_literal` reads back, equal in type and value.

    Raises:
        ValueError: If it holds something that is no built-in value, or holds itself.
    """
    return "".join(_pieces(tree_of(value), literal=True))


def _pieces(tree: Tree, *, literal: bool = False) -> Iterator[str]:
    """The text of a value in pieces, so that a huge one need not be written to its end.

    A literal can be read back: sets are sorted, and what is no built-in value is refused.
    """
    if isinstance(tree, Leaf):
        yield _literal_leaf(tree) if literal else _leaf_text(tree)
        return
    if tree.kind in STANDARD:
        yield tree.kind
        yield from _pieces(tree.parts[0], literal=literal)
        return
    if not tree.parts and tree.kind in ("set", "frozenset"):
        yield f"{tree.kind}()"
        return
    parts = (_pieces(part, literal=literal) for part in tree.parts)
    if literal and tree.kind in ("set", "frozenset"):
        parts = (iter([text]) for text in sorted("".join(part) for part in parts))
    opening, closing = _BRACKETS[tree.kind]
    yield opening
    for index, part in enumerate(parts):
        if index:
            yield ": " if tree.kind == "dict" and index % 2 else ", "
        yield from part
    if tree.kind == "tuple" and len(tree.parts) == 1:
        yield ","
    yield closing


def _leaf_text(leaf: Leaf) -> str:
    if leaf.kind == "?":
        return f"<an object of type {leaf.value[:60]}>"
    if leaf.kind == "int" and abs(leaf.value) > _LONGEST_INT:
        return hex(leaf.value)
    return repr(leaf.value)


def _literal_leaf(leaf: Leaf) -> str:
    if leaf.kind in ("?", "NotImplementedType", "ellipsis"):
        raise ValueError(f"{leaf.value} is no built-in value and cannot be written as a literal")
    if leaf.kind == "float" and not math.isfinite(leaf.value):
        return f'float("{leaf.value}")'
    if leaf.kind == "complex":
        parts = (_literal_leaf(Leaf("float", part)) for part in (leaf.value.real, leaf.value.imag))
        return f"complex({', '.join(parts)})"
    return _leaf_text(leaf)


def read_literal(text: str) -> Any:
    """The value of a Python literal; also of what `write_literal` writes for other types.

    These are ``set()``, ``frozenset(…)``, ``bytearray(…)``, ``float("nan")`` and `drivers.codec.STANDARD`.

    Raises:
        ValueError: If the text is anything else. Nothing is ever executed.
    """
    try:
        return read_display(ast.parse(text.strip(), mode="eval").body, literal)
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"not a Python literal ({error}): {text[:80]!r}") from None


def read_display(node: ast.expr, other: Callable[[ast.expr], Any]) -> Any:
    """The value of lists, tuples, sets and dicts of expressions; ``other`` reads every other expression.

    Raises:
        TypeError: If a member of a set or a key cannot be hashed.
        ValueError: For ``**`` in a dict.
    """
    match node:
        case ast.List(elts=items):
            return [read_display(item, other) for item in items]
        case ast.Tuple(elts=items):
            return tuple(read_display(item, other) for item in items)
        case ast.Set(elts=items):
            return {read_display(item, other) for item in items}
        case ast.Dict(keys=keys, values=values):
            known = [key for key in keys if key is not None]
            if len(known) < len(keys):
                raise ValueError("`**` has no place in a literal")
            pairs = zip(known, values, strict=True)
            return {read_display(key, other): read_display(value, other) for key, value in pairs}
    return other(node)


def literal(node: ast.expr) -> Any:
    """The value of a literal that is no list, tuple, set or dict.

    Raises:
        ValueError: If it is anything else.
    """
    match node:
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _call(name, [read_display(argument, literal) for argument in arguments])
        case _:
            return ast.literal_eval(node)


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
        case _, _ if name in STANDARD:
            return standard(name, arguments)
        case _:
            raise ValueError(f"`{name}(…)` is not a literal")
