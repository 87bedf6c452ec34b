"""The domain of a problem's inputs (types, ranges, sizes), inferred from its own cases.

A problem describes its inputs in English, and no program can read that. But an author's cases, the hidden
ones above all, go to the edges of what is meant: so what none of them shows, at the same place of the input,
counts as outside. That refuses some inputs that would be valid, and accepts few that are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from art_gym.envs.coding.problem import Case, Problem

_Path = tuple[str, ...]
_BEYOND = 10
"""A number may be this many times larger than any in the cases,"""
_ALWAYS = 100
"""or up to this, whichever is more."""


@dataclass(slots=True)
class _Place:
    """What stands at one place of the inputs: types, and for each what holds of every value."""

    traits: dict[str, frozenset[str]] = field(default_factory=dict)
    characters: set[str] = field(default_factory=set)
    largest: float = 0.0

    def add(self, value: object) -> None:
        kind, traits = type(value).__name__, frozenset(_traits(value))
        self.traits[kind] = self.traits.get(kind, traits) & traits
        if isinstance(value, str):
            self.characters |= set(map(_sort, value))
        self.largest = max(self.largest, _size(value))

    def mismatch(self, value: object) -> str | None:
        """What sets a value apart from those that were added; ``None``: nothing."""
        kind = type(value).__name__
        if kind not in self.traits:
            return f"is of type {kind}, which no input of this task has there"
        for trait in sorted(self.traits[kind] - set(_traits(value))):
            return f"is not as in every input of this task: {trait}"
        if isinstance(value, str):
            for character in value:
                if _sort(character) not in self.characters:
                    return f"holds {character!r}, and nothing of the kind stands in an input of this task"
        if _size(value) > max(_ALWAYS, _BEYOND * self.largest):
            return "is much larger than in any input of this task"
        return None


class Domain:
    """The inputs that a problem is about, as far as its cases show.

    Args:
        problem: A problem of kind ``function`` or ``script``.
    """

    def __init__(self, problem: Problem) -> None:
        cases = (*problem.public, *problem.hidden)
        self._places: dict[_Path, _Place] = {}
        self._counts = {len(case.args) for case in cases}
        self._keywords = {name for case in cases for name in case.kwargs}
        for case in cases:
            for path, value in _roots(case):
                self._learn(path, value)

    def objection(self, case: Case) -> str | None:
        """Why a case's input is no input of this problem; ``None`` if there is no reason.

        The words name types and traits, never a value of a hidden case.
        """
        if len(case.args) not in self._counts:
            counts = " or ".join(map(str, sorted(self._counts)))
            return f"it takes {counts} positional argument(s), not {len(case.args)}"
        for name in case.kwargs:
            if name not in self._keywords:
                return f"there is no keyword argument `{name}` in this task"
        return next(filter(None, (self._mismatch(path, value) for path, value in _roots(case))), None)

    def _learn(self, path: _Path, value: Any) -> None:
        self._places.setdefault(path, _Place()).add(value)
        for step, part in _parts(value):
            self._learn((*path, step), part)

    def _mismatch(self, path: _Path, value: Any) -> str | None:
        place = self._places.get(path)
        mismatch = place.mismatch(value) if place else "has no counterpart in the inputs of this task"
        if mismatch or place is None:
            return f"{' of '.join(reversed(path))} {mismatch}"
        # A dict whose keys are always the same is a record: each of its values is a place of its own.
        record = any(trait.startswith(_RECORD) for trait in place.traits[type(value).__name__])
        for step, part in _parts(value):
            if isinstance(value, dict) and step != "a key" and (step == "a value") == record:
                continue
            mismatch = self._mismatch((*path, step), part)
            if mismatch:
                return mismatch
        return None


_RECORD = "with the keys"


def _roots(case: Case) -> Iterator[tuple[_Path, Any]]:
    """The values that an input is made of, each with its place."""
    if case.stdout is not None:
        yield ("the input",), case.stdin
        for word in case.stdin.split():
            # Python refuses to read an int of more than 4300 digits.
            if word.lstrip("-").isdecimal() and len(word) < 1000:
                yield ("a number in the input",), int(word)
        return
    for number, value in enumerate(case.args, 1):
        yield (f"argument {number}",), value
    for name, value in case.kwargs.items():
        yield (f"argument `{name}`",), value


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    """What a container holds, each with the step that leads there."""
    match value:
        case tuple():
            yield from ((f"item {number}", part) for number, part in enumerate(value, 1))
        case list() | set() | frozenset():
            yield from (("an item", part) for part in value)
        case dict():
            for key, part in value.items():
                yield "a key", key
                yield "a value", part
                yield f"the value at {key!r:.40}", part


def _traits(value: object) -> Iterator[str]:
    """What holds for a value, as texts."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        finite = isinstance(value, int) or math.isfinite(value)
        yield from _holding({"finite": finite, "at least 0": value >= 0, "not 0": value != 0})
    if not isinstance(value, Sized):
        return
    if len(value):
        yield "not empty"
    match value:
        case str():
            yield from _holding({"in one line": "\n" not in value, "without blanks around": _is_bare(value)})
        case tuple():
            yield f"of {len(value)} items"
        case dict():
            yield f"{_RECORD} {', '.join(sorted(map(repr, value)))}"
        case list():
            sized = [len(part) for part in value if isinstance(part, Sized)]
            yield from _holding(
                {
                    "in ascending order": _ascends(value),
                    "without repeats": len(set(map(repr, value))) == len(value),
                    "of parts of one length": len(sized) == len(value) and len(set(sized)) <= 1,
                }
            )


def _holding(traits: dict[str, bool]) -> Iterable[str]:
    return (words for words, holds in traits.items() if holds)


def _size(value: object) -> float:
    """How far a number is from 0; of all else, and of numbers that are not finite, 0."""
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return abs(value)
    return 0


def _is_bare(text: str) -> bool:
    return text == text.strip()


def _ascends(values: list[Any]) -> bool:
    try:
        return all(first <= second for first, second in pairwise(values))
    except TypeError:  # values of types that have no order
        return False


def _sort(character: str) -> str:
    """The sort of a character: letters and digits stand for each other, a sign for itself alone."""
    if not character.isascii():
        return "foreign letter" if character.isalpha() else "foreign sign"
    if character.isdigit():
        return "digit"
    if character.isalpha():
        return "capital" if character.isupper() else "small letter"
    return character
