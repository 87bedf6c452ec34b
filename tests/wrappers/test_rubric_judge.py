from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.wrappers.judging.attempts import Attempt, Step
from art_gym.wrappers.judging.criteria import CLASSIC_CRITERIA, CLASSIC_RUBRIC
from art_gym.wrappers.judging.criteria_findings import CriterionFunction, Finding
from art_gym.wrappers.judging.errors import JudgingError
from art_gym.wrappers.judging.judges import judge_group
from art_gym.wrappers.judging.rubric_judge import RubricJudge
from art_gym.wrappers.judging.rubrics import Criterion, Rubric

FACTS = {"expected": "m1", "optimal_turns": 2, "required_actions": ["search", "select"]}


def step(name: str | None) -> Step:
    if name is None:
        return Step("?", "No call.", error={"kind": "no_call", "message": "No call."})
    return Step(f"{name}()", "ok", call={"name": name, "arguments": {}})


def attempt(id_: str, *names: str | None, **facts: Any) -> Attempt:
    return Attempt(id_, "the task", tuple(map(step, names)), facts={**FACTS, **facts})


def fixed(value: Any) -> CriterionFunction:
    return lambda attempt: (value, "as it is")


RIGHT = attempt("right", "search", "select", result="m1")
SLOW = attempt("slow", *["search"] * 3, "select", result="m1")
WRONG = attempt("wrong", "search", "select", result="zz")
GAVE_UP = attempt("gave up", "answer")
NOTHING = attempt("nothing")


def test_the_total_is_the_weighted_sum_and_says_why() -> None:
    scores = judge_group(RubricJudge(), [RIGHT, SLOW, WRONG, GAVE_UP, NOTHING])
    assert {name: score.value for name, score in scores.items()} == pytest.approx(
        {"right": 1.0, "slow": 0.4 + 0.15 + 0.3, "wrong": 0.3, "gave up": 0.1, "nothing": 0.0}
    )
    assert scores["slow"].parts == {
        "accuracy": 1.0,
        "efficiency": 0.5,
        "completeness": 1.0,
        "user_satisfaction": 1.0,
    }
    assert "efficiency 0.50: 4 steps where 2 are enough" in scores["slow"].explanation


def test_giving_up_at_once_is_worth_less_than_any_honest_try() -> None:
    tried = attempt("tried", *["search"] * 7, None, "select", result="zz")
    scores = RubricJudge()([GAVE_UP, NOTHING, tried])
    assert scores["nothing"].value < scores["gave up"].value < scores["tried"].value


def test_criteria_of_ones_own_add_to_the_classic_and_replace_them() -> None:
    def brief(attempt: Attempt) -> Finding:
        return Finding(float(len(attempt.steps) <= 3), "short enough")

    rubric = Rubric.of({"brief": 0.5, "accuracy": 0.5})
    judge = RubricJudge(rubric, {"brief": brief, "accuracy": fixed(0.5)})
    scores = judge([RIGHT, SLOW])
    assert scores["right"].value == 0.75
    assert scores["right"].parts == {"brief": 1.0, "accuracy": 0.5}
    assert scores["slow"].value == 0.25
    assert judge([RIGHT], CLASSIC_RUBRIC)["right"].value == pytest.approx(0.8)


def test_a_criterion_without_a_function_is_refused_with_the_near_miss() -> None:
    rubric = Rubric.of({"acuracy": 1.0})
    with pytest.raises(JudgingError, match="`acuracy`; did you mean `accuracy`"):
        RubricJudge(rubric)
    with pytest.raises(JudgingError, match="`acuracy`; did you mean `accuracy`"):
        RubricJudge()([RIGHT], rubric)


@pytest.mark.parametrize("value", [float("nan"), 7.5, -0.1, float("inf"), "1", None])
def test_a_criterions_value_out_of_range_is_refused_by_name(value: Any) -> None:
    judge = RubricJudge(Rubric.of({"mine": 1.0}), {"mine": fixed(value)})
    with pytest.raises(JudgingError, match=r"`mine` gave attempt 'right'.*from 0 to 1"):
        judge([RIGHT])


def test_a_criterion_that_returns_no_pair_is_refused_by_name() -> None:
    function: Any = lambda attempt: 0.5  # noqa: E731
    with pytest.raises(JudgingError, match=r"`mine` returned 0\.5"):
        RubricJudge(Rubric.of({"mine": 1.0}), {"mine": function})([RIGHT])


def test_numpys_numbers_and_truth_are_values_too() -> None:
    rubric = Rubric.of({"a": 0.5, "b": 0.5})
    score = RubricJudge(rubric, {"a": fixed(np.float32(0.5)), "b": fixed(True)}).score(RIGHT)
    assert score.value == 0.75
    assert [type(part) for part in score.parts.values()] == [float, float]


def test_weights_that_round_to_more_than_1_are_clamped() -> None:
    rubric = Rubric(tuple(Criterion(name, 0.25 + 2e-7) for name in CLASSIC_CRITERIA))
    assert RubricJudge(rubric).score(RIGHT).value == 1.0


@pytest.mark.parametrize("group", [[], [RIGHT, RIGHT], [RIGHT, replace(SLOW, task="another")]])
def test_what_is_no_group_is_refused(group: list[Attempt]) -> None:
    with pytest.raises(JudgingError):
        RubricJudge()(group)


def test_a_judge_travels_to_a_worker() -> None:
    assert pickle.loads(pickle.dumps(RubricJudge()))([SLOW]) == RubricJudge()([SLOW])


# --- properties -----------------------------------------------------------------------------------------

groups = st.lists(
    st.builds(
        lambda names, result, ending: replace(attempt("", *names, result=result), ending=ending),
        st.lists(st.none() | st.sampled_from(["search", "select", "read"]), max_size=5),
        st.none() | st.sampled_from(["m1", "m12", "other"]),
        st.sampled_from(["terminated", "truncated"]),
    ),
    min_size=1,
    max_size=5,
).map(lambda attempts: [replace(attempt, id=f"n{index}") for index, attempt in enumerate(attempts)])


@given(groups, st.randoms(use_true_random=False))
def test_order_and_names_change_no_score(group: list[Attempt], random: Any) -> None:
    scores = RubricJudge()(group)
    shuffled = random.sample(group, len(group))
    renamed = [replace(attempt, id=f"other {attempt.id}") for attempt in shuffled]
    assert RubricJudge()(renamed) == {f"other {id_}": score for id_, score in scores.items()}


@given(groups, st.data())
def test_adding_an_identical_attempt_changes_nothing(group: list[Attempt], data: st.DataObject) -> None:
    scores = RubricJudge()(group)
    twin = data.draw(st.sampled_from(group))
    again = RubricJudge()([*group, replace(twin, id="twin")])
    assert again.pop("twin") == scores[twin.id]
    assert again == scores


shares = st.floats(0, 1)


@given(
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
    st.fixed_dictionaries(dict.fromkeys(CLASSIC_CRITERIA, shares)),
    st.sampled_from(sorted(CLASSIC_CRITERIA)),
    shares,
)
def test_the_total_never_falls_when_one_criterion_rises(
    weights: list[float], values: Mapping[str, float], name: str, other: float
) -> None:
    whole = sum(weights)
    rubric = Rubric.of({n: weight / whole for n, weight in zip(CLASSIC_CRITERIA, weights, strict=True)})

    def total(values: Mapping[str, float]) -> float:
        return RubricJudge(rubric, {n: fixed(v) for n, v in values.items()}).score(RIGHT).value

    low, high = sorted([values[name], other])
    assert total({**values, name: low}) <= total({**values, name: high})
