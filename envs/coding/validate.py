"""Validate tasks before training: grade references, mutants and trivial answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from art_gym.envs.coding.baselines import constant_answers, empty_answer
from art_gym.envs.coding.judge import grade
from art_gym.envs.coding.problem import Problem
from art_gym.envs.coding.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a task.

    Attributes:
        problem: Its id.
        what: What is wrong, in a sentence.
        broken: Whether the task should not be used; else it only grades less well than it might.
    """

    problem: str
    what: str
    broken: bool = True


def validate(problems: Iterable[Problem], sandbox: Sandbox) -> Iterator[list[Finding]]:
    """Grade what each problem says is right and wrong, and what is worth nothing.

    A task is broken when its reference solution does not pass all hidden and public cases, twice, or when an
    answer passes that ignores its input. It is weak when a mutant passes, or when there is no reference.

    Args:
        problems: The problems.
        sandbox: Where the answers run.

    Yields:
        Each problem's findings, in the order of the problems.

    Raises:
        SandboxFailedError: If the sandbox fails.
    """
    for problem in problems:
        yield list(_check(problem, sandbox))


def _check(problem: Problem, sandbox: Sandbox) -> Iterator[Finding]:
    def solves(code: str) -> bool:
        return grade(problem, code, sandbox).solved

    if problem.reference:
        yield from _check_reference(problem, sandbox)
    else:
        yield Finding(problem.id, "there is no reference solution to check it with", broken=False)
    for number, mutant in enumerate(problem.mutants, 1):
        if solves(mutant):
            yield Finding(problem.id, f"mutant {number} passes the hidden tests", broken=False)
    if solves(empty_answer(problem)):
        yield Finding(problem.id, "an answer that does nothing passes the hidden tests")
    for answer in constant_answers(problem):
        if solves(answer):
            yield Finding(problem.id, f"an answer that ignores its input passes: {answer.strip()[-80:]}")


def _check_reference(problem: Problem, sandbox: Sandbox) -> Iterator[Finding]:
    hidden = grade(problem, problem.reference, sandbox, twice=True)
    public = grade(problem, problem.reference, sandbox, "public")
    if not hidden.solved:
        words = f"the reference passes {hidden.passed} of {hidden.total} hidden tests"
        yield Finding(problem.id, f"{words}: {hidden.failure}" if hidden.failure else words)
    for result in public.results:
        if not result.passed:
            shown = f"{result.given}: expected {result.expected}, got {result.got}"
            yield Finding(
                problem.id, f"the reference fails a public example, {' '.join(shown.split())[:300]}"
            )
