"""Load the built-in problems of levels 1 to 3 from the TOML files of this folder.

Each file holds the problems on one subject. A problem is a table, and its name is the function's name::

    [is_mirrored]
    level = 1
    statement = '''
    Whether a text reads the same from both ends.
    '''
    solution = '''
    def is_mirrored(text: str) -> bool:
        return text == text[::-1]
    '''
    public = '''
    "otto" -> True
    '''
    hidden = '''
    "" -> True
    "ab" -> False
    '''
    mutants = '''
    [::-1] => [::1]
    '''

With ``kind = "script"`` the solution is a program that reads stdin and prints, and a case is
``stdin -> stdout``. ``tolerance`` says how far a float may be off. The signature of the solution is the code
that a solver starts from.

A case is ``arguments -> expected``, both Python literals, over one line or more. The expected values are
written by hand, so that a mistake in the solution shows. A mutant is ``old => new``: a piece of the solution
that occurs once, and a plausible mistake in its place. ``art-gym coding validate`` checks all of it.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from typing import Any

from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.values import read_literal

SUBJECTS = (
    "text",
    "numbers",
    "lists",
    "records",
    "times",
    "grids",
    "graphs",
    "parsing",
    "simulations",
    "scripts",
)
"""The files, in the order of their problems."""

_ARROW, _BECOMES = " -> ", "=>"
_SPLIT_SALT = "art-gym coding 1723"  # with it, a third of each level and some of each subject are for testing
_TEST_SHARE = 3


@lru_cache
def load() -> tuple[Problem, ...]:
    """The built-in problems of levels 1 to 3, in both splits; :mod:`.grammar` makes those of level 0."""
    return tuple(problem for subject in SUBJECTS for problem in _load_subject(subject))


def _load_subject(subject: str) -> Iterator[Problem]:
    text = files(__package__).joinpath(f"{subject}.toml").read_text("utf-8")
    for name, table in tomllib.loads(text).items():
        try:
            yield parse_problem(f"{subject}/{name}", table)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{subject}.toml, [{name}]: {error}") from error


def parse_problem(problem_id: str, table: dict[str, Any]) -> Problem:
    """The problem of one table.

    Raises:
        KeyError: A field is missing.
        ValueError: A case or a mutant cannot be read.
    """
    name, solution = problem_id.rpartition("/")[2], table["solution"]
    is_script = table.get("kind") == "script"
    return Problem(
        id=problem_id,
        prompt=table["statement"].strip(),
        kind="script" if is_script else "function",
        level=table["level"],
        entry_point="" if is_script else name,
        template="" if is_script else f"{_signature(solution)}    ...\n",
        public=tuple(_cases(table["public"], is_script)),
        hidden=tuple(_cases(table["hidden"], is_script)),
        reference=solution,
        mutants=tuple(_mutants(table["mutants"], solution)),
        tolerance=table.get("tolerance"),
        split=split_of(problem_id),
        source="art-gym",
    )


def split_of(problem_id: str) -> str:
    """``"test"`` for about a third of the ids, else ``"train"``. Only the id decides, so it never changes."""
    digest = hashlib.sha256(f"{_SPLIT_SALT}:{problem_id}".encode()).digest()
    return "test" if int.from_bytes(digest) % _TEST_SHARE == 0 else "train"


def _signature(solution: str) -> str:
    """The lines up to the first that ends with a colon."""
    head, colon, _ = solution.partition(":\n")
    return head + colon


def _cases(block: str, is_script: bool) -> Iterator[Case]:
    pending = ""
    for line in block.strip().splitlines():
        pending = f"{pending} {line.strip()}".strip()
        if (found := _split_case(pending)) is not None:
            (args, expected), pending = found, ""
            yield Case(stdin=args[0], stdout=expected) if is_script else Case(args=args, expected=expected)
    if pending:
        raise ValueError(f"not a case, which is `arguments -> expected` in Python literals: {pending[:200]}")


def _split_case(text: str) -> tuple[tuple[Any, ...], Any] | None:
    """Arguments and expected value, or ``None`` if the case is longer. A string may hold an arrow too."""
    parts = text.split(_ARROW)
    for cut in range(1, len(parts)):
        arguments, expected = (_ARROW.join(side) for side in (parts[:cut], parts[cut:]))
        try:
            return read_literal(f"({arguments},)"), read_literal(expected)
        except ValueError:
            continue
    return None


def _mutants(block: str, solution: str) -> Iterator[str]:
    """The solution with one mistake each."""
    for line in block.strip().splitlines():
        old, found, new = line.strip().partition(_BECOMES)
        count = solution.count(old.strip()) if found else 0
        if count != 1:
            raise ValueError(
                f"a mutant is `old => new` and `old` occurs once in the solution, not {count} times: {line!r}"
            )
        yield solution.replace(old.strip(), new.strip())
