"""The grammar of one-expression tasks: fair, learnable in form, and not to be had by a constant."""

import json
import re
from functools import lru_cache
from itertools import product
from types import CodeType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.envs.coding.problem import HOLE, Case, Problem
from art_gym.envs.coding.problems import grammar
from art_gym.envs.coding.problems.grammar import (
    NUMBERS,
    OPERATORS,
    Grammar,
    draw_expression,
    expressions_over,
    noisy_answer,
    plain_value,
    problems,
)
from art_gym.envs.coding.statement import statement

GRAMMARS = [Grammar(operators, described) for operators in (1, 2) for described in (True, False)]
SMALL = range(1, 10)


def parameters(problem: Problem) -> list[str]:
    signature = re.search(r"def f\((.*)\):", problem.template)
    assert signature is not None
    return signature[1].split(", ")


def evaluate(code: str, names: list[str], values: tuple[int, ...]) -> object:
    """What Python itself makes of an expression; ``None`` where it refuses."""
    compiled = compiled_expression(code)
    try:
        return compiled and eval(compiled, None, dict(zip(names, values, strict=True)))
    except (NameError, ZeroDivisionError):
        return None


@lru_cache(maxsize=10_000)
def compiled_expression(code: str) -> CodeType | None:
    try:
        return compile(code, "", "eval")
    except SyntaxError:
        return None


def right(problem: Problem, code: str) -> bool:
    """Whether an answer passes the hidden cases, by exact type and value."""
    return all(agrees(case, evaluate(code, parameters(problem), case.args)) for case in problem.hidden)


def agrees(case: Case, value: object) -> bool:
    return type(value) is type(case.expected) and value == case.expected


@pytest.fixture(scope="module", params=GRAMMARS, ids=repr)
def tasks(request: pytest.FixtureRequest) -> tuple[Problem, ...]:
    return problems(request.param, train=300, test=100)


def test_cases_are_what_python_computes_and_few_are_shown(tasks: tuple[Problem, ...]) -> None:
    for problem in tasks:
        every = (*problem.public, *problem.hidden)
        for case in every:
            assert agrees(case, evaluate(problem.reference, parameters(problem), case.args))
        assert len(problem.public) in (3, 4)
        assert len(problem.hidden) == 11
        assert len({case.args for case in every}) == len(every)
        assert all(value in SMALL for case in problem.public for value in case.args)
        assert any(value > 9 for case in problem.hidden for value in case.args)


def test_mutants_and_copies_of_what_is_shown_are_wrong(tasks: tuple[Problem, ...]) -> None:
    remarks = 0
    for problem in tasks:
        assert len(set(problem.mutants)) == 3
        remark = re.findall(r"# not (.*)", problem.template)
        assert remark in ([], [problem.mutants[0]])
        remarks += bool(remark)
        shown = [problem.prompt.removeprefix("Return ").rstrip("."), HOLE, *problem.mutants]
        assert not any(right(problem, text) for text in shown)
    assert 0.35 < remarks / len(tasks) < 0.65, "about half of the tasks tell a wrong expression"


@pytest.mark.e2e
def test_the_examples_leave_one_behaviour_of_the_grammar(tasks: tuple[Problem, ...]) -> None:
    for problem in tasks[:4]:
        names = parameters(problem)
        leaves = [[number] for number in NUMBERS] if re.search(r"\d", problem.reference) else [[]]
        for expression in (each for leaf in leaves for each in expressions_over([*names, *leaf])):
            code = compile(expression.code, "", "eval")

            def fits(case: Case) -> bool:
                return agrees(case, eval(code, None, dict(zip(names, case.args, strict=True))))  # noqa: B023

            if all(map(fits, problem.public)):
                assert all(map(fits, problem.hidden)), f"{expression.code} fits what {problem.template} shows"


def test_the_splits_share_no_behaviour(tasks: tuple[Problem, ...]) -> None:
    seen: dict[str, set[object]] = {"train": set(), "test": set()}
    for problem in tasks:
        names = sorted(parameters(problem))
        values = [evaluate(problem.reference, names, row) for row in product(SMALL, repeat=len(names))]
        seen[problem.split].add((*names, repr(values)))
    assert [problem.split for problem in tasks].count("test") == 100
    assert not seen["train"] & seen["test"]


def test_each_split_has_all_the_parts() -> None:
    parts: dict[str, set[str]] = {"train": set(), "test": set()}
    for problem in problems(train=400, test=400):
        parts[problem.split] |= set(re.findall(r"\w+|[^\w\s(),]+", problem.reference))
    assert parts["test"] == parts["train"]
    assert len(parts["train"]) == 12 + len(NUMBERS) + len(OPERATORS)


def test_ids_are_distinct_and_the_seed_decides_all_but_the_split() -> None:
    first = problems(train=60, test=20)
    assert first == problems(train=60, test=20)
    assert len({problem.id for problem in first}) == 80
    other = problems(train=60, test=20, seed=1)
    assert len({problem.id for problem in other} & {problem.id for problem in first}) < 10
    tests = {p.reference for p in problems(train=0, test=150, seed=5)}
    assert not tests & {p.reference for p in problems(train=600, test=0, seed=6)}


def test_no_constant_answer_pays(tasks: tuple[Problem, ...]) -> None:
    answers = {problem.reference for problem in tasks[:100]} | {"0", "1", "2", "True", "False"}
    rate = max(sum(right(problem, answer) for problem in tasks) for answer in answers) / len(tasks)
    assert rate < 0.05


@pytest.mark.e2e
def test_no_fixed_way_to_join_the_operands_pays(tasks: tuple[Problem, ...]) -> None:
    for operator in OPERATORS:
        for left, right_ in ((0, 1), (1, 0)):
            hits = 0
            for problem in tasks:
                operands = [*parameters(problem), *re.findall(r"\d+", problem.reference)]
                hits += right(problem, operator.code.format(l=operands[left], r=operands[right_]))
            assert hits / len(tasks) < 0.2


def test_what_is_shown_is_short_and_the_hole_is_filled_with_the_answer() -> None:
    for problem in problems(train=200, test=50):
        assert len(re.findall(r"\w+|[^\w\s]", statement(problem))) < 80
        assert len(re.findall(r"\w+|[^\w\s]", problem.reference)) <= 6
        scope: dict[str, Any] = {}
        exec(problem.complete(problem.reference), scope)
        assert all(agrees(case, scope["f"](*case.args)) for case in problem.hidden)
        assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem


def test_the_noisy_answer_is_right_as_often_as_asked(tasks: tuple[Problem, ...]) -> None:
    rng = np.random.default_rng(0)
    for rightness in (0.0, 0.3, 1.0):
        share = np.mean(
            [right(problem, noisy_answer(problem, rng, rightness=rightness)) for problem in tasks]
        )
        assert abs(share - rightness) <= 4 * np.sqrt(rightness * (1 - rightness) / len(tasks))


def test_a_wrong_answer_uses_the_parameters_and_numbers_of_the_task(tasks: tuple[Problem, ...]) -> None:
    answers = []
    for _ in range(2):
        rng = np.random.default_rng(1)
        answers.append([noisy_answer(problem, rng, rightness=0.0) for problem in tasks[:100]])
    assert answers[0] == answers[1]
    for problem, answer in zip(tasks, answers[0], strict=False):
        operands = set(re.findall(r"\w+", answer)) - {"max", "min", "abs"}
        assert operands == {*parameters(problem), *re.findall(r"\d+", problem.reference)}
    other = Problem("x", "Do it.", entry_point="g", template="def g(a):\n    ...\n", hidden=(Case((1,)),))
    with pytest.raises(ValueError, match="none of the grammar's"):
        noisy_answer(other, np.random.default_rng(0), rightness=0.0)


def test_arguments_out_of_range_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="operators"):
        Grammar(operators=3)
    monkeypatch.setattr(grammar, "_TRIES", 1)
    with pytest.raises(ValueError, match="not so many distinct tasks"):
        problems(train=100, test=50)


def test_no_two_operators_are_said_in_the_same_words() -> None:
    meanings: dict[str, set[str]] = {}
    for operator in OPERATORS:
        for words in operator.words:
            for left, right_ in (("x", "y"), ("y", "x")):
                said = words.format(l=left, r=right_)
                values = [
                    evaluate(operator.code.format(l=left, r=right_), ["x", "y"], row)
                    for row in product(SMALL, repeat=2)
                ]
                meanings.setdefault(said, set()).add(repr(values))
    assert all(len(behaviours) == 1 for behaviours in meanings.values())


@given(st.integers(0, 2**32), st.integers(1, 2), st.booleans())
def test_an_expression_computes_what_its_code_says(seed: int, operators: int, number: bool) -> None:
    rng = np.random.default_rng(seed)
    names = ["x", "y", "z"][: operators + 1 - number]
    expression = draw_expression([*names, *([int(rng.choice(NUMBERS))] if number else [])], rng)
    inputs = {name: rng.integers(1, 60, size=20) for name in names}
    for column, value in enumerate(expression.values(inputs)):
        row = tuple(int(inputs[name][column]) for name in names)
        expected = evaluate(expression.code, names, row)
        assert plain_value(int(value)) == expected
        assert type(plain_value(int(value))) is type(expected)


@given(st.integers(0, 2**32), st.integers(1, 2))
def test_one_operator_is_changed_and_the_operands_stay(seed: int, operators: int) -> None:
    expression = draw_expression(["x", "y", "z"][: operators + 1], np.random.default_rng(seed))
    others = list(expression.with_other_operator())
    assert len({other.code for other in others}) == len(others)
    for other in others:
        assert other != expression
        assert re.findall(r"\b[xyz]\b", other.code) == re.findall(r"\b[xyz]\b", expression.code)


def test_expressions_over_has_every_expression_that_is_drawn() -> None:
    rng = np.random.default_rng(0)
    for leaves in (["x", 4], ["x", "y", 4]):
        every = {expression.code for expression in expressions_over(leaves)}
        drawn = {draw_expression(leaves, rng).code for _ in range(4_000)}
        assert drawn <= every
        assert len(drawn) > 0.9 * len(every)
