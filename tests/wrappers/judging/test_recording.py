import pytest

from art_gym.errors import ResetNeededError
from art_gym.wrappers.judging.base import Attempt, AttemptRecorder, Step
from tests.art_gym.toys import CounterEnv


def test_an_attempt_holds_the_task_the_tools_and_every_step() -> None:
    env, recorder = CounterEnv(), AttemptRecorder()
    with pytest.raises(ResetNeededError):
        recorder.attempt("a")
    observation, info = env.reset(seed=4)
    recorder.begin(observation, info)
    first, wrong = env.step("add(1)"), env.step("nonsense")
    recorder.add("add(1)", *first, seconds=0.5)
    recorder.add("nonsense", *wrong)
    assert (recorder.attempt("a").ending, recorder.ended) == ("unfinished", False)
    recorder.add("stop()", *env.step("stop()"))
    with pytest.raises(ResetNeededError):
        recorder.add("x", "y", 0.0, True, False, {})
    attempt = recorder.attempt("b")
    call = {"name": "add", "arguments": {"amount": 1}}
    assert attempt.steps[:2] == (
        Step("add(1)", first[0], 0.0, call, None, 0.5),
        Step("nonsense", wrong[0], -0.1, None, wrong[4]["error"], None),
    )
    assert attempt.steps[2].reply == "stop()"
    expected = Attempt("b", observation, attempt.steps, tuple(info["tools"]), "terminated", False, {})
    assert attempt == expected


def test_facts_and_success_come_from_the_last_step_and_a_new_begin_drops_them() -> None:
    recorder = AttemptRecorder()
    recorder.begin("task", {})
    recorder.add("x", "y", 1, False, True, {"success": True, "facts": {"result": 3}})
    attempt = recorder.attempt("a")
    assert (attempt.facts, attempt.ending, attempt.success) == ({"result": 3}, "truncated", True)
    recorder.begin("another", {})
    attempt = recorder.attempt("a")
    assert (attempt.task, attempt.steps, attempt.success, attempt.facts) == ("another", (), None, {})
