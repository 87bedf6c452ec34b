"""How far a result agrees with what was expected, from 0 to 1, without a model."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

_BY_CHARACTERS = 200
"""Texts longer than this are compared by their words: difflib's time can grow with the cube of the length."""


def agreement(expected: Any, result: Any, *, exact: bool = False) -> float:
    """How far ``result`` agrees with ``expected``.

    * Texts: 1 where they are equal but for case, form and amount of white space; else their similarity.
      Up to 200 characters that is difflib's ratio (Ratcliff & Metzener 1988) of the characters, beyond that
      Dice's coefficient of the words, counted and out of order. Similar spelling is not similar meaning:
      ``12 March`` against ``13 March`` gives 0.88, and ``paid`` against ``unpaid`` 0.8.
    * Numbers: ``1 - |e - r| / max(|e|, |r|)``, at least 0. A text that reads as a number counts as one where
      a number is expected. A number that a float cannot hold agrees with nothing.
    * Mappings: the mean agreement of the values over the expected keys and the keys that nobody expected;
      a key that is missing or unexpected counts 0.
    * Lists: the mean agreement place by place; places that only one of them has count 0. Order matters.
    * Everything else, such as ``True``: 1 where equal, else 0.

    Args:
        expected: What was asked for, of JSON's types.
        result: What came of it.
        exact: Texts and numbers agree fully or not at all.
    """
    if isinstance(expected, Mapping):
        return _mappings(expected, result, exact) if isinstance(result, Mapping) else 0.0
    if isinstance(expected, str):
        return _texts(expected, result if isinstance(result, str) else _text_of(result), exact)
    if isinstance(expected, Sequence):
        return _lists(expected, result, exact)
    if _is_number(expected):
        return _numbers(_number_of(expected), _number_of(result), exact)
    return float(type(expected) is type(result) and expected == result)


def _mappings(expected: Mapping[Any, Any], result: Mapping[Any, Any], exact: bool) -> float:
    keys = expected.keys() | result.keys()
    shared = expected.keys() & result.keys()
    parts = [agreement(expected[key], result[key], exact=exact) for key in shared]
    return math.fsum(parts) / len(keys) if keys else 1.0


def _lists(expected: Sequence[Any], result: Any, exact: bool) -> float:
    if isinstance(result, str) or not isinstance(result, Sequence):
        return 0.0
    longest = max(len(expected), len(result))
    parts = [agreement(e, r, exact=exact) for e, r in zip(expected, result, strict=False)]
    return math.fsum(parts) / longest if longest else 1.0


def _texts(expected: str, result: str | None, exact: bool) -> float:
    if result is None:
        return 0.0
    wanted, found = plain(expected), plain(result)
    if wanted == found:
        return 1.0
    if exact or not wanted or not found:
        return 0.0
    if max(len(wanted), len(found)) <= _BY_CHARACTERS:
        return SequenceMatcher(None, wanted, found, autojunk=False).ratio()
    words, others = Counter(wanted.split()), Counter(found.split())
    return 2 * (words & others).total() / (words.total() + others.total())


def plain(text: str) -> str:
    """A text for comparing: in compatible forms of the letters, lower case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _numbers(expected: float | None, result: float | None, exact: bool) -> float:
    if expected is None or result is None:
        return 0.0
    if expected == result:
        return 1.0
    if exact or not math.isfinite(expected) or not math.isfinite(result):
        return 0.0
    # Halved, so that the difference of two huge numbers stays finite.
    return max(0.0, 1 - 2 * abs(expected / 2 - result / 2) / max(abs(expected), abs(result)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_of(value: Any) -> float | None:
    if not _is_number(value) and not isinstance(value, str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _text_of(value: Any) -> str | None:
    return str(value) if _is_number(value) else None
