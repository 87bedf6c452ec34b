"""How a built-in problem is declared: its reference solution, decorated with its cases and mutants.

The function's docstring is the statement, its text without the docstring the reference solution, its
signature the code to start from::

    @THEME.function(
        level=1,
        public='''
        "otto" -> True
        ''',
        hidden='''
        "" -> True
        "ab" -> False
        ''',
        mutants='''
        [::-1] => [::1]
        ''',
    )
    def is_mirrored(text: str) -> bool:
        \"\"\"Whether a text reads the same from both ends.\"\"\"
        return text == text[::-1]

A case is ``arguments -> expected``, both Python literals, over one line or more. The expected values are
written down, not computed: a slip in the reference shows. A mutant is ``old => new``: a piece of the
reference that occurs once, and what a plausible mistake has in its place.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from art_gym.envs.coding.literals import read_literal
from art_gym.envs.coding.problem import Case, Problem

_Function = TypeVar("_Function", bound=Callable[..., Any])

_ARROW, _BECOMES = "->", "=>"
_SPLIT_SALT = "art-gym coding 1723"  # with it, a third of each level and some of each theme are for testing
_TEST_SHARE = 3


class Theme:
    """A collection of problems on one subject.

    Args:
        name: Begins the ids of its problems.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []

    def function(
        self, *, level: int, public: str, hidden: str, mutants: str, tolerance: float | None = None
    ) -> Callable[[_Function], _Function]:
        """Add a problem whose solution is the decorated function.

        Args:
            level: 1 (one small idea), 2 (a loop with a catch) or 3 (an algorithm).
            public: Cases that are shown.
            hidden: Cases that decide.
            mutants: Mistakes that the hidden cases notice.
            tolerance: How far a float may be off.

        Raises:
            ValueError: Where a case or a mutant cannot be read.
        """

        def add(function: _Function) -> _Function:
            signature, body, statement = _read_source(function)
            reference = signature + body
            self.problems.append(
                Problem(
                    id=f"{self.name}/{function.__name__}",
                    prompt=statement,
                    level=level,
                    entry_point=function.__name__,
                    template=f"{signature}    ...\n",
                    public=tuple(Case(args=args, expected=value) for args, value in _read_cases(public)),
                    hidden=tuple(Case(args=args, expected=value) for args, value in _read_cases(hidden)),
                    reference=reference,
                    mutants=tuple(_read_mutants(mutants, reference)),
                    tolerance=tolerance,
                    split=split_of(f"{self.name}/{function.__name__}"),
                    source="art-gym",
                )
            )
            return function

        return add

    def script(
        self, *, level: int, public: str, hidden: str, mutants: str
    ) -> Callable[[Callable[[], None]], Callable[[], None]]:
        """Add a problem whose solution is a program that does what the decorated function does.

        The cases are ``stdin -> stdout``, two strings; the rest is as in :meth:`function`.
        """

        def add(function: Callable[[], None]) -> Callable[[], None]:
            _, body, statement = _read_source(function)
            reference = f'def main() -> None:\n{body}\n\nif __name__ == "__main__":\n    main()\n'
            self.problems.append(
                Problem(
                    id=f"{self.name}/{function.__name__}",
                    prompt=statement,
                    kind="script",
                    level=level,
                    public=tuple(Case(stdin=args[0], stdout=text) for args, text in _read_cases(public)),
                    hidden=tuple(Case(stdin=args[0], stdout=text) for args, text in _read_cases(hidden)),
                    reference=reference,
                    mutants=tuple(_read_mutants(mutants, reference)),
                    split=split_of(f"{self.name}/{function.__name__}"),
                    source="art-gym",
                )
            )
            return function

        return add


def split_of(problem_id: str) -> str:
    """``"test"`` for about a third of the ids, else ``"train"``; the id alone decides, for ever."""
    digest = hashlib.sha256(f"{_SPLIT_SALT}:{problem_id}".encode()).digest()
    return "test" if int.from_bytes(digest) % _TEST_SHARE == 0 else "train"


def _read_source(function: Callable[..., Any]) -> tuple[str, str, str]:
    """The text of a function's signature and of its body, and its docstring."""
    source = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    statement = ast.get_docstring(node)
    if statement is None:
        raise ValueError(f"`{function.__name__}` needs a docstring: it is the problem's statement")
    lines = source.splitlines(keepends=True)
    docstring = node.body[0]
    assert docstring.end_lineno is not None
    signature = "".join(lines[node.lineno - 1 : docstring.lineno - 1])
    return signature, "".join(lines[docstring.end_lineno :]), statement


def _read_cases(text: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The arguments and the expected value of each case in a block of them."""
    pending = ""
    for line in text.strip().splitlines():
        pending = f"{pending} {line.strip()}".strip()
        case = _read_case(pending)
        if case is not None:
            yield case
            pending = ""
    if pending:
        raise ValueError(f"not a case, which is `arguments -> expected` in Python literals: {pending[:200]}")


def _read_case(text: str) -> tuple[tuple[Any, ...], Any] | None:
    """One case, or ``None`` where the text is not a whole one. An arrow may also stand within a string."""
    parts = text.split(f" {_ARROW} ")
    for cut in range(1, len(parts)):
        arguments, expected = (f" {_ARROW} ".join(side) for side in (parts[:cut], parts[cut:]))
        try:
            return read_literal(f"({arguments},)"), read_literal(expected)
        except ValueError:
            continue
    return None


def _read_mutants(text: str, reference: str) -> Iterator[str]:
    """The reference with one mistake each."""
    for line in text.strip().splitlines():
        old, found, new = (part.strip() for part in line.partition(_BECOMES))
        if not found or reference.count(old) != 1:
            raise ValueError(
                f"a mutant is `old => new` where `old` occurs once in the reference, not "
                f"{reference.count(old) if found else 0} times: {line.strip()!r} in\n{reference}"
            )
        yield reference.replace(old, new)
