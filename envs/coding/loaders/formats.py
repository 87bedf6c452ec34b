"""Read the formats of published problem sets: functions, contests and exercises.

HumanEval and MBPP are functions with assertions. Assertions that compare one call with one value
become cases; all others become a unittest file, which runs in a process of its own. Numbers are compared as
the sets' own ``==`` does. Contest problems (code_contests, APPS, TACO and the like) read stdin and print.
Exercism's exercises have a file to fill in and a unittest file.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from art_gym.envs.coding.loaders.assertions import (
    UnsupportedTestError,
    doctest_cases,
    simple_cases,
)
from art_gym.envs.coding.loaders.shown import PUBLIC, examples
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.problems.builtin import split_of

MODULE = "solution"
"""The name that a test in a process of its own imports an answer by."""


def read_humaneval(row: Mapping[str, Any]) -> Problem:
    """A line of OpenAI's HumanEval (``task_id``, ``prompt``, ``entry_point``, ``test``).

    Raises:
        ValueError: If the test has no function ``check``.
    """
    name, prompt, test = row["entry_point"], row["prompt"], row["test"]
    reference = prompt + row["canonical_solution"]
    common: dict[str, Any] = {
        "id": row["task_id"],
        "prompt": f"Complete the function `{name}`.",
        "template": prompt,
        "reference": reference,
        "equality": "python",
        "split": split_of(row["task_id"]),
        "source": "HumanEval",
    }
    checks = [
        node for node in ast.parse(test).body if isinstance(node, ast.FunctionDef) and node.name == "check"
    ]
    if len(checks) != 1:
        raise ValueError("the test has no function `check`")
    public = doctest_cases(prompt, name)[:PUBLIC]
    try:
        hidden, tolerance = simple_cases(checks[0].body, checks[0].args.args[0].arg)
    except UnsupportedTestError:
        # The test may use helpers that stand in the prompt.
        tests = f"{reference}\n\n{test}\n\n{_as_unittest(name, [f'check({MODULE}.{name})'])}"
        return Problem(**common, kind="unittest", entry_point=MODULE, tests=tests)
    return Problem(**common, entry_point=name, public=public, hidden=hidden, tolerance=tolerance)


def read_mbpp(row: Mapping[str, Any]) -> Problem:
    """A line of Google's MBPP, full (``text``, ``code``, ``test_list``) or sanitized (``prompt``).

    Raises:
        ValueError: If there is no assertion, or none calls a function of the reference solution.
    """
    code, tests = row["code"].replace("\r\n", "\n"), list(row["test_list"])
    if not tests:
        raise ValueError("`test_list` is empty")
    asserts = [ast.parse(test.strip()).body for test in tests]
    name = _called(code, asserts[0])
    setup = [*row.get("test_imports", ()), row.get("test_setup_code", "")]
    common: dict[str, Any] = {
        "id": f"MBPP/{row['task_id']}",
        "prompt": f"{(row.get('text') or row['prompt']).strip()} Call it `{name}`.",
        "reference": code,
        "equality": "python",
        "split": split_of(f"MBPP/{row['task_id']}"),
        "source": "MBPP",
    }
    try:
        hidden, tolerance = simple_cases([node for body in asserts for node in body], name)
    except UnsupportedTestError:
        # The set runs its tests in the solution's own namespace: with its imports, classes and helpers.
        used = _names("\n".join([*setup, *tests]))
        defined = [node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        own = [node for node in defined if node.name in used]
        imports = [*_imports(code, used), f"from {MODULE} import {', '.join(node.name for node in own)}"]
        classes = [ast.unparse(node) for node in own if isinstance(node, ast.ClassDef)]
        example = "\n".join([*setup, tests[0]]).strip().replace("\n", "\n# ")
        shown = [f"# An example of what must hold:\n# {example}\n"] if len(tests) > PUBLIC else []
        template = "\n\n\n".join([*classes, *shown])
        text = "\n".join([*imports, *setup, _as_unittest(name, tests[len(shown) :])])
        return Problem(**common, kind="unittest", entry_point=MODULE, tests=text, template=template)
    return Problem(**common, entry_point=name, public=examples(hidden, 1), hidden=hidden, tolerance=tolerance)


def _called(code: str, body: list[ast.stmt]) -> str:
    """The function of a solution that an assertion calls."""
    defined = re.findall(r"^def\s+(\w+)", code, re.MULTILINE)
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
                return node.func.id
    raise ValueError("no assertion calls a function of the reference solution")


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _imports(code: str, used: set[str]) -> list[str]:
    """The imports at the top of a program that bind one of these names."""
    found = [node for node in ast.parse(code).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return [
        ast.unparse(node)
        for node in found
        if any((alias.asname or alias.name).partition(".")[0] in used for alias in node.names)
    ]


def _as_unittest(name: str, statements: list[str]) -> str:
    methods = [
        f"    def test_{number:03}(self):\n{textwrap.indent(statement.strip(), ' ' * 8)}\n"
        for number, statement in enumerate(statements)
    ]
    return f"import unittest\n\nimport {MODULE}\n\n\nclass Test(unittest.TestCase):\n" + "\n".join(methods)


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

    With ``fn_name`` each input is the list of a function's arguments; JSON has lists for tuples, so these two
    count as equal. Else it is what a program reads, a text or a list of its lines.

    Raises:
        ValueError: If it has no tests, or others than these.
    """
    tests = json.loads(row["input_output"] or "{}")
    inputs, outputs = tests.get("inputs", []), tests.get("outputs", [])
    name = f"apps/{row.get('problem_id', row.get('id', row.get('url')))}"
    level = _LEVELS.get(row.get("difficulty", ""), _HARD)
    solution = next(iter(json.loads(row.get("solutions") or "[]")), "")
    if not tests.get("fn_name"):
        cases = _pairs({"input": list(map(_lines, inputs)), "output": list(map(_lines, outputs))})
        return _problem(name, row["question"], cases, level, "APPS", solution)
    function, start = tests["fn_name"], row.get("starter_code") or ""
    cases = _function_cases(inputs, outputs)
    if "class Solution" in start:  # of LeetCode, whose judge has these names imported
        start, solution = (text and f"from typing import *\n\n{text}" for text in (start, solution))
    return Problem(
        id=name,
        prompt=row["question"],
        level=level,
        entry_point=f"Solution.{function}" if "class Solution" in (start or solution) else function,
        template=start,
        public=examples(cases),
        hidden=tuple(cases),
        reference=solution,
        equality="json",
        split=split_of(name),
        source="APPS",
    )


def _lines(text: str | list[str]) -> str:
    lines = text if isinstance(text, list) else [text]
    if not all(isinstance(line, str) for line in lines):
        raise ValueError(f"what a program reads or prints is a text, or a list of lines; not {text!r:.60}")
    return "\n".join(lines)


def _function_cases(inputs: list[Any], outputs: list[Any]) -> list[Case]:
    if not all(isinstance(arguments, list) for arguments in inputs):
        raise ValueError("an input of a function is a list of its arguments")
    # Most rows put each result in a list of its own.
    if all(isinstance(output, list) and len(output) == 1 for output in outputs):
        outputs = [output[0] for output in outputs]
    return [
        Case(args=tuple(map(_int_keys, given)), expected=_int_keys(wanted))
        for given, wanted in zip(inputs, outputs, strict=True)
    ]


def _int_keys(value: Any) -> Any:
    """The value, with the whole numbers that JSON wrote as text where they are all keys of a dict."""
    if isinstance(value, list):
        return [_int_keys(part) for part in value]
    if isinstance(value, dict):
        numbers = all(re.fullmatch(r"-?\d+", key) for key in value)
        return {int(key) if numbers else key: _int_keys(part) for key, part in value.items()}
    return value


def _problem(
    name: str,
    text: str,
    cases: list[Case],
    level: int,
    source: str,
    reference: str = "",
    public: int | None = None,
) -> Problem:
    return Problem(
        id=name,
        prompt=text,
        kind="script",
        level=level,
        public=examples(cases) if public is None else tuple(cases[:public]),
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


_LEVEL = 2


def read_exercism(row: Mapping[str, Any]) -> Problem:
    """An exercise as one object: ``slug``, ``instructions``; by file name ``stub``, ``tests``, ``example``.

    Raises:
        ValueError: If it has not one file to fill in and one of tests.
    """
    slug = row["slug"]
    tests = {name: text for name, text in row["tests"].items() if name.endswith("_test.py")}
    if len(row["stub"]) != 1 or len(tests) != 1:
        raise ValueError(f"{slug}: one file to fill in and one of tests are wanted")
    beside = {name.removesuffix(".py"): text for name, text in row["tests"].items() if name not in tests}
    ((file, stub),) = row["stub"].items()
    return Problem(
        id=f"exercism/{slug}",
        prompt=row["instructions"].strip(),
        kind="unittest",
        level=_LEVEL,
        entry_point=file.removesuffix(".py"),
        template=stub,
        tests=_modules(beside) + next(iter(tests.values())),
        reference="\n".join(row["example"].values()),
        split=split_of(f"exercism/{slug}"),
        source="Exercism",
    )


def _modules(beside: Mapping[str, str]) -> str:
    """Code that makes helper modules of the tests importable."""
    if not beside:
        return ""
    lines = ["import sys as _sys, types as _types"]
    for name, text in beside.items():
        if not re.fullmatch(r"[^\W\d]\w*", name):
            raise ValueError(f"{name!r} is no module's name")
        lines += [
            f"_module = _sys.modules[{name!r}] = _types.ModuleType({name!r})",
            f"exec({text!r}, _module.__dict__)",
        ]
    return "\n".join(lines) + "\n\n"
