from __future__ import annotations

import pytest

from art_gym.envs.coding.baselines import constant_answers, empty_answer
from art_gym.envs.coding.judge import Verdict
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.rewards import score_terms

SOLVED, HALF, NONE = Verdict(4, 4), Verdict(2, 4), Verdict(0, 4)
BROKEN = Verdict(0, 4, loaded=False)


@pytest.mark.parametrize(
    ("reward", "verdict", "turns_left", "terms"),
    [
        ("all", SOLVED, 0.5, {"tests": 1.0, "quick": 0.05}),
        ("all", SOLVED, 0.0, {"tests": 1.0, "quick": 0.0}),
        ("all", HALF, 0.5, {"tests": 0.0, "loads": 0.05}),
        ("all", BROKEN, 0.5, {"tests": 0.0}),
        ("fraction", SOLVED, 0.5, {"tests": 1.0, "quick": 0.05}),
        ("fraction", HALF, 0.5, {"tests": 0.5}),
        ("fraction", NONE, 0.5, {"tests": 0.0, "loads": 0.05}),
        ("fraction", BROKEN, 0.5, {"tests": 0.0}),
    ],
)
def test_what_a_submission_pays(
    reward: str, verdict: Verdict, turns_left: float, terms: dict[str, float]
) -> None:
    assert score_terms(reward, verdict, turns_left) == pytest.approx(terms)


@pytest.mark.parametrize("reward", ["all", "fraction"])
def test_solving_late_pays_more_than_nearly_solving_at_once(reward: str) -> None:
    solved = sum(score_terms(reward, SOLVED, 0.0).values())
    assert solved > sum(score_terms(reward, Verdict(99, 100), 1.0).values())


def test_a_failure_of_the_sandbox_cannot_be_paid() -> None:
    with pytest.raises(ValueError, match="in neither direction: no walls"):
        score_terms("all", Verdict(4, 4, infrastructure="no walls"), 0.5)


def test_nothing_is_solved_without_a_test() -> None:
    assert not Verdict().solved
    assert Verdict().fraction == 0.0


CASES = (Case((1,), expected="a'b"),)
FUNCTION = Problem(id="f", prompt="p", entry_point="f", public=CASES, hidden=CASES)


def test_answers_that_ignore_the_input_are_programs_of_the_problems_kind() -> None:
    program = constant_answers(FUNCTION)[0]
    names: dict[str, object] = {}
    exec(program, names)
    assert names["f"](3, y=4) == "a'b"  # type: ignore[operator]
    exec(empty_answer(FUNCTION), names)
    assert names["f"](3) is None  # type: ignore[operator]


def test_a_constant_answer_of_a_script_prints_the_first_example(capsys: pytest.CaptureFixture[str]) -> None:
    cases = (Case(stdin="x", stdout="one\ntwo\n"),)
    script = Problem(id="s", prompt="p", kind="script", public=cases, hidden=cases)
    exec(constant_answers(script)[0])
    assert capsys.readouterr().out == "one\ntwo\n"
    assert empty_answer(script) == "pass\n"


def test_a_constant_answer_fills_a_hole() -> None:
    hole = Problem(id="h", prompt="p", entry_point="f", template="def f(x):\n    return ____", hidden=CASES)
    assert constant_answers(hole) == ["None", "0", "''", "[]"]
    assert empty_answer(hole) == "None"
