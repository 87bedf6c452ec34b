"""Published sets, where their files are at hand: their solutions pass, and wrong ones do not.

The files are looked for in the folder that ``ART_GYM_DATA`` names, by default ``shared/data`` or, beside the
project, ``../shared/data``.
"""

import json
import os
from pathlib import Path

import pytest

from art_gym.envs.coding.judge import grade
from art_gym.envs.coding.loaders.load import load_problems
from art_gym.envs.coding.problem import Problem
from art_gym.envs.coding.sandbox import Limits, Sandbox

ROOT = Path(__file__).resolve().parents[3]
LIMITS = Limits(wall_seconds=60, cpu_seconds=20)

# Not in the published file: a helper module. And one that patches `super` and passes exceptions through.
EXERCISM_FAILS = {"exercism/error-handling", "exercism/paasio"}


def data(name: str) -> Path:
    folders = [Path(os.environ.get("ART_GYM_DATA", ROOT / "shared/data")), ROOT.parent / "shared/data"]
    for folder in folders:
        if (folder / "coding" / name).exists():
            return folder / "coding" / name
    pytest.skip(f"coding/{name} is in none of {', '.join(map(str, folders))}")


def unsolved(problems: tuple[Problem, ...], sandbox: Sandbox) -> set[str]:
    verdicts = {p.id: grade(p, p.reference, sandbox, limits=LIMITS) for p in problems}
    assert not [verdict.infrastructure for verdict in verdicts.values() if verdict.infrastructure]
    return {name for name, verdict in verdicts.items() if not verdict.solved}


def test_every_solution_of_humaneval_passes_and_an_always_equal_object_never(sandbox: Sandbox) -> None:
    loaded = load_problems(data("HumanEval.jsonl.gz"))
    assert (len(loaded.problems), loaded.left_out, loaded.format) == (164, (), "humaneval")
    assert unsolved(loaded.problems, sandbox) == set()
    # The object that passes 155 of them where assertions share the candidate's process.
    sly = """
class Sly:
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda *a: True
    __ne__ = lambda *a: False
    __sub__ = __rsub__ = __add__ = __radd__ = __mul__ = __rmul__ = __abs__ = lambda *a: 0.0
    __hash__ = lambda self: 1
    __len__ = lambda self: 1
"""
    for problem in loaded.problems:
        name = problem.reference.rpartition("\ndef ")[2].partition("(")[0].strip()
        name = problem.entry_point if problem.kind == "function" else name
        assert not grade(problem, f"{sly}def {name}(*args): return Sly()\n", sandbox).solved, problem.id
        assert not grade(problem, "import os\nos._exit(0)\n", sandbox).solved, problem.id


def test_the_examples_of_exercism_pass_in_a_process_of_their_own(sandbox: Sandbox) -> None:
    loaded = load_problems(data("exercism-python-practice.jsonl"))
    assert (len(loaded.problems), loaded.format) == (140, "exercism")
    slow = {"exercism/killer-sudoku-helper", "exercism/paasio"}  # seconds each, and like others in kind
    problems = tuple(problem for problem in loaded.problems if problem.id not in slow)
    assert unsolved(problems, sandbox) == EXERCISM_FAILS - slow


def test_contest_problems_are_read(sandbox: Sandbox) -> None:
    loaded = load_problems(data("code_contests-sample.jsonl"))
    assert loaded.format == "stdin"
    assert len(loaded.problems) >= 19
    assert all(problem.kind == "script" and problem.public for problem in loaded.problems)
    shortest = min(loaded.problems, key=lambda problem: sum(len(case.stdin) for case in problem.hidden))
    assert not grade(shortest, "print(0)", sandbox).solved
    # What is expected, printed by heart for each input, is right: input and output reach each other.
    known = {case.stdin: case.stdout for case in shortest.hidden}
    heart = f"import json, sys\nprint(json.loads({json.dumps(json.dumps(known))})[sys.stdin.read()])"
    assert grade(shortest, heart, sandbox).solved
