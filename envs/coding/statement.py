"""Format what the agent sees of a problem: the statement and test reports, nothing hidden."""

from __future__ import annotations

from art_gym.envs.coding.judge import CaseResult, Verdict, call_text
from art_gym.envs.coding.problem import HOLE, Case, Problem
from art_gym.envs.coding.values import shorten, show, tree_of

_SHOWN = 300  # characters of one value
_OUTPUT = 2_000  # characters of what a program printed


def statement(problem: Problem) -> str:
    """The text of the task, the code to start from, and the public examples."""
    parts = [problem.prompt.strip()]
    if problem.template.strip():
        parts.append(problem.template.strip("\n"))
    if problem.public:
        parts.append("\n".join(_example(problem, case) for case in problem.public))
    return "\n\n".join(parts)


def wanted(problem: Problem) -> str:
    """In a few words, what an answer has to be."""
    if HOLE in problem.template:
        return f"the code that stands for {HOLE}"
    if problem.kind == "script":
        return "a program that reads standard input and prints"
    if problem.kind == "unittest":
        return f"the module `{problem.entry_point}`"
    return f"a program that defines `{problem.entry_point}`"


def report(verdict: Verdict) -> str:
    """What a try of the public examples found: how many pass, and each that does not."""
    if not verdict.loaded:
        return f"The program cannot be loaded:\n{verdict.failure}"
    lines = [f"{verdict.passed} of {verdict.total} examples pass."]
    lines += [_failed(result) for result in verdict.results if not result.passed]
    return "\n".join(lines)


def printed(stdout: bytes, stderr: bytes, end: int | str | None) -> str:
    """What a run printed, cut in the middle, and how it ended: its exit code, or a text."""
    texts = [shorten(part.decode("utf-8", "replace").rstrip(), _OUTPUT) for part in (stdout, stderr)]
    lines = [text for text in texts if text]
    if end:
        lines.append(f"[{end}]" if isinstance(end, str) else f"[exit code {end}]")
    return "\n".join(lines) or "(nothing was printed)"


def _example(problem: Problem, case: Case) -> str:
    if case.stdout is None:
        return f"{call_text(problem.entry_point, case)} -> {show(tree_of(case.expected), _SHOWN)}"
    return f"Input:\n{shorten(case.stdin.rstrip(), _SHOWN)}\nOutput:\n{shorten(case.stdout.rstrip(), _SHOWN)}"


def _failed(result: CaseResult) -> str:
    if "\n" not in result.given + result.expected + result.got:
        return f"{result.given}: expected {result.expected}, got {result.got}"
    return f"For:\n{result.given}\nexpected:\n{result.expected}\ngot:\n{result.got}"
