"""Second solutions of the built-in problems, kept by problem and compared with the first ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from art_gym.envs.coding.problems import load

Solution = Callable[..., Any]
Draw = Callable[[np.random.Generator], tuple[Any, ...]]


class Oracles:
    """Solutions written from the statements alone, slow and plain where the references are quick."""

    def __init__(self, *themes: str) -> None:
        self.problems = {problem.id: problem for problem in load() if problem.id.split("/")[0] in themes}
        self.solutions: dict[str, Solution] = {}
        self.draws: dict[str, Draw] = {}

    def add(self, theme: str, draw: Draw | None = None) -> Callable[[Solution], Solution]:
        """Keep the decorated solution of the problem of its name; ``draw`` gives arguments to compare on."""

        def keep(function: Solution) -> Solution:
            name = f"{theme}/{function.__name__}"
            self.solutions[name] = function
            if draw is not None:
                self.draws[name] = draw
            return function

        return keep

    def check_cases(self, name: str) -> None:
        """The oracle must give the expected value of every case."""
        problem = self.problems[name]
        for case in (*problem.public, *problem.hidden):
            if problem.kind == "script":
                assert self.solutions[name](case.stdin).split("\n") == (case.stdout or "").split("\n"), case
                continue
            found = self.solutions[name](*case.args)
            if problem.tolerance is not None and found is not None:
                found = pytest.approx(found, abs=problem.tolerance)
            assert found == case.expected, case

    def check_drawn(self, name: str, count: int = 150) -> None:
        """The reference must give what the oracle gives."""
        problem = self.problems[name]
        scope: dict[str, Any] = {}
        exec(problem.reference, scope)
        rng = np.random.default_rng(0)
        for _ in range(count):
            arguments = self.draws[name](rng)
            assert scope[problem.entry_point](*arguments) == self.solutions[name](*arguments), arguments
