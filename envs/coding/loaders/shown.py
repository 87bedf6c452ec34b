"""Separate the cases that a task shows from those that decide: memory alone passes what is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from art_gym.envs.coding.loaders.assertions import shown_calls
from art_gym.envs.coding.problem import Case, Problem

PUBLIC = 2  # examples shown, if a set does not say which
_FEWEST = 2  # hidden cases: a guess often passes a single one


def without_shown(problem: Problem) -> Problem:
    """The problem without the hidden cases that its prompt or template shows.

    A call is shown where the text holds it, whatever stands beside it; the input of a program, where the text
    holds its lines and, further down, those of the output.

    Raises:
        ValueError: If fewer than two are left, or if they expect one value, and those that are shown others.
    """
    if problem.kind == "unittest":
        return problem
    text = f"{problem.prompt}\n{problem.template}"
    calls = shown_calls(text, problem.entry_point.rpartition(".")[2])
    lines = _lines(text)
    hidden = tuple(
        case for case in problem.hidden if not any(map(case.has_input_of, calls)) and not _is_in(case, lines)
    )
    if not _decide(hidden, (*problem.public, *problem.hidden)):
        raise ValueError(
            f"{problem.id} shows so much that {len(hidden)} hidden tests are left, or one result"
        )
    return replace(problem, hidden=hidden)


def examples(cases: Sequence[Case], most: int = PUBLIC) -> tuple[Case, ...]:
    """The cases to show, of a set that does not say which: the first ones, if the others can still decide."""
    starts = [cases[:count] for count in range(most, 0, -1)]
    for chosen in (*starts, *([case] for case in cases)):
        if _decide([case for case in cases if not any(map(case.has_input_of, chosen))], cases):
            return tuple(chosen)
    return ()


def _decide(hidden: Sequence[Case], every: Sequence[Case]) -> bool:
    """Whether there are enough, and no constant passes them that would fail one of the others."""
    results = [{repr((case.expected, case.stdout)) for case in cases} for cases in (hidden, every)]
    return len(hidden) >= _FEWEST and (len(results[0]) > 1 or len(results[1]) == 1)


def _is_in(case: Case, lines: str) -> bool:
    given, wanted = _lines(case.stdin), _lines(case.stdout or "")
    at = lines.find(given) if given.strip() else -1
    return at >= 0 and wanted in lines[at + len(given) - 1 :]


def _lines(text: str) -> str:
    """The lines of a text without blanks around them, each between line breaks."""
    return "\n".join(["", *filter(None, map(str.strip, text.splitlines())), ""])
