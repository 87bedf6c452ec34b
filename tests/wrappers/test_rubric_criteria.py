from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from art_gym.wrappers.judging.attempts import Attempt, Step
from art_gym.wrappers.judging.criteria import (
    CLASSIC_CRITERIA,
    CLASSIC_RUBRIC,
    accuracy,
    completeness,
    efficiency,
    user_satisfaction,
)
from art_gym.wrappers.judging.criteria_agreement import agreement
from art_gym.wrappers.judging.criteria_transcript import code_generation
from art_gym.wrappers.judging.errors import JudgingError


def call(name: str, observation: str = "ok", seconds: float | None = None, **arguments: Any) -> Step:
    told = {"name": name, "arguments": arguments}
    return Step(f"{name}(…)", observation, call=told, seconds=seconds)


def wrong(observation: str = "No tool.", seconds: float | None = None) -> Step:
    return Step("?", observation, error={"kind": "no_call", "message": observation}, seconds=seconds)


def attempt(*steps: Step, ending: str = "terminated", **facts: Any) -> Attempt:
    return Attempt("a", "the task", tuple(steps), ending=ending, facts=facts)


# --- agreement ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "result", "value"),
    [
        ("Maria Holt", " maria   HOLT\n", 1.0),
        ("12 March", "13 March", 0.875),
        ("paid", "unpaid", 0.8),
        ("yes", "", 0.0),
        ("", "", 1.0),
        ("42", 42, 1.0),
        (42, "42.0", 1.0),
        (42, "forty-two", 0.0),
        (100, 75, 0.75),
        (-5, 5, 0.0),
        (0, 0.0, 1.0),
        (0, 0.1, 0.0),
        (1e308, -1e308, 0.0),
        (float("inf"), float("inf"), 1.0),
        (1.0, float("nan"), 0.0),
        (10**400, 3, 0.0),
        (True, True, 1.0),
        (True, 1, 0.0),
        (1, True, 0.0),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, 1.0),
        ({"a": 1, "b": 2}, {"a": 1}, 0.5),
        ({"a": 1}, {"a": 1, "b": 2}, 0.5),
        ({"a": {"b": "x", "c": "y"}}, {"a": {"b": "x"}}, 0.5),
        ({}, {}, 1.0),
        ({"a": 1}, "a", 0.0),
        ([1, 2, 3], [1, 2], 2 / 3),
        ([1, 2], [1, 2, 3, 4], 0.5),
        ([1, 2], [2, 1], 0.5),
        ([], [], 1.0),
        ([1], "1", 0.0),
        ([1], 1, 0.0),
        ("text", {"a": 1}, 0.0),
        ("text", None, 0.0),
    ],
)
def test_agreement_of_what_json_can_hold(expected: Any, result: Any, value: float) -> None:
    assert agreement(expected, result) == pytest.approx(value)


@pytest.mark.parametrize(
    ("expected", "result", "value"),
    [
        ("12 March", "13 March", 0.0),
        ("12 March", "12 march ", 1.0),
        (100, 99, 0.0),
        ({"a": "x", "b": "near"}, {"a": "x", "b": "neat"}, 0.5),
        (["x", "near"], ["x", "neat"], 0.5),
    ],
)
def test_an_exact_match_gives_nothing_for_a_likeness(expected: Any, result: Any, value: float) -> None:
    assert agreement(expected, result, exact=True) == value


def test_long_texts_are_compared_by_words_in_linear_time() -> None:
    same_words = "alpha beta gamma " * 20_000
    began = time.process_time()
    assert agreement(same_words, same_words + "delta " * 30_000) == pytest.approx(120 / 150)
    assert agreement("ab" * 50_000, "ba" * 50_000) == 0.0
    assert agreement("ab" * 100, "ba" * 100) > 0.9
    assert time.process_time() - began < 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_agreement_is_a_number_from_0_to_1(expected: Any, result: Any) -> None:
    for exact in (False, True):
        assert 0 <= agreement(expected, result, exact=exact) <= 1


@given(json_values)
def test_everything_but_nan_agrees_fully_with_itself(value: Any) -> None:
    assume("nan" not in repr(value))
    # An integer that no float can hold is the documented exception.
    assume(not any(len(part) > 300 for part in repr(value).split()))
    assert agreement(value, value) == pytest.approx(1.0)


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=5), min_size=1, max_size=6), st.data())
def test_one_more_matched_key_never_lowers_accuracy(expected: dict[str, str], data: st.DataObject) -> None:
    result = data.draw(st.dictionaries(st.sampled_from(sorted(expected)), st.text(max_size=5)))
    result |= data.draw(st.dictionaries(st.text(min_size=4, max_size=5), st.text(max_size=3), max_size=2))
    key = data.draw(st.sampled_from(sorted(expected)))
    better = result | {key: expected[key]}
    before = accuracy(attempt(expected=expected, result=result)).value
    assert accuracy(attempt(expected=expected, result=better)).value >= before - 1e-12


# --- accuracy -------------------------------------------------------------------------------------------


def test_accuracy_compares_the_result_with_the_expected_one() -> None:
    assert accuracy(attempt(call("x"), expected="red", result="Red")).value == 1
    assert accuracy(attempt(call("x"), expected="red", result=None)).value == 0
    assert accuracy(attempt(call("x"), expected="red")).why == "it has no result"
    assert accuracy(attempt(expected="2024-03-12", result="2024-03-13")).value == pytest.approx(0.9)
    assert accuracy(attempt(expected="2024-03-12", result="2024-03-13", match="exact")).value == 0


def test_an_unknown_way_of_matching_is_named() -> None:
    with pytest.raises(JudgingError, match="'exakt'; did you mean `exact`"):
        accuracy(attempt(expected="red", result="red", match="exakt"))


SEARCHED = call("search", "1 mail: 2024 | Ann | budget for Falcon | m1", query="budget")


@pytest.mark.parametrize(
    ("task_type", "steps", "ending", "value"),
    [
        ("email_search", [SEARCHED, call("select", email_id="m1")], "terminated", 1.0),
        ("email_search", [SEARCHED, call("select", email_id="m9")], "terminated", 0.5),
        ("email_search", [SEARCHED, call("select", "m9 is wrong", email_id="m9")], "terminated", 0.5),
        ("email_search", [SEARCHED, call("answer", text="m1", sources=["m1", "m7"])], "terminated", 5 / 6),
        ("email_search", [SEARCHED, SEARCHED], "truncated", 0.0),
        ("email_search", [SEARCHED, wrong()], "terminated", 0.0),
        ("email_search", [], "terminated", 0.0),
        ("question_answering", [SEARCHED, call("answer", text="Ann")], "terminated", 1.0),
        ("question_answering", [SEARCHED, call("answer", text="Ann Smith")], "terminated", 0.75),
        ("question_answering", [SEARCHED, call("answer", text="I don’t know")], "terminated", 0.0),
        ("question_answering", [SEARCHED, call("answer", text="Ann " * 61)], "terminated", 0.0),
        ("question_answering", [SEARCHED, call("answer", text="?!")], "terminated", 0.0),
        ("question_answering", [SEARCHED], "truncated", 0.0),
        ("question_answering", [Step("Paris", "Thanks.")], "terminated", 1.0),
        ("game", [call("move"), wrong()], "terminated", 0.25),
        ("game", [call("move")], "truncated", 0.5),
        ("game", [], "truncated", 0.0),
        ("something else", [call("x"), call("y")], "terminated", 1.0),
        ("something else", [call("x"), call("y")], "truncated", 0.5),
        (None, [wrong(), call("y")], "terminated", 0.5),
        (None, [], "unfinished", 0.0),
    ],
)
def test_without_an_expected_result_the_transcript_is_judged_by_its_type(
    task_type: str | None, steps: Sequence[Step], ending: str, value: float
) -> None:
    assert accuracy(attempt(*steps, ending=ending, task_type=task_type)).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("observations", "ending", "value"),
    [
        (["5 of 5 examples pass.", "Thank you."], "terminated", 1.0),
        (["2 of 5 examples pass.", "Thank you."], "terminated", 0.7),
        (["2 of 5 examples pass.", "4/5 hidden tests passed"], "terminated", 0.9),
        (["Traceback (most recent call last):\nZeroDivisionError"], "truncated", 0.0),
        (["ValueError: no", "fine"], "truncated", 0.3),
        (["[exit code 1]"], "terminated", 0.2),
        (["[exit code 0]"], "terminated", 0.5),
        (["9 of 3 tests pass"], "terminated", 1.0),
        (["0 of 0 tests pass"], "terminated", 0.5),
        ([f"{'9' * 5000} of 3 tests pass"], "terminated", 0.5),
        (["3 of the 4 people did not pass"], "terminated", 0.5),
    ],
)
def test_code_is_judged_by_what_its_runs_showed(observations: list[str], ending: str, value: float) -> None:
    steps = [call("test", text) for text in observations]
    found = accuracy(attempt(*steps, ending=ending, task_type="code_generation"))
    assert found.value == pytest.approx(value)


def test_code_that_was_never_run_or_handed_in_is_worth_nothing() -> None:
    assert accuracy(attempt(wrong("5 of 5 tests pass"), task_type="code_generation")).value == 0


def test_heuristics_read_neither_reward_nor_success() -> None:
    for task_type in ("email_search", "question_answering", "code_generation", "game", "general"):
        plain = attempt(SEARCHED, call("select", email_id="m1"), task_type=task_type)
        paid = replace(plain, success=True, steps=tuple(replace(s, reward=9.0) for s in plain.steps))
        assert accuracy(plain) == accuracy(paid)


# --- efficiency -----------------------------------------------------------------------------------------


def solved(steps: int, **facts: Any) -> Attempt:
    return attempt(*[call("x")] * steps, expected=1, result=1, **facts)


def test_efficiency_is_the_optimum_by_the_steps() -> None:
    assert [efficiency(solved(n, optimal_turns=2)).value for n in (1, 2, 4, 8)] == [1, 1, 0.5, 0.25]


def test_without_an_optimum_efficiency_falls_with_the_steps() -> None:
    assert efficiency(solved(1)).value == 1
    assert efficiency(solved(11)).value == 0.5


def test_a_long_game_is_not_inefficient_and_an_invalid_move_is() -> None:
    assert efficiency(solved(500, task_type="game")).value == 1
    played = attempt(call("x"), wrong(), task_type="game", expected=1, result=1)
    assert efficiency(played).value == 0.5


def test_speed_is_worth_what_it_led_to() -> None:
    assert efficiency(attempt(ending="unfinished")).value == 0
    gave_up = attempt(call("answer"), expected="red", result=None, optimal_turns=2)
    assert efficiency(gave_up).value == 0
    half = attempt(call("x"), expected={"a": 1, "b": 2}, result={"a": 1}, optimal_turns=1)
    assert efficiency(half).value == 0.5


@pytest.mark.parametrize("optimum", [0, -1, float("nan"), "2", True])
def test_an_optimum_that_is_no_positive_number_is_refused(optimum: Any) -> None:
    with pytest.raises(JudgingError, match="optimal_turns"):
        efficiency(solved(2, optimal_turns=optimum))


@given(st.integers(1, 40), st.integers(0, 40), st.none() | st.integers(1, 20))
def test_fewer_steps_never_lower_efficiency(steps: int, more: int, optimum: int | None) -> None:
    facts = {} if optimum is None else {"optimal_turns": optimum}
    assert efficiency(solved(steps, **facts)).value >= efficiency(solved(steps + more, **facts)).value


# --- completeness ---------------------------------------------------------------------------------------


def test_completeness_is_the_share_of_required_actions_that_were_called_validly() -> None:
    required = ["search", "read", "answer", "read"]
    done = attempt(call("search"), call("search"), call("answer"), wrong(), required_actions=required)
    assert completeness(done).value == pytest.approx(2 / 3)
    assert completeness(done).why == "without read"
    refused = replace(call("read"), error={"kind": "refused", "message": "no"})
    assert completeness(replace(done, steps=(*done.steps, refused))).value == pytest.approx(2 / 3)
    assert completeness(replace(done, steps=(*done.steps, call("read")))).value == 1


@pytest.mark.parametrize(
    ("steps", "ending", "value"),
    [
        ([call("x")], "terminated", 1),
        ([call("x")], "truncated", 0),
        ([wrong()], "terminated", 0),
        ([], "terminated", 0),
    ],
)
def test_where_no_actions_are_required_an_attempt_is_complete_by_ending(
    steps: list[Step], ending: str, value: float
) -> None:
    assert completeness(attempt(*steps, ending=ending)).value == value


@given(st.lists(st.sampled_from("abc")), st.sampled_from("abc"))
def test_one_more_action_never_lowers_completeness(called: list[str], more: str) -> None:
    before = attempt(*map(call, called), required_actions=["a", "b"])
    after = attempt(*map(call, [*called, more]), required_actions=["a", "b"])
    assert completeness(after).value >= completeness(before).value


# --- user satisfaction ----------------------------------------------------------------------------------


def test_satisfaction_is_the_share_of_replies_without_error() -> None:
    assert user_satisfaction(attempt()).value == 0
    assert user_satisfaction(attempt(call("x"), wrong())).value == 0.5


def test_waiting_costs_up_to_half_of_it() -> None:
    def waited(*seconds: float) -> float:
        return user_satisfaction(attempt(*[call("x", seconds=time) for time in seconds])).value

    assert waited(0, 1) == 1
    assert waited(10) == 0.75
    assert waited(19) == 0.625
    assert waited(float("inf")) == 0.5
    assert waited(1, 10) == 0.875
    assert user_satisfaction(attempt(call("x"), call("x", seconds=10))).value == 0.75


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(JudgingError, match="seconds"):
        user_satisfaction(attempt(call("x", seconds=seconds)))


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100)), min_size=1, max_size=8), st.data())
def test_mending_or_hastening_a_reply_never_lowers_satisfaction(
    replies: list[tuple[bool, float]], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(replies) - 1))
    quicker = data.draw(st.floats(0, replies[index][1]))
    better = [*replies[:index], (True, quicker), *replies[index + 1 :]]

    def satisfaction(given: list[tuple[bool, float]]) -> float:
        return user_satisfaction(
            attempt(*[call("x", seconds=s) if valid else wrong(seconds=s) for valid, s in given])
        ).value

    assert satisfaction(better) >= satisfaction(replies) - 1e-12


# --- all of them ----------------------------------------------------------------------------------------


steps = st.lists(
    st.builds(
        Step,
        reply=st.text(max_size=10),
        observation=st.sampled_from(["", "3 of 4 tests pass", "NameError", "m1 Ann"]) | st.text(max_size=10),
        call=st.none()
        | st.fixed_dictionaries(
            {"name": st.sampled_from(["search", "select"]), "arguments": st.just({"id": "m1"})}
        ),
        error=st.none() | st.just({"kind": "no_call", "message": "no"}),
        seconds=st.none() | st.floats(0, 1e9),
    ),
    max_size=4,
)
facts = st.fixed_dictionaries(
    {},
    optional={
        "task_type": st.sampled_from(
            ["email_search", "question_answering", "code_generation", "game", "other"]
        ),
        "expected": json_values,
        "result": json_values,
        "match": st.sampled_from(["exact", "similar"]),
        "optimal_turns": st.integers(1, 9),
        "required_actions": st.lists(st.sampled_from(["search", "select", "read"])),
    },
)


@given(steps, st.sampled_from(["terminated", "truncated", "unfinished"]), facts)
def test_every_criterion_gives_a_number_from_0_to_1_and_a_reason(
    steps: list[Step], ending: str, facts: dict[str, Any]
) -> None:
    for criterion in CLASSIC_CRITERIA.values():
        value, why = criterion(attempt(*steps, ending=ending, **facts))
        assert 0 <= value <= 1
        assert why


def test_the_classic_rubric_has_the_classic_weights() -> None:
    weights = {criterion.name: criterion.weight for criterion in CLASSIC_RUBRIC.criteria}
    assert weights == {"accuracy": 0.4, "efficiency": 0.3, "completeness": 0.2, "user_satisfaction": 0.1}
    assert list(CLASSIC_CRITERIA) == list(weights)
    assert all(criterion.description for criterion in CLASSIC_RUBRIC.criteria)


def test_all_tests_passing_is_read_as_the_full_share() -> None:
    def accuracy_of(*observations: str) -> float:
        steps = [Step("submit()", text, call={"name": "submit", "arguments": {}}) for text in observations]
        return code_generation(Attempt("a", "task", tuple(steps))).value

    assert accuracy_of("All hidden tests pass.") == 1.0
    assert accuracy_of("2 of 9 tests pass.", "All 9 tests passed.") == 1.0
    assert accuracy_of("All tests pass.", "8 of 9 hidden tests pass.") < 1.0
