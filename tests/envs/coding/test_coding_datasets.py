"""Published sets, where their files are at hand: their solutions pass, and wrong ones do not.

The files are looked for in the folder that ``ART_GYM_DATA`` names, by default ``shared/data`` or, beside the
project, ``../shared/data``.
"""

import json
import os
import re
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
    return {name for name, verdict in verdicts.items() if not verdict.solved}


@pytest.mark.e2e
def test_every_solution_of_humaneval_passes_and_no_trick(sandbox: Sandbox) -> None:
    loaded = load_problems(data("HumanEval.jsonl.gz"))
    left_out = re.findall("HumanEval/([0-9]+)", loaded.summary())
    assert (len(loaded.problems), loaded.format) == (159, "humaneval")
    assert left_out == ["34", "35", "40", "54", "113"], "these show too much"
    assert unsolved(loaded.problems, sandbox) == set()
    # Its objects pass 155 of them where assertions share the candidate's process.
    always = Path(__file__).with_name("reward_hacks").joinpath("prelude.txt").read_text("utf-8")
    shares = []
    for problem in loaded.problems:
        name = problem.reference.rpartition("\ndef ")[2].partition("(")[0].strip()
        name = problem.entry_point if problem.kind == "function" else name
        known = [(case.args, case.expected) for case in problem.public] or [((), None)]
        heart = f"def {name}(*args): return next((b for a, b in {known} if a == args), {known[0][1]!r})\n"
        for code in (f"{always}\ndef {name}(*args): return Always()\n", "import os\nos._exit(0)\n", heart):
            verdict = grade(problem, code, sandbox)
            assert not verdict.solved, problem.id
        shares += [verdict.fraction] * bool(problem.public)
    assert sum(shares) < 0.15 * len(shares)


@pytest.mark.e2e
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
