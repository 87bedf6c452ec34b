"""Load Exercism's Python track and QuixBugs, which are published as repositories."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.problems.builtin import split_of

_LEVEL = 2


def read_exercism(row: Mapping[str, Any]) -> Problem:
    """An exercise as one object: ``slug``, ``instructions``; by file name ``stub``, ``tests``, ``example``.

    Raises:
        ValueError: If it has not one file to fill in and one of tests.
    """
    slug = row["slug"]
    tests = {name: text for name, text in row["tests"].items() if name.endswith("_test.py")}
    if len(row["stub"]) != 1 or len(tests) != 1:
        raise ValueError(f"{slug}: one file to fill in and one of tests are wanted")
    beside = {name.removesuffix(".py"): text for name, text in row["tests"].items() if name not in tests}
    ((file, stub),) = row["stub"].items()
    return Problem(
        id=f"exercism/{slug}",
        prompt=row["instructions"].strip(),
        kind="unittest",
        level=_LEVEL,
        entry_point=file.removesuffix(".py"),
        template=stub,
        tests=_modules(beside) + next(iter(tests.values())),
        reference="\n".join(row["example"].values()),
        split=split_of(f"exercism/{slug}"),
        source="Exercism",
    )


def exercism_folder(root: Path) -> Iterator[tuple[str, Problem | str]]:
    """The practice exercises of a checkout of ``exercism/python``."""
    for folder in sorted(root.glob("exercises/practice/*")):
        try:
            files = json.loads((folder / ".meta/config.json").read_text("utf-8"))["files"]
            texts = {
                part: {name.rpartition("/")[2]: (folder / name).read_text("utf-8") for name in files[names]}
                for part, names in (("stub", "solution"), ("tests", "test"), ("example", "example"))
            }
            instructions = (folder / ".docs/instructions.md").read_text("utf-8")
            yield folder.name, read_exercism({"slug": folder.name, "instructions": instructions, **texts})
        except (OSError, ValueError, KeyError) as error:
            yield folder.name, f"{type(error).__name__}: {error}"


def quixbugs_folder(root: Path) -> Iterator[tuple[str, Problem | str]]:
    """The programs of a checkout of QuixBugs that come with test cases as JSON: each has one wrong line.

    What is expected is what the correct program returns; until `load.with_expected` has run that, each
    case expects ``None``.
    """
    for file in sorted(root.glob("python_programs/*.py")):
        name = file.stem
        cases = root / "json_testcases" / f"{name}.json"
        if name.endswith("_test") or name == "node":
            continue
        if not cases.exists():
            yield name, "it has no test cases as JSON"
            continue
        try:
            hidden = tuple(_quixbugs_cases(cases.read_text("utf-8")))
            correct = (root / "correct_python_programs" / file.name).read_text("utf-8")
            yield name, _repair(name, file.read_text("utf-8"), correct, hidden)
        except (OSError, ValueError) as error:
            yield name, f"{type(error).__name__}: {error}"


def _repair(name: str, broken: str, correct: str, hidden: tuple[Case, ...]) -> Problem:
    code, _, words = broken.partition('"""')
    about = words.partition('"""')[0].strip()
    return Problem(
        id=f"quixbugs/{name}",
        prompt=f"One line of this program is wrong. Repair it.\n\n{about}".strip(),
        level=_LEVEL,
        entry_point=name,
        template=code.strip() + "\n",
        public=hidden[:1],
        hidden=hidden,
        reference=correct,
        mutants=(broken,),
        equality="python",
        split=split_of(f"quixbugs/{name}"),
        source="QuixBugs",
    )


def _quixbugs_cases(text: str) -> Iterator[Case]:
    for line in text.splitlines():
        if line.strip():
            given, _ = json.loads(line)
            yield Case(args=tuple(given) if isinstance(given, list) else (given,))


def _modules(beside: Mapping[str, str]) -> str:
    """Code that makes helper modules of the tests importable."""
    if not beside:
        return ""
    lines = ["import sys as _sys, types as _types"]
    for name, text in beside.items():
        if not re.fullmatch(r"[^\W\d]\w*", name):
            raise ValueError(f"{name!r} is no module's name")
        lines += [
            f"_module = _sys.modules[{name!r}] = _types.ModuleType({name!r})",
            f"exec({text!r}, _module.__dict__)",
        ]
    return "\n".join(lines) + "\n\n"
