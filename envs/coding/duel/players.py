"""Scripted policies of ``art/CodingDuel-v0``, for each seat.

Each is ``player(env, rng) -> act``; ``act(text)`` gives the next reply. All but ``empty`` and ``variation``
use hidden data; they are for comparison and imitation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from art_gym.baselines import Act, Baseline
from art_gym.envs.coding.baselines import empty_answer
from art_gym.envs.coding.duel.attacks import LONGEST_INPUT, attack_text
from art_gym.envs.coding.duel.domain import Domain
from art_gym.envs.coding.problem import Case

if TYPE_CHECKING:
    from art_gym.envs.coding.duel.env import CodingDuelEnv


_VARIATIONS = 50
"""How often a new variation is drawn before the breaker skips its try."""


def reference(env: CodingDuelEnv, rng: np.random.Generator) -> Act:
    """Submit the reference solution."""
    return lambda observation: _submit(env, env.problem.reference)


def mutant(env: CodingDuelEnv, rng: np.random.Generator) -> Act:
    """Submit a plausible wrong solution, each of the problem's equally likely."""

    def act(observation: str) -> str:
        mutants = env.problem.mutants or (empty_answer(env.problem),)
        return _submit(env, mutants[int(rng.integers(len(mutants)))])

    return act


def empty(env: CodingDuelEnv, rng: np.random.Generator) -> Act:
    """Submit a program that does nothing."""
    return lambda observation: _submit(env, empty_answer(env.problem))


def variation(env: CodingDuelEnv, rng: np.random.Generator) -> Act:
    """Attack with a public example in which something small is changed."""

    def act(observation: str) -> str:
        cases = env.problem.public
        drawn = (
            _varied(cases[int(rng.integers(len(cases)))], rng) for _ in range(_VARIATIONS if cases else 0)
        )
        return _attack(env, drawn)

    return act


def hidden(env: CodingDuelEnv, rng: np.random.Generator) -> Act:
    """Attack with the inputs of hidden cases, in any order: a teacher, which knows them."""

    def act(observation: str) -> str:
        cases = env.problem.hidden
        return _attack(env, (cases[int(index)] for index in rng.permutation(len(cases))))

    return act


def _submit(env: CodingDuelEnv, code: str) -> str:
    return env.tools[env.seats[0]]["submit"].render({"code": code})


def _attack(env: CodingDuelEnv, cases: Iterable[Case]) -> str:
    """Attack with the first of these that is an input of the task and new; else let the try go by."""
    tools = env.tools[env.seats[1]]
    domain = Domain(env.problem)
    for case in cases:
        if domain.objection(case):
            continue
        try:
            text = attack_text(env.problem, case)
        except ValueError:  # a value that no literal stands for
            continue
        if len(text) <= LONGEST_INPUT and text not in env.tried:
            return tools["attack"].render({"arguments": text})
    return tools["skip"].render({})


def _varied(case: Case, rng: np.random.Generator) -> Case:
    """The case with one of its arguments, or its input, changed in one place."""
    if case.stdout is not None:
        lines = case.stdin.split("\n")
        at = int(rng.integers(len(lines)))
        words = lines[at].split(" ")
        which = int(rng.integers(len(words)))
        number = words[which].lstrip("-").isdecimal()
        words[which] = str(_changed(int(words[which]), rng)) if number else _changed(words[which], rng)
        return replace(case, stdin="\n".join([*lines[:at], " ".join(words), *lines[at + 1 :]]))
    if not case.args:
        return case
    at = int(rng.integers(len(case.args)))
    return replace(case, args=(*case.args[:at], _changed(case.args[at], rng), *case.args[at + 1 :]))


def _changed(value: Any, rng: np.random.Generator) -> Any:
    """A value of the same type, changed in one place."""
    match value:
        case bool():
            return not value
        case int() | float():
            return (value + 1, value - 1, -value, value * 2, type(value)(0))[int(rng.integers(5))]
        case str():
            return "".join(_rearranged(list(value), rng))
        case list() | tuple() if value and rng.random() < 0.5:
            at = int(rng.integers(len(value)))
            return type(value)([*value[:at], _changed(value[at], rng), *value[at + 1 :]])
        case list() | tuple():
            return type(value)(_rearranged(list(value), rng))
        case dict() if value:
            keys = list(value)
            key = keys[int(rng.integers(len(keys)))]
            if rng.random() < 0.5:
                return {other: part for other, part in value.items() if other != key}
            return {**value, key: _changed(value[key], rng)}
        case _:
            return value


def _rearranged(parts: list[Any], rng: np.random.Generator) -> list[Any]:
    """The parts with one removed, repeated or moved, or turned around, or none at all."""
    if not parts:
        return parts
    at, to = (int(index) for index in rng.integers(len(parts), size=2))
    rest = parts[:at] + parts[at + 1 :]
    ways: list[list[Any]] = [
        rest,
        [*parts[:to], parts[at], *parts[to:]],
        [*rest[:to], parts[at], *rest[to:]],
        parts[::-1],
        [],
    ]
    return ways[int(rng.integers(len(ways)))]


SOLVERS: Mapping[str, Baseline] = {"reference": reference, "mutant": mutant, "empty": empty}
BREAKERS: Mapping[str, Baseline] = {"variation": variation, "hidden": hidden}
