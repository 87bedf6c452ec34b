from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from art_gym.errors import ResetNeededError
from art_gym.testing.checker import check_text_env
from art_gym.tools import Outcome, tool
from art_gym.wrappers.judging.base import Attempt, JudgeFailedError, Rubric, Score
from art_gym.wrappers.rubric_reward import RewardMode, RubricReward
from tests.art_gym.toys import CounterEnv, EchoEnv


class FactsCounterEnv(CounterEnv):
    __doc__ = CounterEnv.__doc__

    def facts(self) -> Mapping[str, Any]:
        return {"expected": self.task.data["target"], "result": self.count, "optimal_turns": 2}

    @tool
    def nudge(self) -> Outcome:
        """Add exactly one."""
        self.count += 1
        return Outcome("Nudged.", {"nudge": 0.25, "tired": -0.125})


class Kept:
    """A judge that keeps what it was shown."""

    def __init__(self, value: float = 0.5) -> None:
        self.value = value
        self.seen: list[Attempt] = []

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
        self.seen += group
        return {attempt.id: Score(self.value, "so it is", {"part": self.value}) for attempt in group}


class FailsFirst(Kept):
    """Has no answer to its first call."""

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
        asked_before = bool(self.seen)
        scores = super().__call__(group, rubric)
        if not asked_before:
            raise JudgeFailedError("timeout", "no answer yet")
        return scores


def play(env: gym.Env[str, str], *replies: str, seed: int = 0) -> list[tuple[float, dict[str, Any]]]:
    env.reset(seed=seed, options={"task": "t2"})
    played = []
    for reply in replies:
        _, reward, _, _, info = env.step(reply)
        played.append((float(reward), info))
    return played


REPLIES = ["nudge()", "nonsense", "nudge()", "stop()"]
OWN = [0.125, -0.1, 0.125, 1.0]


@pytest.mark.parametrize(
    ("mode", "weight", "paid"),
    [
        ("replace", 0.5, [0, 0, 0, 0.5]),
        ("add", 0.5, [0.125, -0.1, 0.125, 1.5]),
        ("weighted", 0.25, [0.09375, -0.075, 0.09375, 0.75 + 0.125]),
        ("weighted", 1.0, [0, 0, 0, 0.5]),
        ("weighted", 0.0, OWN),
    ],
)
def test_each_mode_pays_as_it_says(mode: RewardMode, weight: float, paid: list[float]) -> None:
    env = RubricReward(FactsCounterEnv(), Kept(), mode=mode, weight=weight)
    played = play(env, *REPLIES)
    assert [reward for reward, _ in played] == pytest.approx(paid)
    for (reward, info), own in zip(played, OWN, strict=True):
        assert info["independent_reward"] == pytest.approx(own)
        assert sum(info["score_terms"].values()) == pytest.approx(reward)
        assert all(type(value) is float for value in info["score_terms"].values())
    assert ["rubric" in info for _, info in played] == [False, False, False, True]
    assert played[-1][1]["rubric"] == {"score": 0.5, "explanation": "so it is", "parts": {"part": 0.5}}
    assert played[-1][1]["success"] is True


def test_the_judge_sees_the_whole_episode_and_no_other() -> None:
    judge = Kept()
    env = RubricReward(FactsCounterEnv(max_turns=4), judge)
    play(env, "nudge()")
    played = play(env, "nudge()", "nonsense", "nudge()", "nudge()")
    (attempt,) = judge.seen
    assert [step.reward for step in attempt.steps] == pytest.approx([0.125, -0.1, 0.125, 0.125])
    assert attempt.facts == {"expected": 2, "result": 3, "optimal_turns": 2}
    assert attempt.ending == "truncated"
    assert played[-1][0] == 0.5
    assert [step.seconds for step in attempt.steps] == [None] * 4
    ticks: Iterator[float] = iter([100.0, 103.0, 103.5])
    play(RubricReward(FactsCounterEnv(), judge, clock=lambda: next(ticks)), "nudge()", "stop()")
    assert [step.seconds for step in judge.seen[1].steps] == [3.0, 0.5]


def test_a_failing_judge_makes_up_no_reward_and_the_next_episode_has_one() -> None:
    env = RubricReward(FactsCounterEnv(), FailsFirst())
    with pytest.raises(JudgeFailedError, match="no answer yet"):
        play(env, "stop()")
    with pytest.raises(ResetNeededError):
        env.step("stop()")
    assert play(env, "stop()")[-1][0] == 0.5


def test_an_environment_without_our_info_is_judged_too() -> None:
    env = RubricReward(EchoEnv(), mode="add")
    env.reset()
    assert env.step("on")[1] == 2.0
    _, reward, _, _, info = env.step("end")
    assert reward == pytest.approx(2 + info["rubric"]["score"])
    assert info["score_terms"] == {"environment": 2.0, "rubric": info["rubric"]["score"]}


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version:UserWarning")
def test_the_contract_holds() -> None:
    check_env(RubricReward(FactsCounterEnv()), skip_render_check=True)
    check_text_env(RubricReward(FactsCounterEnv()))
