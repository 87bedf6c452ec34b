"""Load problems from files: the project's own JSONL, and the formats of published sets.

`load_problems` detects the format by the content. Nothing of a file is executed. What cannot be turned into a
problem is left out and listed with the reason.
"""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from art_gym.base import require_choice
from art_gym.envs.coding.loaders.formats import (
    read_apps,
    read_code_contests,
    read_exercism,
    read_humaneval,
    read_mbpp,
    read_stdin_tests,
)
from art_gym.envs.coding.loaders.shown import without_shown
from art_gym.envs.coding.problem import Problem


@dataclass(frozen=True, slots=True)
class Format:
    """A format of lines of JSON.

    Attributes:
        fields: Fields that a line of this format has, and no line of a format further up in `FORMATS`.
        read: Makes a problem of a line; raises ``ValueError`` if it cannot.
    """

    fields: frozenset[str]
    read: Callable[[Mapping[str, Any]], Problem]


FORMATS: Mapping[str, Format] = {
    "humaneval": Format(frozenset({"task_id", "entry_point", "test"}), read_humaneval),
    "mbpp": Format(frozenset({"task_id", "test_list"}), read_mbpp),
    "exercism": Format(frozenset({"slug", "tests"}), read_exercism),
    "code_contests": Format(frozenset({"public_tests", "private_tests"}), read_code_contests),
    "apps": Format(frozenset({"input_output"}), read_apps),
    "stdin": Format(frozenset({"content", "test"}), read_stdin_tests),
    "own": Format(frozenset({"id", "prompt"}), Problem.from_json),
}
"""The formats of lines of JSON, by name, in the order in which a line is compared with them."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The content of a file.

    Attributes:
        problems: The problems, with unique ids.
        left_out: What could not be turned into a problem: its name or line, and the reason.
        format: The format it was read as.
    """

    problems: tuple[Problem, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    format: str = "own"

    def summary(self) -> str:
        """One line, and one for each item left out."""
        head = f"{len(self.problems)} problems ({self.format})"
        if self.left_out:
            head += f", {len(self.left_out)} left out:"
        return "\n".join([head, *(f"  {name}: {reason}" for name, reason in self.left_out)])


def load_problems(path: str | PathLike[str], format: str | None = None) -> Loaded:
    """Read a file of problems.

    Args:
        path: A file with one JSON object a line (also ``.gz``, ``.xz``), or a JSON list.
        format: A name in `FORMATS`; by default detected by the content.

    Raises:
        ValueError: If the format is unknown, or nothing in the file is a problem.
        OSError: If the file cannot be read.
    """
    path = Path(path)
    if format is not None:
        require_choice("format", format, FORMATS)
    if not path.exists() or path.is_dir():
        raise ValueError(f"{path} is {'a folder' if path.is_dir() else 'no file'}: give the file of problems")
    rows = list(_rows(path))
    name = format or _format_of(rows, path)
    problems: dict[str, Problem] = {}
    left_out: list[tuple[str, str]] = []
    for where, row in rows:
        try:
            problem = FORMATS[name].read(row)
            problem = problem if name == "own" else without_shown(problem)
            if problem.id in problems:
                raise ValueError(f"the id {problem.id!r} occurs before")
            problems[problem.id] = problem
        except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, RecursionError) as error:
            left_out.append(
                (where, f"field {error} is missing" if isinstance(error, KeyError) else str(error))
            )
    if not problems:
        reason = f"; {left_out[0][0]}: {left_out[0][1]}" if left_out else ""
        raise ValueError(f"{path} holds no problem that can be used{reason}")
    return Loaded(tuple(problems.values()), tuple(left_out), name)


def save_problems(problems: Iterable[Problem], path: str | PathLike[str]) -> None:
    """Write problems in the project's own format: one JSON object a line."""
    lines = (json.dumps(problem.to_json(), ensure_ascii=False) + "\n" for problem in problems)
    Path(path).write_text("".join(lines), encoding="utf-8")


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The objects of a file, each with its place."""
    data = path.read_bytes()
    try:
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        elif path.suffix == ".xz":
            data = lzma.decompress(data)
        text = data.decode("utf-8")
        items = json.loads(text) if text.lstrip().startswith("[") else None
    except (ValueError, OSError, EOFError, lzma.LZMAError, zlib.error, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if items is not None:
        yield from ((f"item {number}", item) for number, item in enumerate(items, 1))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number} is no JSON: {error}") from None


def _format_of(rows: list[tuple[str, Any]], path: Path) -> str:
    first = rows[0][1] if rows else None
    if not isinstance(first, dict):
        raise ValueError(f"{path} holds no problems: its lines are no JSON objects")
    for name, format in FORMATS.items():
        if format.fields <= set(first):
            return name
    shown = ", ".join(list(first)[:10])
    formats = "; ".join(f"{name}: {', '.join(sorted(one.fields))}" for name, one in FORMATS.items())
    raise ValueError(f"{path}: no known format has the fields {shown}. Fields of each format: {formats}")
