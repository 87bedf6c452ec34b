"""Load HumanEval, MBPP and EvalPlus: functions with assertions about them.

Assertions that compare one call with one value become cases; all others become a unittest file, which runs
in a process of its own. Numbers are compared as the sets' own ``==`` does.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from art_gym.envs.coding.loaders.assertions import UnsupportedTestError, doctest_cases, simple_cases
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.problems.builtin import split_of

MODULE = "solution"
"""The name that a test in a process of its own imports an answer by."""
_PUBLIC = 2  # examples shown, if a set does not say which


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
    public = doctest_cases(prompt, name)[:_PUBLIC]
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
        ValueError: If no assertion calls a function of the reference solution.
    """
    code, tests = row["code"], list(row["test_list"])
    asserts = [ast.parse(test.strip()).body for test in tests]
    name = _called(code, asserts[0])
    setup = [*row.get("test_imports", ()), row.get("test_setup_code", "")]
    common: dict[str, Any] = {
        "id": f"MBPP/{row['task_id']}",
        "prompt": f"{(row.get('text') or row['prompt']).strip()} Call it `{name}`.",
        "reference": code.replace("\r\n", "\n"),
        "equality": "python",
        "split": split_of(f"MBPP/{row['task_id']}"),
        "source": "MBPP",
    }
    try:
        hidden, tolerance = simple_cases([node for body in asserts for node in body], name)
    except UnsupportedTestError:
        text = "\n".join([*setup, f"from {MODULE} import {name}", _as_unittest(name, tests)])
        template = f"# An example of what must hold:\n# {tests[0].strip()}\n"
        return Problem(**common, kind="unittest", entry_point=MODULE, tests=text, template=template)
    return Problem(**common, entry_point=name, public=hidden[:1], hidden=hidden, tolerance=tolerance)


def read_evalplus(row: Mapping[str, Any]) -> Problem:
    """A line of HumanEval+ or MBPP+.

    EvalPlus publishes inputs alone (``base_input``, ``plus_input``); what is expected is what its reference
    solution returns. `load.with_expected` runs that in the sandbox; until then no case
    expects anything.
    """
    name = row["entry_point"]
    inputs = [*row["base_input"], *row["plus_input"]]
    cases = tuple(Case(args=tuple(arguments)) for arguments in inputs)
    tolerance = float(row.get("atol") or 0)
    return Problem(
        id=row["task_id"],
        prompt=f"Complete the function `{name}`.",
        entry_point=name,
        template=row["prompt"],
        public=doctest_cases(row["prompt"], name)[:_PUBLIC],
        hidden=cases,
        reference=row["prompt"] + row["canonical_solution"],
        equality="python",
        tolerance=tolerance or None,
        split=split_of(row["task_id"]),
        source="EvalPlus",
    )


def _called(code: str, body: list[ast.stmt]) -> str:
    """The function of a solution that an assertion calls."""
    defined = re.findall(r"^def\s+(\w+)", code, re.MULTILINE)
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
                return node.func.id
    raise ValueError("no assertion calls a function of the reference solution")


def _as_unittest(name: str, statements: list[str]) -> str:
    methods = [
        f"    def test_{number:03}(self):\n{textwrap.indent(statement.strip(), ' ' * 8)}\n"
        for number, statement in enumerate(statements)
    ]
    return f"import unittest\n\nimport {MODULE}\n\n\nclass Test(unittest.TestCase):\n" + "\n".join(methods)
