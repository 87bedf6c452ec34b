"""Every built-in problem is solved a second time in another way: `second_solutions/*.toml`."""

import csv
import datetime
import fnmatch
import itertools
import json
import math
import re
import tomllib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from art_gym.envs.coding.problem import Problem
from art_gym.envs.coding.problems.builtin import load

FOLDER = Path(__file__).with_name("second_solutions")
LIBRARY = {
    each.__name__: each
    for each in (csv, datetime, fnmatch, itertools, json, math, re, Counter, OrderedDict, defaultdict, deque)
} | {"Fraction": Fraction, "cache": cache, "np": np, "Any": Any, "Iterable": Iterable}


def whole(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high))


def text(rng: np.random.Generator, letters: str = "ab", most: int = 8) -> str:
    return "".join(letters[int(n)] for n in rng.integers(len(letters), size=rng.integers(most + 1)))


def numbers(
    rng: np.random.Generator, low: int = -4, high: int = 5, most: int = 7, least: int = 0
) -> list[int]:
    return [int(n) for n in rng.integers(low, high, size=rng.integers(least, most + 1))]


def some(rng: np.random.Generator, values: list[Any], most: int = 8) -> list[Any]:
    return [values[int(n)] for n in rng.integers(len(values), size=rng.integers(most + 1))]


def spans(rng: np.random.Generator, most: int = 5, end: int = 10) -> list[tuple[int, int]]:
    """Intervals of length 1 or more."""
    starts = [whole(rng, 0, end - 1) for _ in range(whole(rng, 0, most + 1))]
    return [(start, whole(rng, start + 1, end + 1)) for start in starts]


def field(rng: np.random.Generator, marks: str, rows: int = 4, columns: int = 4) -> list[str]:
    shape = (whole(rng, 1, rows + 1), whole(rng, 1, columns + 1))
    return ["".join(marks[int(n)] for n in row) for row in rng.integers(len(marks), size=shape)]


def plot(rng: np.random.Generator, low: int = 0, high: int = 9) -> list[list[int]]:
    table: list[list[int]] = rng.integers(low, high, size=(whole(rng, 1, 5), whole(rng, 1, 5))).tolist()
    return table


def links(rng: np.random.Generator, places: str = "abcde", share: float = 0.3) -> dict[str, list[str]]:
    return {place: [other for other in places if rng.random() < share] for place in places}


def formula(rng: np.random.Generator, leaves: str, joints: list[str], depth: int = 3) -> str:
    """A drawn expression with brackets in places."""
    if depth == 0 or rng.random() < 0.3:
        return leaves[whole(rng, 0, len(leaves))]
    left, right = (formula(rng, leaves, joints, depth - 1) for _ in range(2))
    joined = left + joints[whole(rng, 0, len(joints))] + right
    return f"({joined})" if rng.random() < 0.4 else joined


DRAWS = {each.__name__: each for each in (whole, text, numbers, some, spans, field, plot, links, formula)}


@cache
def subject(name: str) -> dict[str, Any]:
    tables: dict[str, Any] = tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))
    return tables


def second_solution(problem: Problem) -> tuple[Callable[..., Any], str, dict[str, Any]]:
    """The function, the expression that draws its inputs, and the names that it is evaluated with."""
    subject_name, _, name = problem.id.partition("/")
    tables = subject(subject_name)
    scope = LIBRARY | DRAWS
    exec(tables.get("common", ""), scope)
    exec(tables[name]["solution"], scope)
    return scope[name], tables[name].get("inputs", ""), scope | DRAWS


@pytest.mark.parametrize("problem", load(), ids=lambda problem: problem.id)
def test_expected_values_and_reference_agree_with_another_solution(problem: Problem) -> None:
    solve, inputs, scope = second_solution(problem)
    for case in (*problem.public, *problem.hidden):
        if problem.kind == "script":
            assert solve(case.stdin).split("\n") == (case.stdout or "").split("\n"), case
            continue
        found = solve(*case.args)
        if problem.tolerance is not None and found is not None:
            found = pytest.approx(found, abs=problem.tolerance)
        assert found == case.expected, case
    if inputs:
        reference: dict[str, Any] = {}
        exec(problem.reference, reference)
        scope["rng"] = np.random.default_rng(0)
        draw = compile(inputs, problem.id, "eval")
        for _ in range(150):
            arguments = eval(draw, scope)
            assert reference[problem.entry_point](*arguments) == solve(*arguments), arguments


def test_most_problems_are_compared_on_drawn_inputs() -> None:
    drawn = [problem for problem in load() if second_solution(problem)[1]]
    assert len(drawn) >= 75
