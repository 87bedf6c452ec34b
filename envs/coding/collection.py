"""The tasks of a coding environment: the built-in ones, the grammar's, or those of a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from os import PathLike, fspath

from art_gym.envs.coding.loaders import load_problems
from art_gym.envs.coding.problem import Problem
from art_gym.envs.coding.problems import load
from art_gym.envs.coding.problems.grammar import Grammar
from art_gym.envs.coding.problems.grammar import problems as grammar_problems
from art_gym.tasks import Task, TaskSet

BUILTIN = "builtin"
_PROGRAMS = (1, 2, 3)  # the levels that ask for a program


class ProblemTable(Mapping[str, Problem]):
    """Problems by id. Never changes, so copies of an environment share it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._by_id = {problem.id: problem for problem in problems}

    def __getitem__(self, problem_id: str) -> Problem:
        return self._by_id[problem_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __deepcopy__(self, memo: dict[int, object]) -> ProblemTable:
        return self


Collection = tuple[ProblemTable, TaskSet]


def open_collection(
    problems: str | PathLike[str] | Iterable[Problem],
    *,
    level: int | Iterable[int] | None = None,
    operators: int = 1,
    described: bool = True,
) -> Collection:
    """The problems by id, and the tasks made of them. Built once for the built-in ones and for a file.

    Args:
        problems: ``"builtin"``, a file or folder that `load_problems` reads, or problems.
        level: One level or several; ``None`` means all, of the built-in problems all that ask for a program.
        operators: Of the expressions of level 0.
        described: Whether tasks of level 0 tell in words what is wanted.

    Raises:
        ValueError: When no problem is left, or an argument is out of range.
        OSError: When the file cannot be read.
    """
    levels = _levels(level)
    if isinstance(problems, str) and problems == BUILTIN:
        return _builtin(levels or _PROGRAMS, operators, described)
    if isinstance(problems, str | PathLike):
        path = fspath(problems)
        return _from_file(path, os.stat(path).st_mtime_ns, levels)
    return _collect(problems, levels)


def _levels(level: int | Iterable[int] | None) -> tuple[int, ...]:
    if level is None:
        return ()
    levels = (level,) if isinstance(level, int) else tuple(level)
    for each in levels:
        if each not in range(4):
            raise ValueError(f"level must be 0 (one expression), 1, 2 or 3, not {each!r}")
    return levels


@lru_cache(maxsize=8)
def _builtin(levels: tuple[int, ...], operators: int, described: bool) -> Collection:
    chosen = [problem for problem in load() if problem.level in levels]
    if 0 in levels:
        chosen += grammar_problems(Grammar(operators=operators, described=described))
    return _collect(chosen, ())


@lru_cache(maxsize=8)
def _from_file(path: str, changed: int, levels: tuple[int, ...]) -> Collection:
    return _collect(load_problems(path).problems, levels)


def _collect(problems: Iterable[Problem], levels: tuple[int, ...]) -> Collection:
    chosen = [problem for problem in problems if not levels or problem.level in levels]
    if not chosen:
        raise ValueError(
            f"there is no problem of level {', '.join(map(str, levels))}" if levels else "no problem"
        )
    tasks = TaskSet(
        Task(problem.id, problem.prompt, problem.split, {"level": problem.level, "kind": problem.kind})
        for problem in chosen
    )
    return ProblemTable(chosen), tasks
