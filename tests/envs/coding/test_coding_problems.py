"""The built-in problems: well formed, and graded by cases that only a solution passes."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from art_gym.envs.coding.baselines import constant_answers, empty_answer
from art_gym.envs.coding.drivers import drivers
from art_gym.envs.coding.judge import grade
from art_gym.envs.coding.loaders import load_problems, save_problems
from art_gym.envs.coding.problem import Problem
from art_gym.envs.coding.problems import load
from art_gym.envs.coding.problems.theme import Theme, split_of
from art_gym.envs.coding.sandbox import Limits, Sandbox, SandboxUnavailable

PROBLEMS = load()
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    try:
        box = Sandbox(drivers=drivers(), limits=Limits(wall_seconds=3.0, cpu_seconds=1.0))
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with box:
        yield box


# --- the cases decide ------------------------------------------------------------------------------------


@each_problem
def test_the_reference_passes_and_every_mutant_fails(problem: Problem, sandbox: Sandbox) -> None:
    for which in ("public", "hidden"):
        verdict = grade(problem, problem.reference, sandbox, which)
        assert verdict.solved, verdict
    verdicts = [grade(problem, mutant, sandbox) for mutant in problem.mutants]
    for mutant, verdict in zip(problem.mutants, verdicts, strict=True):
        assert not verdict.infrastructure
        assert verdict.passed < verdict.total, f"the hidden cases do not notice\n{mutant}"
    # A mutant that never is right is no plausible mistake.
    assert max(verdict.passed for verdict in verdicts) > 0


@each_problem
def test_answers_that_solve_nothing_fail(problem: Problem, sandbox: Sandbox) -> None:
    for answer in (empty_answer(problem), *constant_answers(problem), *learnt_by_heart(problem)):
        verdict = grade(problem, answer, sandbox)
        assert not verdict.infrastructure
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


# --- form ------------------------------------------------------------------------------------------------


def test_there_are_enough_of_each_level_and_theme() -> None:
    assert len(PROBLEMS) >= 120
    assert len({problem.id for problem in PROBLEMS}) == len(PROBLEMS)
    assert min(Counter(problem.level for problem in PROBLEMS).values()) >= 40
    assert set(Counter(problem.level for problem in PROBLEMS)) == {1, 2, 3}
    assert min(Counter(problem.id.split("/")[0] for problem in PROBLEMS).values()) >= 12


def test_a_third_of_each_level_and_some_of_each_theme_are_for_testing() -> None:
    for level in (1, 2, 3):
        splits = [problem.split for problem in PROBLEMS if problem.level == level]
        assert 0.3 < splits.count("test") / len(splits) < 0.37
    themes = Counter(problem.id.split("/")[0] for problem in PROBLEMS if problem.split == "test")
    assert set(themes) == {problem.id.split("/")[0] for problem in PROBLEMS}


def test_an_id_keeps_its_split() -> None:
    assert split_of("text/initials") == "train"
    assert split_of("graphs/shortest_way") == "train"
    assert split_of("records/settle") == "test"
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
    imports = [
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        )
    ]
    assert set(imports) <= sys.stdlib_module_names
    if problem.kind == "function":
        shown = ast.parse(problem.template).body[0]
        assert isinstance(shown, ast.FunctionDef)
        assert ast.unparse(shown.args) == ast.unparse(functions[0].args)
        assert ast.get_docstring(functions[0]) is None


def test_the_jsonl_form_brings_every_problem_back_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    save_problems(PROBLEMS, path)
    loaded = load_problems(path)
    assert tuple(loaded.problems) == PROBLEMS


# --- how a problem is declared -----------------------------------------------------------------------------

ONE_CASE = "1 -> 1"


def declare(public: str = ONE_CASE, hidden: str = "2 -> 2", mutants: str = "return n => return 1") -> Problem:
    theme = Theme("x")

    @theme.function(level=1, public=public, hidden=hidden, mutants=mutants, tolerance=0.5)
    def same(n: int) -> int:
        """Return n."""
        return n  # a remark

    return theme.problems[0]


def test_a_declaration_becomes_a_problem() -> None:
    problem = declare()
    assert (problem.id, problem.entry_point, problem.prompt, problem.tolerance) == (
        "x/same",
        "same",
        "Return n.",
        0.5,
    )
    assert problem.reference == "def same(n: int) -> int:\n    return n  # a remark\n"
    assert problem.template == "def same(n: int) -> int:\n    ...\n"
    assert problem.mutants == ("def same(n: int) -> int:\n    return 1  # a remark\n",)
    assert problem.hidden[0].args == (2,)
    assert problem.hidden[0].expected == 2


def test_a_case_may_take_several_lines_and_hold_an_arrow() -> None:
    problem = declare(hidden='"a -> b", [1,\n 2] -> {"x":\n "c -> d"}\n"" -> " -> "')
    assert [(case.args, case.expected) for case in problem.hidden] == [
        (("a -> b", [1, 2]), {"x": "c -> d"}),
        (("",), " -> "),
    ]


@pytest.mark.parametrize("cases", ["1 2", "1 -> x", "1 -> 2\n3", "f(1) -> 2"])
def test_what_is_no_case_is_refused(cases: str) -> None:
    with pytest.raises(ValueError, match="not a case"):
        declare(hidden=cases)


@pytest.mark.parametrize(
    ("mutants", "times"), [("return m => 1", 0), ("n => m", 5), ("no arrow", 0), ("return n -> 1", 0)]
)
def test_what_is_no_mutant_is_refused(mutants: str, times: int) -> None:
    with pytest.raises(ValueError, match=f"occurs once in the reference, not {times} times"):
        declare(mutants=mutants)


def test_a_problem_without_a_statement_is_refused() -> None:
    def wordless(n: int) -> int:
        return n

    with pytest.raises(ValueError, match="`wordless` needs a docstring"):
        Theme("x").function(level=1, public=ONE_CASE, hidden=ONE_CASE, mutants="n => m")(wordless)
