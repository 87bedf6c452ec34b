"""Attacks of a coding duel: parse an input, get the reference's answer, judge the solution on it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

import numpy as np

from art_gym.envs.coding.duel.domain import Domain
from art_gym.envs.coding.judge import CaseResult, answered, grade
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.sandbox import Limits, Sandbox
from art_gym.envs.coding.values import read_literal, tree_of, write_literal
from art_gym.errors import ToolError

LONGEST_INPUT = 10_000  # characters
REFERENCE_LIMITS = Limits(cpu_seconds=1, wall_seconds=5)
SOLUTION_LIMITS = Limits(cpu_seconds=3, wall_seconds=15)
"""Three times what the reference may use, so that only a much slower solution is broken by its time."""


@dataclass(frozen=True, slots=True)
class Attack:
    """A valid input and what the solution made of it; what is expected is what the reference returned."""

    broken: bool
    result: CaseResult


def attack_text(problem: Problem, case: Case) -> str:
    """The input of a case as `read_attack` reads it.

    Raises:
        ValueError: If a value of it cannot be written as a literal.
    """
    if problem.kind == "script":
        return case.stdin
    named = (f"{name}={write_literal(value)}" for name, value in case.kwargs.items())
    return ", ".join([*map(write_literal, case.args), *named])


def read_attack(problem: Problem, text: str) -> Case:
    """The case, without an expected value, of an attack's text. Nothing in it is executed.

    Raises:
        ToolError: If it is too long, is no literal, or is no input of this problem; it says why.
    """
    if len(text) > LONGEST_INPUT:
        raise ToolError(f"an input may have {LONGEST_INPUT:,} characters, not {len(text):,}")
    case = Case(stdin=text, stdout="") if problem.kind == "script" else _read_call(problem, text)
    objection = Domain(problem).objection(case)
    if objection:
        raise ToolError(f"this is no input of the task: {objection}")
    return case


def judge_attack(
    problem: Problem, solution: str, case: Case, sandbox: Sandbox, rng: np.random.Generator
) -> Attack:
    """Let the reference answer an input, then the solution, and compare.

    A solution is run twice with different seeds and has to be right both times: one that hangs, crashes or
    gives different results is broken.

    Raises:
        ToolError: If the reference has no answer to this input, or not always the same.
        SandboxFailedError: If the sandbox could not run a program.
    """
    try:
        seed = int(rng.integers(2**31))
        (expected,) = answered(problem, [case], sandbox, limits=REFERENCE_LIMITS, seed=seed)
    except ValueError:
        # The reference's own error message would show how it is written.
        raise ToolError("the reference does not accept this input: give one that the task allows") from None
    probe = replace(problem, public=(expected,), hidden=(expected,))
    if not _passes(probe, problem.reference, sandbox, rng, REFERENCE_LIMITS):
        raise ToolError("the reference does not always answer this input alike: it decides nothing")
    verdict = grade(probe, solution, sandbox, "public", rng=rng, limits=SOLUTION_LIMITS).checked()
    result = verdict.results[0]
    if verdict.solved and not _passes(probe, solution, sandbox, rng, SOLUTION_LIMITS):
        result = replace(result, passed=False, got=f"{result.got}, but something else in a second run")
    return Attack(not result.passed, result)


def _passes(probe: Problem, code: str, sandbox: Sandbox, rng: np.random.Generator, limits: Limits) -> bool:
    return grade(probe, code, sandbox, "hidden", rng=rng, limits=limits).checked().solved


def _read_call(problem: Problem, text: str) -> Case:
    """The arguments, written as between the brackets of a call, or as the whole call."""
    text = text.strip()
    if not (text.startswith(f"{problem.entry_point}(") and text.endswith(")")):
        text = f"{problem.entry_point}({text}\n)"
    try:
        match ast.parse(text, mode="eval").body:
            case ast.Call(func=ast.Name(id=problem.entry_point), args=args, keywords=keywords):
                values = tuple(read_literal(ast.unparse(value)) for value in args)
                named = {str(each.arg): read_literal(ast.unparse(each.value)) for each in keywords}
                tree_of((values, named))  # raises if a value is too deep to be sent
                return Case(values, named)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    example = attack_text(problem, problem.public[0]) if problem.public else '3, "ab", [1, 2]'
    raise ToolError(
        f"this cannot be read as arguments of `{problem.entry_point}`: "
        f"write Python literals, such as {example}"
    )
