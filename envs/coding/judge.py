"""Grading a program: it is run in the sandbox on inputs alone, and what it returns is compared out here.

A program passes a case only by returning, or printing, what is expected. It never meets an expected value,
so nothing that it does inside its process (patching built-ins, reading frames and memory, writing results
by hand, leaving early) is worth more than a guess.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from art_gym.envs.coding.drivers.codec import encode
from art_gym.envs.coding.endings import ending
from art_gym.envs.coding.judge_tests import asked_classes, run_tests
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.sandbox import Limits, Outcome, Run, Sandbox
from art_gym.envs.coding.values import Tree, read_tree, same, shorten, show, tree_of

Which = Literal["public", "hidden"]

_MOST_TIMEOUTS = 2
"""A script that hangs on more cases than this is not tried on the rest."""
_SHOWN = 300  # characters of one value in a report
_WORDS = 1_500  # characters of a traceback
_SYNTAX = re.compile(r"(Syntax|Indentation|Tab)Error\b")


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of one public example, as text to show."""

    passed: bool
    given: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judging found.

    Attributes:
        passed: How many cases passed, each time they were tried.
        total: How many there are.
        loaded: Whether the program could be loaded and has what is to be called.
        failure: Why the program as a whole failed; empty when it did not, and about hidden cases.
        results: Each case, for public ones only.
        infrastructure: Why the sandbox could not judge; then nothing else here means anything, and the
            program is to be neither rewarded nor blamed.
    """

    passed: int = 0
    total: int = 0
    loaded: bool = True
    failure: str = ""
    results: tuple[CaseResult, ...] = ()
    infrastructure: str = ""

    @property
    def solved(self) -> bool:
        """Whether every case passed."""
        return not self.infrastructure and self.passed == self.total > 0

    @property
    def fraction(self) -> float:
        """The share of the cases that passed."""
        return self.passed / self.total if self.total else 0.0


def grade(
    problem: Problem,
    code: str,
    sandbox: Sandbox,
    which: Which = "hidden",
    *,
    twice: bool = False,
    rng: np.random.Generator | None = None,
    limits: Limits | None = None,
) -> Verdict:
    """Judge an answer.

    Args:
        problem: The task.
        code: The answer as submitted: a program, or what stands in the template's hole.
        sandbox: Where it runs.
        which: The public cases, with a report of each, or the hidden ones, of which nothing is told.
        twice: Run what passed a second time, in another order and a fresh process; what does not pass both
            times does not count.
        rng: Draws that other order, and what ``random`` is seeded with; without it the order is turned
            around.
        limits: Of each run; by default the sandbox's own.
    """
    program = problem.complete(code)
    seeds = [int(seed) for seed in rng.integers(2**31, size=2)] if rng else [0, 1]
    if problem.kind == "unittest":
        return _grade_tests(problem, program, sandbox, which, twice, seeds, limits)
    cases = problem.public if which == "public" else problem.hidden
    if not cases:
        return Verdict()
    first = _attempt(problem, program, cases, range(len(cases)), sandbox, limits, seeds[0])
    if first.refused:
        return Verdict(total=len(cases), infrastructure=first.refused)
    passed = [index for index, result in first.results.items() if result.passed]
    if which == "public":
        results = tuple(first.results[index] for index in range(len(cases)))
        return Verdict(len(passed), len(cases), first.loaded, first.failure, results)
    if twice and passed:
        order = [int(index) for index in rng.permutation(passed)] if rng else passed[::-1]
        second = _attempt(problem, program, cases, order, sandbox, limits, seeds[1])
        if second.refused:
            return Verdict(total=len(cases), infrastructure=second.refused)
        passed = [index for index in passed if second.results[index].passed]
    # The program's own words may hold the hidden inputs, which it has seen by now.
    return Verdict(len(passed), len(cases), first.loaded)


@dataclass(slots=True)
class _Attempt:
    """One go at some of the cases, by index."""

    results: dict[int, CaseResult] = field(default_factory=dict)
    loaded: bool = True
    failure: str = ""
    refused: str = ""


def _attempt(
    problem: Problem,
    program: str,
    cases: Sequence[Case],
    order: Sequence[int],
    sandbox: Sandbox,
    limits: Limits | None,
    seed: int,
) -> _Attempt:
    run = _run_script if problem.kind == "script" else _run_calls
    return run(problem, program, cases, order, sandbox, limits, seed)


# --- functions ------------------------------------------------------------------------------------------


def _run_calls(
    problem: Problem,
    program: str,
    cases: Sequence[Case],
    order: Sequence[int],
    sandbox: Sandbox,
    limits: Limits | None,
    seed: int,
) -> _Attempt:
    """Call the function on each case, all in one process."""
    job = {
        "code": program,
        "entry_point": problem.entry_point,
        "cases": [(encode(cases[index].args), encode(dict(cases[index].kwargs))) for index in order],
    }
    run = sandbox.run("calls", json.dumps(job).encode(), limits=limits, seed=seed)
    if run.outcome is Outcome.REFUSED:
        return _Attempt(refused=ending(run))
    attempt = _Attempt()
    answers, attempt.failure, attempt.loaded = _answers(run, len(order))
    missing = attempt.failure or "no result"
    for position, index in enumerate(order):
        answer = answers[position] if position < len(answers) else missing
        attempt.results[index] = _call_result(problem, cases[index], answer)
    return attempt


def _answers(run: Run, count: int) -> tuple[list[Tree | str], str, bool]:
    """The values that came, or words in the place of one; why there are fewer; whether the program loaded."""
    try:
        head, *rest = [_message(frame) for frame in run.frames] or [{"failed": ending(run)}]
        if head["failed"] is not None:
            return [], shorten(str(head["failed"]), _WORDS), False
        if len(rest) > count:
            raise ValueError("more results than calls")
        answers = [
            read_tree(item["value"]) if "value" in item else shorten(str(item["raised"]), _WORDS)
            for item in rest
        ]
    except (ValueError, KeyError, RecursionError) as error:
        return [], f"the program tampered with its results ({error})", True
    if len(answers) < count:
        return answers, ending(run), True
    # All results are there, but a thread or an exit came after them: such a program has not run to its end.
    return (answers, "", True) if run.ok else ([], ending(run), True)


def _message(frame: bytes) -> dict[str, Any]:
    message = json.loads(frame)
    if not isinstance(message, dict):
        raise ValueError("a frame that is no message")
    return message


def _call_result(problem: Problem, case: Case, answer: Tree | str) -> CaseResult:
    expected = tree_of(case.expected)
    passed = not isinstance(answer, str) and same(
        expected, answer, tolerance=problem.tolerance, equality=problem.equality
    )
    got = answer if isinstance(answer, str) else show(answer, _SHOWN)
    return CaseResult(passed, call_text(problem.entry_point, case), show(expected, _SHOWN), got)


def call_text(name: str, case: Case) -> str:
    """A case's call as Python would write it, long values cut in the middle."""
    parts = [show(tree_of(value), _SHOWN) for value in case.args]
    parts += [f"{key}={show(tree_of(value), _SHOWN)}" for key, value in case.kwargs.items()]
    return f"{name}({', '.join(parts)})"


# --- scripts --------------------------------------------------------------------------------------------


def _run_script(
    problem: Problem,
    program: str,
    cases: Sequence[Case],
    order: Sequence[int],
    sandbox: Sandbox,
    limits: Limits | None,
    seed: int,
) -> _Attempt:
    """Run the program once a case, each in a fresh process."""
    attempt = _Attempt()
    timeouts = 0
    for index in order:
        case = cases[index]
        if timeouts > _MOST_TIMEOUTS:
            attempt.results[index] = _script_result(problem, case, None, attempt.failure)
            continue
        text = program.encode("utf-8", "replace")
        run = sandbox.run("script", text, stdin=case.stdin.encode(), limits=limits, seed=seed)
        if run.outcome is Outcome.REFUSED:
            return _Attempt(refused=ending(run))
        words = "" if run.ok else f"{ending(run)}\n{_last_lines(run.stderr)}".strip()
        attempt.failure = attempt.failure or words
        timeouts += run.outcome in (Outcome.TIMEOUT, Outcome.CPU)
        attempt.loaded = attempt.loaded and not _SYNTAX.match(_last_lines(run.stderr, 1))
        attempt.results[index] = _script_result(problem, case, run, words)
    return attempt


def _script_result(problem: Problem, case: Case, run: Run | None, words: str) -> CaseResult:
    wanted = case.stdout or ""
    printed = run.stdout.decode("utf-8", "replace") if run else ""
    passed = (
        run is not None
        and run.ok
        and not run.truncated
        and same_output(wanted, printed, tolerance=problem.tolerance)
    )
    got = shorten(printed, _SHOWN) + (f"\n[{words}]" if words else "")
    return CaseResult(passed, shorten(case.stdin, _SHOWN), shorten(wanted, _SHOWN), got)


def same_output(expected: str, got: str, *, tolerance: float | None = None) -> bool:
    """Whether two outputs are equal line by line, blanks at the ends of lines and of the text apart.

    With a tolerance, words that are numbers may differ by it, in absolute terms or relative to the expected.
    """
    wanted, found = (text.rstrip().split("\n") for text in (expected, got))
    if len(wanted) != len(found):
        return False
    if tolerance is None:
        return all(a.rstrip() == b.rstrip() for a, b in zip(wanted, found, strict=True))
    return all(_same_words(a.split(), b.split(), tolerance) for a, b in zip(wanted, found, strict=True))


def _same_words(expected: list[str], got: list[str], tolerance: float) -> bool:
    if len(expected) != len(got):
        return False
    return all(a == b or _near(a, b, tolerance) for a, b in zip(expected, got, strict=True))


def _near(expected: str, got: str, tolerance: float) -> bool:
    try:
        wanted, found = float(expected), float(got)
    except ValueError:
        return False
    return math.isfinite(found) and abs(wanted - found) <= tolerance * max(1.0, abs(wanted))


def _last_lines(stderr: bytes, count: int = 3) -> str:
    return "\n".join(stderr.decode("utf-8", "replace").strip().split("\n")[-count:])[-_SHOWN:]


# --- unittest files -------------------------------------------------------------------------------------


def _grade_tests(
    problem: Problem,
    program: str,
    sandbox: Sandbox,
    which: Which,
    twice: bool,
    seeds: Sequence[int],
    limits: Limits | None,
) -> Verdict:
    """Run the unittest file; its tests are all hidden."""
    if which == "public":
        return Verdict()
    passed: frozenset[str] | None = None
    for seed in seeds[: 2 if twice else 1]:
        report = run_tests(
            sandbox,
            program,
            problem.tests,
            problem.entry_point,
            classes=asked_classes(problem),
            seed=seed,
            limits=limits,
        )
        passed = report.passed if passed is None else passed & report.passed
        if report.refused or not passed:
            break
    return Verdict(len(passed or ()), max(1, len(report.tests)), report.loaded, infrastructure=report.refused)
