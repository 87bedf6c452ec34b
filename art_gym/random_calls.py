"""The default ``random`` baseline: random calls, with arguments from the declarations and the episode."""

from __future__ import annotations

import re
from calendar import day_abbr, day_name, month_abbr, month_name
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Literal

import numpy as np

from art_gym.parameters import Code, Parameter
from art_gym.parsing.parser import Call, parse
from art_gym.tools import Tool

_OPTIONAL_GIVEN = 0.25  # how often an optional argument is given
_OTHER = 0.1  # how often a value is not one that the description allows
_LATEST = 0.5  # how often a word or number is of the latest observation, not of any so far
_LONGEST = 4_000  # characters of an observation that are read
_WIDEST = 1_000  # numbers in a range that a description gives

_WORD = r"[^\W_]+"
_NUMBERS = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+)?) (?:to|and) (-?\d+(?:\.\d+)?)(?!\w|\.\d)")
_CHOICES = re.compile(rf"({_WORD}(?:, {_WORD})*),? or ({_WORD})")
_ORDERS = (ascii_lowercase, ascii_uppercase, day_name, day_abbr, month_name[1:], month_abbr[1:])
_RANGES = tuple(
    (list(order), re.compile(rf"\b({(either := '|'.join(order))}) (?:to|and) ({either})\b"))
    for order in _ORDERS
)
_EXAMPLE = re.compile(rf"\b(?:such as|as in|for example|e\.g\.),? [\"'`]?({_WORD})")


def random_calls(env: Any, rng: np.random.Generator) -> Callable[[str], str]:
    """Return a policy that calls a random tool with random arguments of the right types.

    A value is one of the parameter's declared examples; without any, one that its description names ("From 1
    to 20", "red, green or blue", "such as bread"), or a word or number that the episode has shown so far. An
    environment whose arguments need more than that can define its own ``baselines["random"]``.
    """
    tools: tuple[Tool, ...] = tuple(env.tools.values())
    shown: list[str] = []

    def act(observation: str) -> str:
        shown.append(observation.removeprefix(env.system)[-_LONGEST:])
        chosen = tools[int(rng.integers(len(tools)))]
        arguments = {
            parameter.name: _value(parameter, shown, rng)
            for parameter in chosen.parameters
            if parameter.required or rng.random() < _OPTIONAL_GIVEN
        }
        return _shortest(chosen, arguments, env.tools)

    return act


def _shortest(tool: Tool, arguments: Mapping[str, Any], tools: Mapping[str, Tool]) -> str:
    """The call, or only its argument if that is read as the same call."""
    if len(tools) == len(arguments) == 1:
        (value,) = arguments.values()
        read = parse(str(value), tools)
        if isinstance(read, Call) and read.arguments == arguments:
            return str(value)
    return tool.render(arguments)


def _value(parameter: Parameter, shown: Sequence[str], rng: np.random.Generator) -> Any:
    if parameter.examples:
        return parameter.examples[int(rng.integers(len(parameter.examples)))]
    if parameter.kind is Literal:
        return parameter.choices[int(rng.integers(len(parameter.choices)))]
    if parameter.kind is list:
        many = int(rng.integers(1, 3))
        return [_single(parameter.item, parameter.description, shown, rng) for _ in range(many)]
    return _single(parameter.kind, parameter.description, shown, rng)


def _single(kind: Any, description: str, shown: Sequence[str], rng: np.random.Generator) -> Any:
    if kind is bool:
        return bool(rng.integers(2))
    if kind is int:
        seen = list(map(int, _seen(r"-?\d{1,9}", shown, rng)))
        return int(_draw(described_numbers(description), [seen, seen, range(1, 10)], rng))
    if kind is float:
        found = _NUMBERS.search(description)
        low, high = map(float, found.groups()) if found else (0.0, 1.0)
        return round(low + (high - low) * float(rng.random()), 3)
    if kind is date:
        return date(2023, 1, 1) + timedelta(days=int(rng.integers(730)))
    if kind is Code:
        return f"print({int(rng.integers(10))})"
    others = [_seen(_WORD, shown, rng) or ["text"], _EXAMPLE.findall(description)]
    return str(_draw(described_words(description), others, rng))


def described_numbers(description: str) -> Sequence[int]:
    """The whole numbers that a description allows: of ``"From 1 to 20."`` those from 1 to 20."""
    if (found := _NUMBERS.search(description)) is None or "." in found[0]:
        return ()
    low, high = int(found[1]), int(found[2])
    return range(low, high + 1) if 0 <= high - low < _WIDEST else ()


def described_words(description: str) -> list[str]:
    """The values that a description allows: of ``"up or down"`` two, of ``"Monday to Friday"`` the days."""
    if found := _CHOICES.search(description):
        return [*re.findall(_WORD, found[1]), found[2]]
    for order, wanted in _RANGES:
        if found := wanted.search(description):
            return order[order.index(found[1]) : order.index(found[2]) + 1]
    return []


def _seen(pattern: str, shown: Sequence[str], rng: np.random.Generator) -> list[str]:
    """What the latest observation, or all so far, have of a pattern."""
    text = shown[-1] if rng.random() < _LATEST else "\n".join(shown)
    return list(dict.fromkeys(re.findall(pattern, text)))


def _draw(allowed: Sequence[Any], others: Sequence[Sequence[Any]], rng: np.random.Generator) -> Any:
    """Draw a value that the description allows; if it names none, and now and then, one of the others."""
    if len(allowed) and rng.random() >= _OTHER:
        source = allowed
    else:
        filled = [source for source in others if len(source)]
        source = filled[int(rng.integers(len(filled)))]
    return source[int(rng.integers(len(source)))]
