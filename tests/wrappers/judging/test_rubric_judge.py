import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.wrappers.judging.base import Attempt, Criterion, JudgingError, Rubric, Step, judge_group
from art_gym.wrappers.judging.rubric_judge import (
    CLASSIC_CRITERIA,
    CLASSIC_RUBRIC,
    CriterionFunction,
    RubricJudge,
    accuracy,
    agreement,
    completeness,
    efficiency,
    user_satisfaction,
)


def call(name: str, observation: str = "ok", seconds: float | None = None, **arguments: Any) -> Step:
    return Step(f"{name}(…)", observation, call={"name": name, "arguments": arguments}, seconds=seconds)


def wrong(observation: str = "No tool.", seconds: float | None = None) -> Step:
    return Step("?", observation, error={"kind": "no_call", "message": observation}, seconds=seconds)


def attempt(*steps: Step, ending: str = "terminated", **facts: Any) -> Attempt:
    return Attempt("a", "the task", tuple(steps), ending=ending, facts=facts)


@pytest.mark.parametrize(
    ("expected", "result", "value"),
    [
        ("Maria Holt", " maria   HOLT\n", 1.0),
        ("12 March", "13 March", 0.875),
        ("yes", "", 0.0),
        ("", "", 1.0),
        ("alpha beta gamma " * 20_000, "alpha beta gamma " * 20_000 + "delta " * 30_000, 120 / 150),
        ("ab" * 50_000, "ba" * 50_000, 0.0),
        (42, "42.0", 1.0),
        (42, "forty-two", 0.0),
        (100, 75, 0.75),
        (-5, 5, 0.0),
        (0, 0.1, 0.0),
        (1e308, -1e308, 0.0),
        (float("inf"), float("inf"), 1.0),
        (1.0, float("nan"), 0.0),
        (10**400, 3, 0.0),
        (True, 1, 0.0),
        (1, True, 0.0),
        ({"a": 1, "b": 2}, {"a": 1}, 0.5),
        ({"a": 1}, {"a": 1, "b": 2}, 0.5),
        ({"a": {"b": "x", "c": "y"}}, {"a": {"b": "x"}}, 0.5),
        ({"a": 1}, "a", 0.0),
        ([1, 2, 3], [1, 2], 2 / 3),
        ([1, 2], [1, 2, 3, 4], 0.5),
        ([1, 2], [2, 1], 0.5),
        ([1], 1, 0.0),
        ("text", {"a": 1}, 0.0),
        ("text", None, 0.0),
    ],
)
def test_agreement_of_what_json_can_hold(expected: Any, result: Any, value: float) -> None:
    assert agreement(expected, result) == pytest.approx(value)
    if value == 1:
        assert agreement(expected, result, exact=True) == 1


def test_an_exact_match_gives_nothing_for_a_likeness() -> None:
    assert agreement("12 March", "13 March", exact=True) == agreement(100, 99, exact=True) == 0
    assert agreement({"a": "x", "b": "near"}, {"a": "x", "b": "neat"}, exact=True) == 0.5
    assert agreement(["x", "near"], ["x", "neat"], exact=True) == 0.5


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_agreement_is_a_number_from_0_to_1_and_1_for_equal_values(expected: Any, result: Any) -> None:
    for exact in (False, True):
        assert 0 <= agreement(expected, result, exact=exact) <= 1
    # An integer that no float can hold is the documented exception.
    if "nan" not in repr(expected) and not any(len(part) > 300 for part in repr(expected).split()):
        assert agreement(expected, expected) == pytest.approx(1.0)


def test_accuracy_compares_the_result_with_the_expected_one() -> None:
    assert accuracy(attempt(call("x"), expected="red", result="Red")).value == 1
    assert accuracy(attempt(call("x"), expected="red")).value == 0
    assert accuracy(attempt(expected="2024-03-12", result="2024-03-13")).value == pytest.approx(0.9)
    assert accuracy(attempt(expected="2024-03-12", result="2024-03-13", match="exact")).value == 0


@pytest.mark.parametrize(
    ("steps", "ending", "value"),
    [
        ([call("x"), call("y")], "terminated", 1.0),
        ([call("x"), call("y")], "truncated", 0.5),
        ([wrong(), call("y")], "terminated", 0.5),
        ([call("y"), wrong()], "terminated", 0.25),
        ([], "unfinished", 0.0),
    ],
)
def test_without_an_expected_result_the_form_is_judged(steps: list[Step], ending: str, value: float) -> None:
    found = accuracy(attempt(*steps, ending=ending))
    assert found.value == pytest.approx(value)
    assert found.why


def solved(steps: int, **facts: Any) -> Attempt:
    return attempt(*[call("x")] * steps, expected=1, result=1, **facts)


REQUIRED = {"required_actions": ["search", "read", "answer", "read"]}
DONE = (call("search"), call("search"), call("answer"), wrong())
REFUSED = replace(call("read"), error={"kind": "refused", "message": "no"})


def waited(*seconds: float | None) -> Attempt:
    return attempt(*[call("x", seconds=time) for time in seconds])


@pytest.mark.parametrize(
    ("criterion", "judged", "value"),
    [
        (efficiency, solved(1, optimal_turns=2), 1),
        (efficiency, solved(8, optimal_turns=2), 0.25),
        (efficiency, solved(1), 1),
        (efficiency, solved(11), 0.5),
        (efficiency, solved(500, task_type="game"), 1),
        (efficiency, attempt(call("x"), wrong(), task_type="game", expected=1, result=1), 0.5),
        (efficiency, attempt(ending="unfinished"), 0),
        (efficiency, attempt(call("answer"), expected="red", result=None, optimal_turns=2), 0),
        (efficiency, attempt(call("x"), expected={"a": 1, "b": 2}, result={"a": 1}, optimal_turns=1), 0.5),
        (completeness, attempt(*DONE, REFUSED, **REQUIRED), 2 / 3),
        (completeness, attempt(*DONE, call("read"), **REQUIRED), 1),
        (completeness, attempt(call("x")), 1),
        (completeness, attempt(call("x"), ending="truncated"), 0),
        (completeness, attempt(), 0),
        (user_satisfaction, attempt(), 0),
        (user_satisfaction, attempt(call("x"), wrong()), 0.5),
        (user_satisfaction, waited(0, 1), 1),
        (user_satisfaction, waited(10), 0.75),
        (user_satisfaction, waited(19), 0.625),
        (user_satisfaction, waited(float("inf")), 0.5),
        (user_satisfaction, waited(None, 10), 0.75),
    ],
)
def test_criteria(criterion: CriterionFunction, judged: Attempt, value: float) -> None:
    assert criterion(judged)[0] == pytest.approx(value)


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=5), min_size=1, max_size=6), st.data())
def test_one_more_matched_key_never_lowers_accuracy(expected: dict[str, str], data: st.DataObject) -> None:
    result = data.draw(st.dictionaries(st.sampled_from(sorted(expected)), st.text(max_size=5)))
    result |= data.draw(st.dictionaries(st.text(min_size=4, max_size=5), st.text(max_size=3), max_size=2))
    key = data.draw(st.sampled_from(sorted(expected)))
    better = result | {key: expected[key]}
    before = accuracy(attempt(expected=expected, result=result)).value
    assert accuracy(attempt(expected=expected, result=better)).value >= before - 1e-12


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["3 of 4 tests pass", "NameError", "m1 Ann"]) | st.text(max_size=10),
            st.none() | st.just({"name": "search", "arguments": {"id": "m1"}}),
            st.none() | st.just({"kind": "no_call", "message": "no"}),
            st.none() | st.floats(0, 1e9),
        ),
        max_size=4,
    ),
    st.sampled_from(["terminated", "truncated", "unfinished"]),
    st.sampled_from(["game", "other"]),
    st.fixed_dictionaries(
        {},
        optional={
            "expected": json_values,
            "result": json_values,
            "match": st.sampled_from(["exact", "similar"]),
            "optimal_turns": st.integers(1, 9),
            "required_actions": st.lists(st.sampled_from(["search", "select", "read"])),
        },
    ),
)
def test_every_criterion_gives_a_number_from_0_to_1_and_a_reason(
    seen: list[tuple[Any, ...]], ending: str, task_type: str, facts: dict[str, Any]
) -> None:
    steps = [Step(text, text, 0.0, *rest) for text, *rest in seen]
    for criterion in CLASSIC_CRITERIA.values():
        value, why = criterion(attempt(*steps, ending=ending, task_type=task_type, **facts))
        assert 0 <= value <= 1
        assert why


FACTS = {"expected": "m1", "optimal_turns": 2, "required_actions": ["search", "select"]}


def named(id_: str, *names: str | None, **facts: Any) -> Attempt:
    steps = (call(name) if name else wrong() for name in names)
    return replace(attempt(*steps, **FACTS, **facts), id=id_)


def fixed(value: Any) -> CriterionFunction:
    return lambda attempt: (value, "as it is")


RIGHT = named("right", "search", "select", result="m1")
SLOW = named("slow", *["search"] * 3, "select", result="m1")
WRONG = named("wrong", "search", "select", result="zz")
GAVE_UP = named("gave up", "answer")
NOTHING = named("nothing")


def test_the_total_is_the_weighted_sum_and_says_why() -> None:
    tried = named("tried", *["search"] * 7, None, "select", result="zz")
    scores = judge_group(RubricJudge(), [RIGHT, SLOW, WRONG, GAVE_UP, NOTHING, tried])
    tried_score = scores.pop("tried").value
    assert {name: score.value for name, score in scores.items()} == pytest.approx(
        {"right": 1.0, "slow": 0.4 + 0.15 + 0.3, "wrong": 0.3, "gave up": 0.1, "nothing": 0.0}
    )
    assert tried_score > scores["gave up"].value, "giving up at once is worth less than any honest try"
    parts = {"accuracy": 1.0, "efficiency": 0.5, "completeness": 1.0, "user_satisfaction": 1.0}
    assert scores["slow"].parts == parts
    assert "efficiency 0.50: 4 steps" in scores["slow"].explanation


def test_criteria_of_ones_own_add_to_the_classic_and_replace_them() -> None:
    def brief(attempt: Attempt) -> tuple[bool, str]:
        return len(attempt.steps) <= 3, "short enough"

    functions = {"brief": brief, "accuracy": fixed(np.float32(0.5))}
    judge = RubricJudge(Rubric.of({"brief": 0.5, "accuracy": 0.5}), functions)
    scores = judge([RIGHT, SLOW])
    assert (scores["right"].value, scores["slow"].value) == (0.75, 0.25)
    assert scores["right"].parts == {"brief": 1.0, "accuracy": 0.5}
    assert [type(part) for part in scores["right"].parts.values()] == [float, float]
    assert judge([RIGHT], CLASSIC_RUBRIC)["right"].value == pytest.approx(0.8)
    above = Rubric(tuple(Criterion(name, 0.25 + 2e-7) for name in CLASSIC_CRITERIA))
    assert RubricJudge(above).score(RIGHT).value == 1.0, "weights that round to more than 1"
    assert pickle.loads(pickle.dumps(RubricJudge()))([SLOW]) == RubricJudge()([SLOW])


def test_a_criterion_without_a_function_is_refused_with_the_near_miss() -> None:
    rubric = Rubric.of({"acuracy": 1.0})
    for judge in (lambda: RubricJudge(rubric), lambda: RubricJudge()([RIGHT], rubric)):
        with pytest.raises(JudgingError, match="`acuracy`; did you mean `accuracy`"):
            judge()


@pytest.mark.parametrize("returned", [0.5, *((wrong, "why") for wrong in (math.nan, 7.5, -0.1, "1", None))])
def test_what_is_no_value_of_a_criterion_is_refused_by_name(returned: Any) -> None:
    with pytest.raises(JudgingError, match="`mine`"):
        RubricJudge(Rubric.of({"mine": 1.0}), {"mine": lambda attempt: returned})([RIGHT])


@pytest.mark.parametrize(
    ("criterion", "judged", "named"),
    [
        (accuracy, attempt(expected="red", result="red", match="exakt"), "did you mean `exact`"),
        *((efficiency, solved(2, optimal_turns=x), "optimal_turns") for x in (0, math.nan, "2", True)),
        *((user_satisfaction, waited(seconds), "seconds") for seconds in (-1.0, math.nan)),
    ],
)
def test_facts_out_of_range_are_refused(criterion: CriterionFunction, judged: Attempt, named: str) -> None:
    with pytest.raises(JudgingError, match=named):
        criterion(judged)
