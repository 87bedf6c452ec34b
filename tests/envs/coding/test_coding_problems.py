"""The built-in problems: well formed, and graded by cases that only a solution passes."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from art_gym.envs.coding.baselines import constant_answers, empty_answer
from art_gym.envs.coding.drivers import drivers
from art_gym.envs.coding.judge import grade
from art_gym.envs.coding.loaders.load import load_problems, save_problems
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.problems.builtin import load, parse_problem, split_of
from art_gym.envs.coding.sandbox import Limits, Sandbox
from tests.envs.coding.sandboxes import opened

PROBLEMS = load()
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with opened(drivers=drivers(), limits=Limits(wall_seconds=3.0, cpu_seconds=1.0)) as box:
        yield box


@each_problem
def test_the_reference_passes_and_every_mutant_fails(problem: Problem, sandbox: Sandbox) -> None:
    for which in ("public", "hidden"):
        verdict = grade(problem, problem.reference, sandbox, which)
        assert verdict.solved, verdict
    verdicts = [grade(problem, mutant, sandbox) for mutant in problem.mutants]
    for mutant, verdict in zip(problem.mutants, verdicts, strict=True):
        assert verdict.passed < verdict.total, f"the hidden cases do not notice\n{mutant}"
    # A mutant that never is right is no plausible mistake.
    assert max(verdict.passed for verdict in verdicts) > 0


@each_problem
@pytest.mark.e2e
def test_answers_that_solve_nothing_fail(problem: Problem, sandbox: Sandbox) -> None:
    for answer in (empty_answer(problem), *constant_answers(problem), *learnt_by_heart(problem)):
        verdict = grade(problem, answer, sandbox)
        assert verdict.passed < verdict.total, answer


def learnt_by_heart(problem: Problem) -> list[str]:
    """An answer that knows every public example, and for the rest says what the first one expects."""
    if problem.kind == "script":
        known = {case.stdin: case.stdout for case in problem.public}
        first = problem.public[0].stdout
        return [f"import sys\nprint({known!r}.get(sys.stdin.read(), {first!r}), end='')\n"]
    pairs = [(case.args, case.expected) for case in problem.public]
    return [
        f"def {problem.entry_point}(*args):\n"
        f"    for known, value in {pairs!r}:\n"
        "        if args == known:\n"
        "            return value\n"
        f"    return {pairs[0][1]!r}\n"
    ]


def test_there_are_enough_of_each_level_and_theme_and_split() -> None:
    assert len({problem.id for problem in PROBLEMS}) == len(PROBLEMS) >= 120
    themes = Counter(problem.id.split("/")[0] for problem in PROBLEMS)
    assert min(themes.values()) >= 12
    assert themes.keys() == {problem.id.split("/")[0] for problem in PROBLEMS if problem.split == "test"}
    for level in (1, 2, 3):
        splits = [problem.split for problem in PROBLEMS if problem.level == level]
        assert len(splits) >= 40
        assert 0.3 < splits.count("test") / len(splits) < 0.37
    kept = {"text/initials": "train", "graphs/shortest_way": "train", "records/settle": "test"}
    assert kept == {name: split_of(name) for name in kept}
    assert all(problem.split == split_of(problem.id) for problem in PROBLEMS)


@each_problem
def test_a_problem_is_well_formed(problem: Problem) -> None:
    assert 2 <= len(problem.public) <= 3
    assert 8 <= len(problem.hidden) <= 20
    assert len(set(problem.mutants) - {problem.reference}) == len(problem.mutants) >= 3
    inputs = [repr((case.args, case.stdin)) for case in (*problem.public, *problem.hidden)]
    assert len(set(inputs)) == len(inputs)
    assert problem.prompt[0].isupper()
    assert problem.prompt.endswith((".", "``None``."))
    for code in (problem.reference, *problem.mutants):
        ast.parse(code)


@each_problem
def test_a_reference_stands_alone_and_has_the_signature_that_is_shown(problem: Problem) -> None:
    tree = ast.parse(problem.reference)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions] == [problem.entry_point or "main"]
    nodes = list(ast.walk(tree))
    imports = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    imports += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in imports} <= sys.stdlib_module_names
    if problem.kind == "function":
        shown = ast.parse(problem.template).body[0]
        assert isinstance(shown, ast.FunctionDef)
        assert ast.unparse(shown.args) == ast.unparse(functions[0].args)
        assert ast.get_docstring(functions[0]) is None


def test_the_jsonl_form_brings_every_problem_back_unchanged(tmp_path: Path) -> None:
    save_problems(PROBLEMS, tmp_path / "problems.jsonl")
    assert load_problems(tmp_path / "problems.jsonl").problems == PROBLEMS


def declare(**changed: str) -> Problem:
    table: dict[str, object] = {
        "level": 1,
        "tolerance": 0.5,
        "statement": "\nReturn n.\n",
        "solution": "def same(n: int) -> int:\n    return n  # a remark\n",
        "public": "1 -> 1",
        "hidden": "2 -> 2",
        "mutants": "return n => return 1",
    }
    return parse_problem("x/same", table | changed)


def test_a_table_becomes_a_problem() -> None:
    problem = declare()
    assert (problem.id, problem.entry_point, problem.prompt) == ("x/same", "same", "Return n.")
    assert (problem.tolerance, problem.template) == (0.5, "def same(n: int) -> int:\n    ...\n")
    assert problem.mutants == ("def same(n: int) -> int:\n    return 1  # a remark\n",)
    assert problem.hidden == (Case(args=(2,), expected=2),)


def test_a_case_may_take_several_lines_and_hold_an_arrow() -> None:
    problem = declare(hidden='"a -> b", [1,\n 2] -> {"x":\n "c -> d"}\n"" -> " -> "')
    assert [(case.args, case.expected) for case in problem.hidden] == [
        (("a -> b", [1, 2]), {"x": "c -> d"}),
        (("",), " -> "),
    ]


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        *(("hidden", cases, "not a case") for cases in ("1 2", "1 -> x", "1 -> 2\n3", "f(1) -> 2")),
        *(("mutants", text, "not 0 times") for text in ("return m => 1", "no arrow", "return n -> 1")),
        ("mutants", "n => m", "occurs once in the solution, not 5 times"),
    ],
)
def test_invalid_cases_and_mutants_are_refused(field: str, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        declare(**{field: text})
