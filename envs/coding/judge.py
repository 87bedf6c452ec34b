"""Grade a program: run it in the sandbox on inputs alone, and compare what it returns outside.

A program passes a case only by returning, or printing, what is expected. It never meets an expected value,
so nothing that it does inside its process (patching built-ins, reading frames and memory, writing results
by hand, leaving early) earns more than a guess.

A unittest file runs in one sandboxed process and the candidate in another. The judge carries messages between
them and reads the tests' reports; neither process can reach the other. See `drivers.remote` for what the two
see of each other.
"""

from __future__ import annotations

import ast
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from art_gym.envs.coding.drivers.codec import encode
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.sandbox import (
    Limits,
    Outcome,
    Process,
    Run,
    Sandbox,
    SandboxFailedError,
    SandboxUnavailableError,
)
from art_gym.envs.coding.values import Tree, near, read_tree, same, shorten, show, tree_of

Which = Literal["public", "hidden"]

_MOST_TIMEOUTS = 2
"""A script that hangs on more cases than this is not tried on the rest."""
_SHOWN = 300  # characters of one value in a report
_WORDS = 1_500  # characters of a traceback
_LEAST_FRAMES = 64 << 20  # bytes: a unittest may well hand over lists of a million numbers
_QUICK_SHARE = 0.1
"""Of the processor time; what takes longer is tried again in a fresh process."""
_TAMPERED = "the program tampered with its results"
_SYNTAX = re.compile(r"(Syntax|Indentation|Tab)Error\b")


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one public example, as text."""

    passed: bool
    given: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of grading an answer.

    Attributes:
        passed: How many cases passed, each time they were tried.
        total: How many there are.
        loaded: Whether the program could be loaded and has the required function.
        failure: Why the program as a whole failed; empty when it did not, and about hidden cases.
        results: Each case, for public ones only.
    """

    passed: int = 0
    total: int = 0
    loaded: bool = True
    failure: str = ""
    results: tuple[CaseResult, ...] = ()

    @property
    def solved(self) -> bool:
        """Whether every case passed."""
        return self.passed == self.total > 0

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
        which: The public cases, with a report of each, or the hidden ones, without details.
        twice: Try what passed a second time, loaded anew and in another order; what does not pass both times
            does not count. A function that is quick is tried in the same process, all else in a fresh one.
        rng: Draws that other order, and what ``random`` is seeded with; without it the order is turned
            around.
        limits: Of each run; by default the sandbox's own.

    Raises:
        SandboxFailedError: If the sandbox could not judge: the program gets neither a reward nor a penalty.
    """
    program, limits = problem.complete(code), _limits(problem, limits or sandbox.limits)
    if problem.kind == "unittest":
        return Verdict() if which == "public" else _grade_tests(problem, program, sandbox, twice, rng, limits)
    seeds = _seeds(rng, 2)
    cases = problem.public if which == "public" else problem.hidden
    if not cases:
        return Verdict()
    wanted = [encode(case.expected) for case in cases]
    printed = max(len((case.stdout or "").encode()) for case in cases)
    limits = replace(
        limits,
        output_bytes=max(limits.output_bytes, 2 * printed),
        frames_bytes=max(limits.frames_bytes, 2 * len(json.dumps(wanted))),
    )
    expected = [read_tree(tokens) for tokens in wanted]
    trial = _Trial(problem, program, cases, expected, sandbox, limits, shown=which == "public")

    def reordered(passed: list[int]) -> list[int]:
        return [int(index) for index in rng.permutation(passed)] if rng else passed[::-1]

    hidden_twice = twice and which == "hidden"
    first, *more = trial.run(
        range(len(cases)), seeds[0], _Again(seeds[1], reordered) if hidden_twice else None
    )
    if hidden_twice and first.passed and not more:
        more = trial.run(reordered(first.passed), seeds[1])
    if which == "public":
        results = tuple(first.results[index] for index in range(len(cases)))
        return Verdict(len(first.passed), len(cases), first.loaded, first.failure, results)
    passed = set(first.passed).intersection(*(attempt.passed for attempt in more))
    # The program's messages may hold the hidden inputs, which it has seen by now.
    return Verdict(len(passed), len(cases), first.loaded)


def _limits(problem: Problem, given: Limits) -> Limits:
    """The given limits with those of the problem; the wall clock keeps its distance from processor time."""
    cpu_seconds = problem.limits.get("cpu_seconds", given.cpu_seconds)
    scaled = replace(given, wall_seconds=given.wall_seconds * cpu_seconds / given.cpu_seconds)
    return replace(scaled, **problem.limits)


def _seeds(rng: np.random.Generator | None, count: int) -> list[int]:
    return [int(seed) for seed in rng.integers(2**31, size=count)] if rng else list(range(count))


def _calls(cases: Iterable[Case]) -> list[tuple[list[Any], list[Any]]]:
    return [(encode(case.args), encode(dict(case.kwargs))) for case in cases]


@dataclass(slots=True)
class _Attempt:
    """One run over some of the cases, by index."""

    results: dict[int, CaseResult] = field(default_factory=dict)
    loaded: bool = True
    failure: str = ""

    @property
    def passed(self) -> list[int]:
        """The indices of the cases that passed."""
        return [index for index, result in self.results.items() if result.passed]


@dataclass(frozen=True, slots=True)
class _Again:
    """A second try of what passes: its seed, and the order of the cases, given those that passed."""

    seed: int
    reordered: Callable[[list[int]], list[int]]


@dataclass(frozen=True, slots=True)
class _Trial:
    """A program, the cases it is tried on, and where."""

    problem: Problem
    program: str
    cases: Sequence[Case]
    expected: Sequence[Tree]
    sandbox: Sandbox
    limits: Limits
    shown: bool

    def run(self, order: Sequence[int], seed: int, again: _Again | None = None) -> list[_Attempt]:
        """Try the cases of these indices, in this order; then, if it is quick, once more what passed.

        Raises:
            SandboxFailedError: If the sandbox failed.
        """
        if self.problem.kind == "script":
            return [self._run_script(order, seed)]
        attempts: list[_Attempt] = []
        orders = [order]

        def talk(process: Process) -> None:
            attempts.clear()
            orders[1:] = []
            began = time.monotonic()
            attempts.append(self._attempt(process, order))
            # What is slow needs all the time that there is, in a process of its own.
            quick = time.monotonic() - began < _QUICK_SHARE * self.limits.cpu_seconds
            if again is not None and quick and attempts[0].passed:
                orders.append(again.reordered(attempts[0].passed))
                calls = _calls(self.cases[index] for index in orders[1])
                process.send(json.dumps({"seed": again.seed, "cases": calls}).encode())
                attempts.append(self._attempt(process, orders[1]))
            process.send(b"")

        job = {
            "code": self.program,
            "entry_point": self.problem.entry_point,
            "listed": self.problem.equality == "json",
            "cases": _calls(self.cases[index] for index in order),
        }
        # What one try may send and print, a second one may too.
        tries = 2 if again else 1
        limits = replace(
            self.limits,
            frames_bytes=self.limits.frames_bytes * tries,
            output_bytes=self.limits.output_bytes * tries,
        )
        run = self.sandbox.run("calls", json.dumps(job).encode(), limits=limits, seed=seed, talk=talk)
        if run.outcome is Outcome.REFUSED:
            raise SandboxFailedError(run.describe())
        failure = f"{_TAMPERED} (more results than calls)" if run.frames else run.describe()
        if len(attempts[-1].results) == len(orders[-1]) and (run.frames or not run.ok):
            # All results are there, but something came after them: such a program has not run to its end.
            attempts[-1] = _Attempt(loaded=attempts[-1].loaded)
        for attempt, indices in zip(attempts, orders, strict=True):
            missing = [index for index in indices if index not in attempt.results]
            if missing:
                attempt.failure = attempt.failure or failure
            attempt.results |= {index: self._call_result(index, attempt.failure) for index in missing}
        return attempts

    def _attempt(self, process: Process, order: Sequence[int]) -> _Attempt:
        """What a process sends about these cases; fewer results if it ends before."""
        frames: list[bytes] = []
        while len(frames) <= len(order) and (frame := process.receive()) is not None:
            frames.append(frame)
        answers, failure, loaded = _answers(frames)
        return _Attempt(
            dict(zip(order, map(self._call_result, order, answers), strict=False)), loaded, failure
        )

    def _call_result(self, index: int, answer: Tree | str) -> CaseResult:
        case, problem = self.cases[index], self.problem
        expected = self.expected[index]
        passed = not isinstance(answer, str) and same(
            expected, answer, tolerance=problem.tolerance, equality=problem.equality
        )
        if not self.shown:
            return CaseResult(passed, "", "", "")
        got = answer if isinstance(answer, str) else show(answer, _SHOWN)
        return CaseResult(passed, call_text(problem.entry_point, case), show(expected, _SHOWN), got)

    def _run_script(self, order: Sequence[int], seed: int) -> _Attempt:
        """Run the program once a case, each in a fresh process."""
        attempt = _Attempt()
        text, timeouts = self.program.encode("utf-8", "replace"), 0
        for index in order:
            case = self.cases[index]
            if timeouts > _MOST_TIMEOUTS:
                attempt.results[index] = self._script_result(case, None, attempt.failure)
                continue
            run = self.sandbox.run("script", text, stdin=case.stdin.encode(), limits=self.limits, seed=seed)
            if run.outcome is Outcome.REFUSED:
                raise SandboxFailedError(run.describe())
            words = "" if run.ok else f"{run.describe()}\n{_last_lines(run.stderr)}".strip()
            attempt.failure = attempt.failure or words
            timeouts += run.outcome in (Outcome.TIMEOUT, Outcome.CPU)
            attempt.loaded = attempt.loaded and not _SYNTAX.match(_last_lines(run.stderr, 1))
            attempt.results[index] = self._script_result(case, run, words)
        return attempt

    def _script_result(self, case: Case, run: Run | None, words: str) -> CaseResult:
        wanted = case.stdout or ""
        printed = run.stdout.decode("utf-8", "replace") if run else ""
        ended = run is not None and run.ok and not run.truncated
        passed = ended and same_output(wanted, printed, tolerance=self.problem.tolerance)
        got = shorten(printed, _SHOWN) + (f"\n[{words}]" if words else "")
        return CaseResult(passed, shorten(case.stdin, _SHOWN), shorten(wanted, _SHOWN), got)


def _answers(frames: Sequence[bytes]) -> tuple[list[Tree | str], str, bool]:
    """The values that came, or words in the place of one; what is wrong; whether the program loaded."""
    if not frames:
        return [], "", False
    try:
        head, *rest = map(_message, frames)
        if head["failed"] is not None:
            return [], shorten(str(head["failed"]), _WORDS), False
        answers = [
            read_tree(item["value"]) if "value" in item else shorten(str(item["raised"]), _WORDS)
            for item in rest
        ]
    except (ValueError, KeyError, RecursionError) as error:
        return [], f"{_TAMPERED} ({error})", True
    return answers, "", True


def _message(frame: bytes) -> dict[str, Any]:
    message = json.loads(frame)
    if not isinstance(message, dict):
        raise ValueError("a frame that is no message")
    return message


def call_text(name: str, case: Case) -> str:
    """A case's call as Python would write it, long values cut in the middle."""
    parts = [show(tree_of(value), _SHOWN) for value in case.args]
    parts += [f"{key}={show(tree_of(value), _SHOWN)}" for key, value in case.kwargs.items()]
    return f"{name}({', '.join(parts)})"


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
    return math.isfinite(wanted) and math.isfinite(found) and near(wanted, found, tolerance)


def _last_lines(stderr: bytes, count: int = 3) -> str:
    return "\n".join(stderr.decode("utf-8", "replace").strip().split("\n")[-count:])[-_SHOWN:]


# --- unittest files ---


@dataclass(slots=True)
class Report:
    """What a unittest file found."""

    tests: tuple[str, ...] = ()
    """The ids of its tests, without those that its author skips."""
    passed: frozenset[str] = frozenset()
    loaded: bool = False
    """Whether the candidate's module could be imported."""


def _grade_tests(
    problem: Problem,
    program: str,
    sandbox: Sandbox,
    twice: bool,
    rng: np.random.Generator | None,
    limits: Limits,
) -> Verdict:
    """Run the unittest file, once or twice; its tests are all hidden."""
    passed: frozenset[str] | None = None
    seeds = _seeds(rng, 4)
    for pair in (seeds[:2], seeds[2:])[: 1 + twice]:
        report = run_tests(problem, program, sandbox, seeds=pair, limits=limits)
        passed = report.passed if passed is None else passed & report.passed
        if not passed:
            break
    return Verdict(len(passed or ()), max(1, len(report.tests)), report.loaded)


def run_tests(
    problem: Problem,
    program: str,
    sandbox: Sandbox,
    *,
    seeds: Sequence[int] = (0, 1),
    limits: Limits | None = None,
) -> Report:
    """Run a problem's unittest file against a candidate's module.

    Args:
        problem: Of kind ``unittest``. Only objects of the classes that its reference or template defines are
            used with operators: an object that a function returned could otherwise claim that its difference
            from anything is 0.0.
        program: The candidate's module.
        sandbox: Where both run.
        seeds: What ``random`` starts from in the tests (it shuffles them, too) and in the candidate, which
            could otherwise draw what the tests draw.
        limits: Of each of the two processes.

    Raises:
        SandboxFailedError: If the sandbox failed twice.
    """
    limits = limits or sandbox.limits
    limits = replace(limits, frames_bytes=max(limits.frames_bytes, _LEAST_FRAMES))
    module, classes = problem.entry_point, sorted(_asked_classes(problem))
    served = json.dumps({"code": program, "module": module}).encode()
    job = {"tests": problem.tests, "module": module, "classes": classes, "seed": seeds[0]}
    for _ in range(2):  # as in `Sandbox.run`
        try:
            with (
                sandbox.start("served", served, limits=limits, seed=seeds[1]) as candidate,
                sandbox.start("tested", json.dumps(job).encode(), limits=limits, seed=seeds[0]) as judge,
            ):
                report = _converse(judge, candidate)
        except (SandboxUnavailableError, OSError) as error:
            why = f"the sandbox failed: {error}"
            continue
        refused = [run for run in (judge.close(), candidate.close()) if run.outcome is Outcome.REFUSED]
        if not refused:
            return report
        why = refused[0].describe()
    raise SandboxFailedError(why)


def _asked_classes(problem: Problem) -> set[str]:
    """The classes of a problem, those that its reference solution or template defines."""
    names: set[str] = set()
    for text in (problem.reference, problem.template):
        try:
            body = ast.parse(text).body
        except SyntaxError:  # a template need not be a program
            continue
        names |= {node.name for node in body if isinstance(node, ast.ClassDef)}
    return names


def _converse(judge: Process, candidate: Process) -> Report:
    """Pass messages until the tests are done or one side has ended.

    Only the tests' side reports: messages of the candidate are passed to the tests and read there.
    """
    report = Report()
    while (frame := judge.receive()) is not None:
        if frame[:1] == b">":
            candidate.send(frame[1:])
            answer = candidate.receive()
            if answer is None:
                break
            judge.send(answer)
            continue
        message = json.loads(frame[1:])
        if "failed" in message:
            report.loaded = message["failed"] is None
        elif "tests" in message:
            report.tests = tuple(message["tests"])
        elif message["passed"]:
            report.passed |= {message["id"]}
    return report
