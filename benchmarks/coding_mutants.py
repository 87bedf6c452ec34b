"""How often hidden tests notice a small mistake: one operator of each reference solution is changed.

Each problem gives one mutant, drawn by seed, or with ``--all`` every one. A mutant that is not noticed either
computes the same (nobody can tell it from a solution) or shows what the tests of that problem do not hold.

    python benchmarks/coding_mutants.py HumanEval.jsonl.gz
    python benchmarks/coding_mutants.py builtin --all
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
from collections.abc import Iterator

import numpy as np

from art_gym.envs.coding.judge import grade
from art_gym.envs.coding.loaders.load import load_problems
from art_gym.envs.coding.problem import HOLE, Problem
from art_gym.envs.coding.problems.builtin import load
from art_gym.envs.coding.sandbox import Limits
from art_gym.envs.coding.sharing import shared_sandbox

LIMITS = Limits(wall_seconds=10, cpu_seconds=3)  # a mutant that never ends is noticed, but takes its time
_PAIRS = (
    "Lt LtE, LtE Lt, Gt GtE, GtE Gt, Eq NotEq, NotEq Eq, In NotIn, NotIn In, Is IsNot, "
    "IsNot Is, Add Sub, Sub Add, "
    "Mult Add, Div Mult, FloorDiv Mult, Mod FloorDiv, Pow Mult, BitXor BitOr, BitAnd BitOr, BitOr BitAnd, "
    "LShift RShift, RShift LShift, And Or, Or And"
)
SWAPS = {
    getattr(ast, one): getattr(ast, other) for one, other in (pair.split() for pair in _PAIRS.split(", "))
}


def mutants(code: str, name: str) -> Iterator[str]:
    """Every program that differs from this one in one operator, inside the function if it is there."""
    tree = ast.parse(code)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    body = functions[0] if functions else tree
    places = [
        (index, field, position)
        for index, node in enumerate(ast.walk(body))
        for field, value in ast.iter_fields(node)
        for position, item in enumerate(value if isinstance(value, list) else [value])
        if type(item) in SWAPS
    ]
    for index, field, position in places:
        changed = copy.deepcopy(tree)
        inside = changed.body[tree.body.index(functions[0])] if functions else changed
        node = list(ast.walk(inside))[index]
        value = getattr(node, field)
        if isinstance(value, list):
            value[position] = SWAPS[type(value[position])]()
        else:
            setattr(node, field, SWAPS[type(value)]())
        yield ast.unparse(changed)


def tried(problem: Problem, every: bool, rng: np.random.Generator) -> list[str]:
    found = list(mutants(problem.reference, problem.entry_point)) if HOLE not in problem.template else []
    if every or not found:
        return found
    return [found[int(rng.integers(len(found)))]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", help="a file that art-gym coding validate reads, or builtin")
    parser.add_argument("--all", action="store_true", help="every mutant of every problem")
    parser.add_argument("--seed", type=int, default=0, help="which mutant of each problem")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args()
    problems = load() if options.file == "builtin" else load_problems(options.file).problems
    rng = np.random.default_rng(options.seed)
    count, unnoticed, without = 0, [], []
    for problem in problems:
        programs = tried(problem, options.all, rng)
        if not programs:
            without.append(problem.id)
        for program in programs:
            verdict = grade(problem, program, shared_sandbox(), limits=LIMITS)
            if verdict.infrastructure:
                raise SystemExit(verdict.infrastructure)
            count += 1
            if verdict.solved:
                unnoticed.append(problem.id)
    rate = 1 - len(unnoticed) / count
    if options.json:
        print(json.dumps({"mutants": count, "noticed": rate, "unnoticed": unnoticed, "without": without}))
        return
    print(f"{count} mutants of {len(problems)} problems; {len(without)} problems have no operator to change")
    print(f"noticed: {count - len(unnoticed)} ({rate:.1%})")
    print(f"not noticed: {', '.join(unnoticed) or 'none'}")


if __name__ == "__main__":
    main()
