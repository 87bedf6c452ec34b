"""Grading by a unittest file: the tests in one sandboxed process, the candidate in another.

The judge carries messages between them and reads the tests' reports; neither process can reach the other.
See `drivers.remote` for what the two see of each other.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from art_gym.envs.coding.endings import ending
from art_gym.envs.coding.problem import Problem
from art_gym.envs.coding.sandbox import Limits, Outcome, Process, Sandbox, SandboxUnavailable

_LEAST_FRAMES = 64 << 20  # bytes: a test may well hand over lists of a million numbers


@dataclass(slots=True)
class Report:
    """What a unittest file found.

    Attributes:
        tests: The ids of all tests, apart from those that the file's author skips.
        passed: Those that passed.
        words: For each test that did not: why.
        loaded: Whether the candidate's module could be imported.
        failure: Why the run as a whole failed.
        refused: Why the sandbox could not judge.
    """

    tests: tuple[str, ...] = ()
    passed: frozenset[str] = frozenset()
    words: dict[str, str] = field(default_factory=dict)
    loaded: bool = True
    failure: str = ""
    refused: str = ""


def run_tests(
    sandbox: Sandbox,
    code: str,
    tests: str,
    module: str,
    *,
    classes: Collection[str] = (),
    seed: int = 0,
    limits: Limits | None = None,
) -> Report:
    """Run a unittest file against a candidate.

    Args:
        sandbox: Where both run.
        code: The candidate's module.
        tests: The text of the unittest file.
        module: The name that the file imports the candidate by.
        classes: Names in that module that are classes. Only their objects are asked for operators: an object
            that a function returned would otherwise say that its difference from anything is 0.0.
        seed: Shuffles the tests, and is what ``random`` starts from on both sides.
        limits: Of each of the two processes.
    """
    limits = limits or sandbox.limits
    limits = replace(limits, frames_bytes=max(limits.frames_bytes, _LEAST_FRAMES))
    served = json.dumps({"code": code, "module": module}).encode()
    tested = json.dumps({"tests": tests, "module": module, "classes": list(classes), "seed": seed}).encode()
    try:
        with (
            sandbox.start("served", served, limits=limits, seed=seed) as candidate,
            sandbox.start("tested", tested, limits=limits, seed=seed) as judge,
        ):
            report = _converse(judge, candidate)
    except SandboxUnavailable as error:
        return Report(refused=f"the sandbox failed: {error}")
    refused = [run for run in (judge.close(), candidate.close()) if run.outcome is Outcome.REFUSED]
    return Report(refused=ending(refused[0])) if refused else report


def asked_classes(problem: Problem) -> frozenset[str]:
    """The classes that a problem asks for: those that its reference solution or template defines."""
    names: set[str] = set()
    for text in (problem.reference, problem.template):
        try:
            body = ast.parse(text).body
        except SyntaxError:  # a template need not be a program
            continue
        names |= {node.name for node in body if isinstance(node, ast.ClassDef)}
    return frozenset(names)


def _converse(judge: Process, candidate: Process) -> Report:
    """Carry messages until the tests are done, or one side is.

    Only the tests' side reports: whatever the candidate says is carried to the tests and read there.
    """
    report = Report(loaded=False, failure="the program could not be loaded")
    passed: set[str] = set()
    while (frame := judge.receive()) is not None:
        if frame[:1] != b">":
            _note(json.loads(frame[1:]), report, passed)
            continue
        candidate.send(frame[1:])
        answer = candidate.receive()
        if answer is None:
            report.failure = ending(candidate.close())
            break
        judge.send(answer)
    report.passed = frozenset(passed)
    if report.loaded and not report.failure and len(passed) + len(report.words) < len(report.tests):
        report.failure = ending(judge.close())
    return report


def _note(message: dict[str, Any], report: Report, passed: set[str]) -> None:
    """Enter one message of the tests into the report."""
    if "failed" in message:
        report.loaded, report.failure = message["failed"] is None, message["failed"] or ""
    elif "tests" in message:
        report.tests = tuple(message["tests"])
    elif message["passed"]:
        passed.add(message["id"])
    else:
        report.words[message["id"]] = message["words"]
