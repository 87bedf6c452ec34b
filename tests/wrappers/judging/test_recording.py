import pytest

from art_gym.errors import ResetNeededError
from art_gym.wrappers.judging.base import AttemptRecorder
from tests.art_gym.toys import CounterEnv


def test_an_attempt_holds_the_task_the_tools_and_every_step() -> None:
    env, recorder = CounterEnv(), AttemptRecorder()
    observation, info = env.reset(seed=4)
    recorder.begin(observation, info)
    first, wrong = env.step("add(1)"), env.step("nonsense")
    recorder.add("add(1)", *first, seconds=0.5)
    recorder.add("nonsense", *wrong)
    assert recorder.attempt("a").ending == "unfinished"
    assert not recorder.ended
    recorder.add("stop()", *env.step("stop()"))
    attempt = recorder.attempt("b")
    assert recorder.ended
    assert (attempt.id, attempt.task, attempt.ending, attempt.success) == (
        "b",
        observation,
        "terminated",
        False,
    )
    assert attempt.tools == tuple(info["tools"])
    assert [step.reply for step in attempt.steps] == ["add(1)", "nonsense", "stop()"]
    assert attempt.steps[0].observation == first[0]
    assert attempt.steps[0].call == {"name": "add", "arguments": {"amount": 1}}
    assert [step.seconds for step in attempt.steps] == [0.5, None, None]
    assert attempt.steps[1].error == wrong[4]["error"]
    assert attempt.reward == pytest.approx(first[1] + wrong[1])


def test_facts_and_success_come_from_the_last_step_and_a_new_begin_drops_them() -> None:
    recorder = AttemptRecorder()
    recorder.begin("task", {})
    recorder.add("x", "y", 1, False, True, {"success": True, "facts": {"result": 3}})
    attempt = recorder.attempt("a")
    assert (attempt.facts, attempt.ending, attempt.success) == ({"result": 3}, "truncated", True)
    recorder.begin("another", {})
    attempt = recorder.attempt("a")
    assert (attempt.task, attempt.steps, attempt.success, attempt.facts) == ("another", (), None, {})


def test_a_step_needs_a_running_attempt() -> None:
    recorder = AttemptRecorder()
    with pytest.raises(ResetNeededError):
        recorder.attempt("a")
    with pytest.raises(ResetNeededError):
        recorder.add("x", "y", 0.0, False, False, {})
    recorder.begin("task", {})
    recorder.add("x", "y", 0.0, True, False, {})
    with pytest.raises(ResetNeededError):
        recorder.add("x", "y", 0.0, True, False, {})
