"""Read HumanEval+ and MBPP+, and let their reference solutions say what is expected.

EvalPlus publishes inputs as JSON, which has no tuples, sets or complex numbers, and no expected values.
The tables follow its own `mbpp_deserialize_inputs` and `_special_oracle` (https://github.com/evalplus/evalplus).
Not followed are its extra oracles for HumanEval/32 and Mbpp/164, 295, 558 and 581.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from art_gym.envs.coding.drivers.codec import EncodingError, decode
from art_gym.envs.coding.judge import call_function
from art_gym.envs.coding.loaders.assertions import doctest_cases
from art_gym.envs.coding.loaders.shown import examples
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.problems.builtin import split_of
from art_gym.envs.coding.sandbox import Limits, Outcome, Sandbox, SandboxFailedError
from art_gym.envs.coding.values import Equality, present, read_tree

_PUBLIC = 2  # examples shown, at most
_SHAPES = {
    "t": "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 744 809",
    "lt": "63 64 70 94 120 237 272 299 400 409 417 438 473 614 780",
    "tt": "259 278 401 445",
    "*": "580 615 791",
    "t -": "250 307 405 446 617 720 763 808",
    "- t": "106 750",
    "lt -": "75 413 444 753",
    "dt -": "722",
    "le": "115",
    "f c": "124",
    "c": "252",
}
"""By the shape of their arguments, the tasks of MBPP+ that have other types than JSON; see `_restored`."""
_SHAPE_OF = {
    f"Mbpp/{number}": shape.split() for shape, numbers in _SHAPES.items() for number in numbers.split()
}
_EQUALITIES: Mapping[str, Equality] = {
    **dict.fromkeys("Mbpp/2 Mbpp/7 Mbpp/111 Mbpp/140 Mbpp/232 Mbpp/249 Mbpp/579 Mbpp/769".split(), "members"),
    **dict.fromkeys("Mbpp/737 Mbpp/787 Mbpp/794".split(), "presence"),
}
_TOLERANCE = 1e-6  # of floats, where the set gives none
_RUN = Limits(cpu_seconds=120, wall_seconds=1_200, memory_bytes=2 << 30, frames_bytes=512 << 20)
_SLOWER = 4  # than the reference an answer may be
_MOST_SECONDS, _MOST_BYTES = 1.0, 1 << 20  # that a case may take, and its result


def read_evalplus(row: Mapping[str, Any]) -> Problem:
    """A line of HumanEval+ or MBPP+; until `with_expected` has run, no case expects anything.

    Raises:
        ValueError: If the reference solution does not define the function.
    """
    name, prompt, task = row["entry_point"], row["prompt"], row["task_id"]
    cases = tuple(
        Case(args=_restored_all(task, inputs)) for inputs in (*row["base_input"], *row["plus_input"])
    )
    statement, template = f"Complete the function `{name}`.", prompt
    if f"def {name}(" not in prompt:  # MBPP+: a docstring
        statement = f"{prompt.strip().strip(chr(34) + chr(39)).strip()}\n\n{statement}"
        template = _signature(row["canonical_solution"], name)
    return Problem(
        id=task,
        prompt=statement,
        entry_point=name,
        template=template,
        public=doctest_cases(prompt, name)[:_PUBLIC],
        hidden=cases,
        reference=prompt + row["canonical_solution"],
        equality=_EQUALITIES.get(task, "python"),
        tolerance=float(row.get("atol") or _TOLERANCE),
        split=split_of(task),
        source="EvalPlus",
    )


def _signature(code: str, name: str) -> str:
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return f"def {name}({ast.unparse(node.args)}):\n    ...\n"
    raise ValueError(f"the reference solution does not define `{name}`")


def _restored_all(task: str, inputs: list[Any]) -> tuple[Any, ...]:
    """The arguments of a call; the last shape is that of all arguments that follow."""
    shapes = _SHAPE_OF.get(task, ["-"])
    return tuple(_restored(value, shapes[min(index, len(shapes) - 1)]) for index, value in enumerate(inputs))


def _restored(value: Any, shape: str) -> Any:
    """A value of JSON in its own type.

    A shape has a letter for each level: ``t``, ``l`` and ``d`` for a tuple, a list and a dict, ``e`` for a
    set (an empty one is a dict), ``f`` and ``c`` for a float and a complex number; ``*`` makes all lists
    tuples.
    """
    match shape[:1]:
        case "f":
            return float(value)
        case "c":
            return complex(value)
        case "e":
            return set(value) if isinstance(value, list) and value else {}
        case "d":
            return {key: _restored(part, shape[1:]) for key, part in value.items()}
        case "t" | "l" | "*" if isinstance(value, list):
            parts = [_restored(part, shape if shape == "*" else shape[1:]) for part in value]
            return parts if shape[0] == "l" else tuple(parts)
    return value


def with_expected(problem: Problem, sandbox: Sandbox) -> tuple[Problem, int]:
    """The problem with what its reference solution returns as expected, and how many cases were left out.

    Left out are hidden cases that take the reference over a second, or whose result is larger than a MiB. An
    answer may take four times as long as the reference.

    Raises:
        ValueError: If the reference solution fails on a case, or returns what is no plain value.
        SandboxFailedError: If the sandbox could not run it.
    """
    cases = (*problem.public, *problem.hidden)
    run = call_function(problem, problem.reference, cases, sandbox, _RUN, seed=0)
    if run.outcome is Outcome.REFUSED:
        raise SandboxFailedError(run.describe())
    head, *results = run.frames or (json.dumps({"failed": run.describe()}),)
    if failed := json.loads(head)["failed"]:
        raise ValueError(f"the reference solution cannot be loaded: {failed}")
    kept: list[Case] = []
    seconds, size = 0.0, 0
    for number, (case, frame) in enumerate(zip(cases, results, strict=False), 1):
        result = json.loads(frame)
        too_large = len(frame) > _MOST_BYTES or EncodingError.__name__ in result.get("raised", "")
        if too_large or result["seconds"] > _MOST_SECONDS:
            continue
        kept.append(replace(case, expected=_expected(problem, result, number)))
        seconds, size = seconds + result["seconds"], size + len(frame)
    if len(results) < len(cases) or not run.ok:
        raise ValueError(f"the reference solution fails on case {len(results) + 1}: {run.describe()}")
    known = {repr(case.args): case for case in kept}
    public = tuple(known.get(repr(case.args), case) for case in problem.public) or examples(kept, 1)
    needed = {"cpu_seconds": math.ceil(_SLOWER * seconds), "frames_bytes": 2 * size}
    limits = {name: most for name, most in needed.items() if most > getattr(sandbox.limits, name)}
    completed = replace(problem, hidden=tuple(kept), public=public, limits=limits)
    return completed, len(cases) - len(kept)


def _expected(problem: Problem, result: Mapping[str, Any], number: int) -> Any:
    if "raised" in result:
        raise ValueError(f"the reference solution fails on case {number}: {result['raised']}")
    try:
        if problem.equality == "presence":
            return present(read_tree(result["value"]))
        return decode(result["value"])
    except ValueError as error:
        raise ValueError(f"the reference returns no plain value on case {number}: {error}") from None
