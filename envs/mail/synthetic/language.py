"""The words, phrases and kinds of conversation of generated mail, read from the TOML files in this folder."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

ValueType = Literal["person", "date", "time", "amount", "number", "place"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of conversation: its topics, who writes, what it states and why, and what to ask about it.

    ``topics.toml`` says what its fields are. A sentence that states a value is a fact that a question can ask
    for.
    """

    name: str
    topics: tuple[str, ...]
    outside: bool
    departments: tuple[str, ...]
    value: ValueType
    second: ValueType
    about: str
    opens: tuple[str, ...]
    changes: tuple[str, ...]
    missing: tuple[str, ...]
    seconds: tuple[str, ...]
    remarks: tuple[tuple[str, str], ...]
    ask_value: tuple[str, ...]
    ask_second: tuple[str, ...]


def read_texts(name: str) -> dict[str, Any]:
    """A TOML file of this package, its lists as tuples."""
    text = files(__package__).joinpath(name).read_text("utf-8")
    return {key: _frozen(value) for key, value in tomllib.loads(text).items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


_PHRASES = read_texts("phrases.toml")

REFERENCES: Mapping[str, tuple[str, ...]] = _PHRASES.pop("refer")
"""How a mail refers to the last one, by the act of that one."""

COURSE: Mapping[str, tuple[str, ...]] = _PHRASES.pop("course")
"""Which acts may follow an act."""

PHRASES: Mapping[str, tuple[str, ...]] = _PHRASES
"""How people write, by the kind of phrase."""

_WORDS = read_texts("vocabulary.toml")

DEPARTMENTS: Mapping[str, tuple[str, ...]] = _WORDS.pop("departments")
"""The roles of each department."""

VOCABULARY: Mapping[str, tuple[str, ...]] = {name: tuple(words.split()) for name, words in _WORDS.items()}
"""Lists of words that do not overlap: names, projects, places, things."""

MONTHS, WEEKDAYS = VOCABULARY["months"], VOCABULARY["weekdays"]

_TOPICS = read_texts("topics.toml")

KINDS = tuple(Kind(**table) for table in _TOPICS["kind"])

REMINDERS: tuple[tuple[str, str], ...] = _TOPICS["reminders"]
"""Subjects and bodies of the mails that go to everyone again and again."""


_QUESTIONS = read_texts("questions.toml")

QUESTION_CORES: Mapping[str, tuple[str, ...]] = _QUESTIONS.pop("cores")
"""What is remembered of a mail, by the roles of the three identifying words."""

LOOKALIKE_QUESTIONS: Mapping[str, tuple[str, ...]] = _QUESTIONS.pop("lookalike")
"""Questions about one mail of many that are alike."""

QUESTION_PHRASES: Mapping[str, tuple[str, ...]] = _QUESTIONS
"""How people ask, by the kind of phrase."""
