"""Load contest problems (stdin to stdout): code_contests, APPS, TACO and the like."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.problems.builtin import split_of

_PUBLIC = 2  # tests shown, if a set does not say which
_LEVELS = {"EASY": 1, "MEDIUM": 2, "HARD": 3, "introductory": 1, "interview": 2, "competition": 3}
_HARD = 3
_PYTHON3 = 3  # the language's number in code_contests


def read_stdin_tests(row: Mapping[str, Any]) -> Problem:
    """A line with ``content`` and ``test``, a JSON list of ``{"input": {"stdin"}, "output": {"stdout"}}``.

    Raises:
        ValueError: If a test is anything else, or there is none.
    """
    tests = json.loads(row["test"]) if isinstance(row["test"], str) else row["test"]
    labels = json.loads(row["labels"]) if isinstance(row.get("labels"), str) else row.get("labels") or {}
    cases = [Case(stdin=test["input"]["stdin"], stdout=test["output"]["stdout"]) for test in tests]
    source = str(labels.get("source", "contest"))
    name = str(labels.get("name") or row.get("id"))
    return _problem(
        f"{source}/{name}", row["content"], cases, _LEVELS.get(labels.get("difficulty", ""), _HARD), source
    )


def read_code_contests(row: Mapping[str, Any]) -> Problem:
    """A row of DeepMind's code_contests: ``description``, ``public_tests``, ``private_tests`` and others.

    Raises:
        ValueError: If it has no tests, or its input and output lists differ in length.
    """
    public = _pairs(row["public_tests"])
    hidden = [
        *_pairs(row["private_tests"]),
        *_pairs(row.get("generated_tests") or {"input": [], "output": []}),
    ]
    solutions = row.get("solutions") or {"language": [], "solution": []}
    python = [
        text
        for language, text in zip(solutions["language"], solutions["solution"], strict=True)
        if language == _PYTHON3
    ]
    reference = python[0] if python else ""
    name, cases = str(row["name"]), [*public, *hidden]
    return _problem(name, row["description"], cases, _HARD, "code_contests", reference, len(public))


def read_apps(row: Mapping[str, Any]) -> Problem:
    """A row of APPS or TACO: ``question`` and ``input_output``, JSON of ``inputs`` and ``outputs``.

    Raises:
        ValueError: If it asks for a function, not for a program; or has no tests.
    """
    tests = json.loads(row["input_output"] or "{}")
    if tests.get("fn_name"):
        raise ValueError("it asks for a function, of whose arguments the file does not tell the types")
    cases = _pairs({"input": tests.get("inputs", []), "output": tests.get("outputs", [])})
    name = f"apps/{row.get('problem_id', row.get('id', row.get('url')))}"
    level = _LEVELS.get(row.get("difficulty", ""), _HARD)
    solutions = json.loads(row.get("solutions") or "[]")
    return _problem(name, row["question"], cases, level, "APPS", solutions[0] if solutions else "")


def _problem(
    name: str,
    text: str,
    cases: list[Case],
    level: int,
    source: str,
    reference: str = "",
    public: int = _PUBLIC,
) -> Problem:
    return Problem(
        id=name,
        prompt=text,
        kind="script",
        level=level,
        public=tuple(cases[:public]),
        hidden=tuple(cases),
        reference=reference,
        split=split_of(name),
        source=source,
    )


def _pairs(tests: Mapping[str, Sequence[str]]) -> list[Case]:
    return [
        Case(stdin=given, stdout=wanted)
        for given, wanted in zip(tests["input"], tests["output"], strict=True)
    ]
