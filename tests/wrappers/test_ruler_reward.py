"""``RulerReward``: a group is judged at its end, and paid."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from pettingzoo.utils.conversions import aec_to_parallel

import art_gym  # noqa: F401 (registers the environments)
from art_gym import ResetNeededError, Task
from art_gym.wrappers.group_env import GroupEnv
from art_gym.wrappers.judging import Attempt, JudgeFailedError, JudgingError, Rubric, Score
from art_gym.wrappers.ruler_reward import WAITING, RulerReward
from tests.art_gym.pettingzoo_warnings import MASK_AT_THE_END, no_other_warnings
from tests.art_gym.toy_games import Pennies
from tests.art_gym.toys import CounterEnv
from tests.wrappers.judge_doubles import FailsOn, by_worth

NAMES = ["attempt_0", "attempt_1", "attempt_2"]
REPLIES = (("stop()", "add(1)", "?"), ("add(9)", "peek('count')", "add(1)"), ("add(9)", "stop()", "stop()"))


def counters(judge: Any = by_worth, **options: Any) -> RulerReward:
    return RulerReward(GroupEnv(CounterEnv, 3, max_turns=6), judge, **options)


def step(env: Any, replies: Sequence[str]) -> Any:
    return env.step(dict(zip(NAMES, replies, strict=True)))


def test_a_group_is_judged_and_paid_at_its_end() -> None:
    asked: list[Any] = []

    def judge(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        asked.append((list(group), rubric))
        return by_worth(group)

    rubric = Rubric.of({"brevity": 1.0})
    env = counters(judge, rubric=rubric, mode="weighted", weight=0.25)
    plain = [CounterEnv(max_turns=6) for _ in NAMES]
    starts, _ = env.reset(seed=11)
    assert [starts[name]["text"] for name in NAMES] == [one.reset(seed=11)[0] for one in plain]
    last: dict[str, Any] = {}
    for round_ in REPLIES:
        observations, rewards, terminations, truncations, infos = step(env, round_)
        for name, one, reply in zip(NAMES, plain, round_, strict=True):
            waits = name in last
            if not waits:
                seen = one.step(reply)
                if seen[2] or seen[3]:
                    last[name] = seen
                else:
                    assert (observations[name]["text"], rewards[name]) == (seen[0], 0.75 * float(seen[1]))
            if name in last and env.agents:
                assert (observations[name]["text"], rewards[name]) == (WAITING, 0.0)
                assert infos[name]["waiting"]
                assert not terminations[name]
    assert env.agents == []
    assert [infos[name]["ruler"]["waited"] for name in NAMES] == [2, 0, 0]
    for name in NAMES:
        text, own, *flags, info = last[name]
        assert observations[name] == {"text": text}
        assert [terminations[name], truncations[name]] == flags
        assert infos[name]["independent_reward"] == own
        assert rewards[name] == pytest.approx(0.75 * own + 0.25 * infos[name]["ruler"]["score"])
        assert infos[name]["success"] == info["success"]
    ((group, given),) = asked
    assert given is rubric
    assert [attempt.id for attempt in group] == NAMES
    assert [len(attempt.steps) for attempt in group] == [1, 3, 3]
    assert (env.scoring.judged, dict(env.scoring.failures)) == (1, {})


def test_what_a_waiting_agent_replies_may_be_missing_and_has_no_effect() -> None:
    def rest(replies: dict[str, str]) -> Any:
        env = counters()
        env.reset(seed=0)
        step(env, ("stop()", "add(1)", "add(1)"))
        first = env.step({"attempt_1": "stop()", "attempt_2": "add(2)"} | replies)
        return first, env.step({"attempt_2": "stop()"} | replies)

    assert rest({}) == rest({"attempt_0": "add(5)"})


def test_a_failing_judge_pays_nan_or_raises_and_a_reset_begins_again() -> None:
    env = counters(FailsOn(0, reason="malformed"))
    env.reset(seed=0)
    _, rewards, terminations, _, infos = step(env, ["stop()"] * 3)
    assert all(math.isnan(reward) for reward in rewards.values())
    assert all(terminations.values())
    assert infos["attempt_1"]["ruler"]["failed"] == "malformed"
    env.reset(seed=0)
    step(env, ("stop()", "add(1)", "add(1)"))
    env.reset(seed=0)
    infos = step(env, ["stop()"] * 3)[4]
    assert infos["attempt_0"]["ruler"] == infos["attempt_1"]["ruler"], "no attempt of the game before"
    for judge, fault in ((FailsOn(0), JudgeFailedError), (lambda group, rubric: 1 / 0, ZeroDivisionError)):
        raising = counters(judge, on_failure="raise")
        raising.reset(seed=0)
        for expected in (fault, ResetNeededError):
            with pytest.raises(expected):
                step(raising, ["stop()"] * 3)


class Unequal(CounterEnv):
    """Gives each instance another first observation."""

    made = 0

    def begin(self, task: Task) -> str:
        Unequal.made += 1
        return f"{super().begin(task)} This is number {Unequal.made}."


def test_attempts_that_begin_differently_are_no_group() -> None:
    env = GroupEnv(Unequal, 2)
    with pytest.raises(RuntimeError, match="attempt_1 began differently"):
        env.reset(seed=0)
    assert env.agents == []


@pytest.mark.parametrize(
    ("env", "options", "fault", "words"),
    [
        (CounterEnv(), {}, TypeError, "use GroupEnv"),
        ("art/Email-v0", {}, TypeError, "not 'art/Email-v0'"),
        (aec_to_parallel(Pennies(actions="discrete")), {}, TypeError, "observations must be"),
        (GroupEnv(CounterEnv, 2), {"judge": None}, TypeError, "None cannot be called"),
        (GroupEnv(CounterEnv, 2), {"mode": "Add"}, JudgingError, "did you mean `add`"),
        (GroupEnv(CounterEnv, 2), {"on_failure": "zero"}, JudgingError, "on_failure"),
        (GroupEnv(CounterEnv, 2), {"weight": 1.5}, JudgingError, "weight"),
    ],
)
def test_what_is_no_group_or_out_of_range_is_refused(
    env: Any, options: dict[str, Any], fault: type, words: str
) -> None:
    with no_other_warnings(MASK_AT_THE_END), pytest.raises(fault, match=words):
        RulerReward(env, **{"judge": by_worth} | options)
