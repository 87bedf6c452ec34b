"""``RulerReward`` on a PettingZoo group, and which kind of wrapper it chooses."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec

import art_gym  # noqa: F401 (registers the environments)
from art_gym import ResetNeeded
from art_gym.wrappers.group_env import GroupEnv
from art_gym.wrappers.judging import Attempt, JudgeFailed, JudgingError, Rubric, Score
from art_gym.wrappers.ruler_group import RulerGroupReward
from art_gym.wrappers.ruler_reward import RulerReward
from art_gym.wrappers.ruler_scoring import WAITING
from art_gym.wrappers.ruler_vector import RulerVectorReward
from tests.art_gym.pettingzoo_warnings import MASK_AT_THE_END, no_other_warnings
from tests.art_gym.toy_games import Pennies
from tests.art_gym.toys import CounterEnv
from tests.wrappers.judge_doubles import FailsOn, by_worth

NAMES = ["attempt_0", "attempt_1", "attempt_2"]
REPLIES = (("stop()", "add(1)", "?"), ("add(9)", "peek('count')", "add(1)"), ("add(9)", "stop()", "stop()"))


def counters(judge: Any = by_worth, **options: Any) -> RulerGroupReward:
    return RulerReward(GroupEnv(CounterEnv, 3, max_turns=6), judge, **options)


def games() -> RulerGroupReward:
    return RulerReward(GroupEnv("art/2048-v0", 3, board_size=3, max_turns=5), by_worth)


def mails() -> RulerGroupReward:
    return RulerReward(GroupEnv("art/Email-v0", 2, max_turns=4), by_worth)


def step(env: Any, replies: Sequence[str]) -> Any:
    return env.step(dict(zip(NAMES, replies, strict=True)))


@pytest.mark.parametrize("make", [counters, games, mails])
def test_pettingzoo_finds_nothing_wrong(make: Callable[[], RulerGroupReward]) -> None:
    with no_other_warnings():
        parallel_api_test(make(), num_cycles=12)
        parallel_seed_test(make, num_cycles=12)


@pytest.mark.parametrize("make", [counters, games])
def test_pettingzoo_finds_nothing_wrong_turn_by_turn(make: Callable[[], RulerGroupReward]) -> None:
    with no_other_warnings():
        api_test(parallel_to_aec(make()), num_cycles=30)
        seed_test(lambda: parallel_to_aec(make()), num_cycles=12)


def test_an_end_is_held_back_whole_until_the_last_attempt_has_ended() -> None:
    env, plain = counters(), GroupEnv(CounterEnv, 3, max_turns=6)
    assert env.reset(seed=1) == plain.reset(seed=1)
    ends: dict[str, Any] = {}
    for round_ in REPLIES:
        live = list(plain.agents)
        own = plain.step({name: reply for name, reply in zip(NAMES, round_, strict=True) if name in live})
        seen = step(env, round_)
        assert all(list(part) == NAMES for part in seen)
        ends |= {name: [part[name] for part in own] for name in live if own[2][name] or own[3][name]}
        if round_ is REPLIES[-1]:
            break
        assert env.agents == NAMES
        for name in NAMES:
            text, reward, terminated, truncated, info = (part[name] for part in seen)
            assert (reward, terminated, truncated) == (0.0, False, False)
            if name in ends:
                assert text == {"text": WAITING}
                assert info == {"waiting": True, "independent_reward": 0.0, "score_terms": {}}
            else:
                assert text == own[0][name]
                assert info == own[4][name] | {"independent_reward": own[1][name], "score_terms": {}}
    assert env.agents == []
    for name, waited in zip(NAMES, (2, 0, 0), strict=True):
        text, reward, terminated, truncated, info = (part[name] for part in seen)
        own_text, own_reward, own_terminated, own_truncated, own_info = ends[name]
        assert (text, terminated, truncated) == (own_text, own_terminated, own_truncated)
        assert info["ruler"]["waited"] == waited
        assert info["ruler"]["score"] == reward == info["score_terms"]["ruler"]
        assert info["independent_reward"] == own_reward
        assert {key: info[key] for key in own_info if key != "score_terms"} == {
            key: own_info[key] for key in own_info if key != "score_terms"
        }
    rewards = seen[1]
    assert rewards["attempt_0"] > rewards["attempt_1"] == rewards["attempt_2"]


def test_a_judge_reads_the_attempts_and_the_rubric() -> None:
    rubric = Rubric.of({"brevity": 1.0})
    asked: list[Any] = []

    def judge(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        asked.append((list(group), rubric))
        return by_worth(group)

    env = counters(judge, rubric=rubric)
    observations, infos = env.reset(seed=1, options={"task": "t3"})
    for round_ in REPLIES:
        seen = step(env, round_)
    ((group, with_rubric),) = asked
    assert with_rubric is rubric
    assert [attempt.id for attempt in group] == NAMES
    assert [len(attempt.steps) for attempt in group] == [1, 3, 3]
    for number, attempt in enumerate(group):
        assert attempt.task == observations[attempt.id]["text"]
        assert list(attempt.tools) == infos[attempt.id]["tools"]
        assert [one.reply for one in attempt.steps] == [r[number] for r in REPLIES[: len(attempt.steps)]]
        assert attempt.reward == seen[4][attempt.id]["independent_return"]
        assert attempt.ending == "terminated"
    assert group[2].steps[0].error == {"kind": "no_call", "message": group[2].steps[0].error["message"]}


def test_scores_go_by_id_and_not_by_place() -> None:
    def judge(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        return {"attempt_2": Score(0.2), "attempt_0": Score(0.0), "attempt_1": Score(0.1)}

    env = counters(judge)
    env.reset(seed=0)
    assert step(env, ["stop()"] * 3)[1] == {"attempt_0": 0.0, "attempt_1": 0.1, "attempt_2": 0.2}


def test_what_a_waiting_agent_replies_may_be_missing_and_has_no_effect() -> None:
    def rest(replies: dict[str, str]) -> Any:
        env = counters()
        env.reset(seed=0)
        step(env, ("stop()", "add(1)", "add(1)"))
        first = env.step({"attempt_1": "stop()", "attempt_2": "add(2)"} | replies)
        return first, env.step({"attempt_2": "stop()"} | replies)

    assert rest({}) == rest({"attempt_0": "add(5)"})


def test_modes_mix_the_score_with_the_environment_s_reward() -> None:
    for mode, along, last in (("replace", 0, 0), ("add", -0.01, 1.0), ("weighted", -0.0075, 0.75)):
        env = counters(mode=mode, weight=0.25)
        env.reset(seed=0, options={"task": "t1"})
        rewards = step(env, ["peek('count')"] * 3)[1]
        assert rewards == pytest.approx(dict.fromkeys(NAMES, along))
        _, rewards, _, _, infos = step(env, ["stop()"] * 3)
        for name in NAMES:
            own, score = infos[name]["independent_reward"], infos[name]["ruler"]["score"]
            share = 0.25 if mode == "weighted" else 1.0
            assert rewards[name] == pytest.approx(last * own + share * score)
            assert sum(infos[name]["score_terms"].values()) == rewards[name]


def test_a_failing_judge_pays_nan_and_is_counted() -> None:
    env = counters(FailsOn(0, reason="malformed"))
    env.reset(seed=0)
    _, rewards, terminations, _, infos = step(env, ["stop()"] * 3)
    assert all(math.isnan(reward) for reward in rewards.values())
    assert all(terminations.values())
    told = infos["attempt_1"]["ruler"]
    assert (told["failed"], told["explanation"], told["waited"]) == ("malformed", "no answer to call 0", 0)
    assert math.isnan(told["score"])
    assert "parts" not in told
    env.reset(seed=0)
    assert np.isfinite(list(step(env, ["stop()"] * 3)[1].values())).all()
    assert (env.scoring.failures, env.scoring.judged) == ({"malformed": 1}, 1)


def test_a_failure_can_be_raised_and_asks_for_a_reset() -> None:
    env = counters(FailsOn(0), on_failure="raise")
    env.reset(seed=0)
    with pytest.raises(JudgeFailed, match="no answer to call 0"):
        step(env, ["stop()"] * 3)
    assert env.agents == []
    with pytest.raises(ResetNeeded):
        step(env, ["stop()"] * 3)


def test_an_error_of_the_judge_s_is_not_swallowed() -> None:
    def judge(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        raise ZeroDivisionError

    env = counters(judge)
    env.reset(seed=0)
    with pytest.raises(ZeroDivisionError):
        step(env, ["stop()"] * 3)


def test_a_reset_midway_forgets_the_group() -> None:
    env = counters()
    env.reset(seed=0)
    step(env, ("stop()", "add(1)", "add(1)"))
    env.reset(seed=0)
    infos = step(env, ["stop()"] * 3)[4]
    assert infos["attempt_0"]["ruler"] == infos["attempt_1"]["ruler"]
    with pytest.raises(ResetNeeded):
        step(env, ["stop()"] * 3)


def test_the_scores_are_the_same_beside_each_other_and_in_a_vector_environment() -> None:
    env = counters()
    env.reset(seed=11)
    vector = RulerReward(
        SyncVectorEnv([lambda: CounterEnv(max_turns=6)] * 3, autoreset_mode=AutoresetMode.DISABLED), by_worth
    )
    vector.reset(seed=11)
    for round_ in REPLIES:
        observations, rewards, terminations, truncations, _ = step(env, round_)
        texts, paid, terminated, truncated, _ = vector.step(round_)
        assert [observation["text"] for observation in observations.values()] == list(texts)
        assert list(rewards.values()) == paid.tolist()
        assert list(terminations.values()) == terminated.tolist()
        assert list(truncations.values()) == truncated.tolist()
    assert terminated.all()


def test_one_name_wraps_both_kinds_of_groups() -> None:
    assert isinstance(counters(), RulerGroupReward)
    vector = SyncVectorEnv([CounterEnv] * 4)
    wrapped = RulerReward(vector, by_worth, group_size=2)
    assert isinstance(wrapped, RulerVectorReward)
    assert wrapped.group_size == 2
    assert RulerReward(vector, by_worth).group_size == 4


@pytest.mark.parametrize(
    ("env", "options", "fault", "words"),
    [
        (CounterEnv(), {}, TypeError, "use GroupEnv"),
        ("art/Email-v0", {}, TypeError, "not 'art/Email-v0'"),
        (aec_to_parallel(Pennies(actions="discrete")), {}, TypeError, "observations must be"),
        (GroupEnv(CounterEnv, 2), {"group_size": 2}, JudgingError, "a ParallelEnv is one group"),
        (GroupEnv(CounterEnv, 2), {"judge": None}, TypeError, "None cannot be called"),
        (GroupEnv(CounterEnv, 2), {"mode": "Add"}, JudgingError, "did you mean `add`"),
    ],
)
def test_what_is_no_group_or_out_of_range_is_refused(
    env: Any, options: dict[str, Any], fault: type, words: str
) -> None:
    with no_other_warnings(MASK_AT_THE_END), pytest.raises(fault, match=words):
        RulerReward(env, **{"judge": by_worth} | options)


def test_agents_at_different_tasks_are_no_group() -> None:
    env = GroupEnv(CounterEnv, 2)
    wrapped = RulerReward(env, by_worth)
    wrapped.reset(seed=0)
    original = env.reset

    def tampered(**kwargs: Any) -> Any:
        observations, infos = original(**kwargs)
        return observations | {"attempt_1": {"text": "another task"}}, infos

    env.reset = tampered
    with pytest.raises(JudgingError, match="attempt_1 began differently"):
        wrapped.reset(seed=0)
    assert wrapped.agents == []


def test_a_vector_environment_is_wrapped_without_pettingzoo() -> None:
    script = """
import sys
sys.modules["pettingzoo"] = None
import gymnasium as gym, art_gym
from art_gym.wrappers.ruler_reward import RulerReward
RulerReward(gym.make_vec("art/2048-v0", 2), lambda group, rubric: {})
RulerReward(object(), lambda group, rubric: {})
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "RulerReward on a group needs PettingZoo" in found.stderr.splitlines()[-1]


def test_the_wrapper_renders_and_closes_what_it_wraps() -> None:
    env = RulerReward(GroupEnv(CounterEnv, 2, render_mode="ansi"), by_worth)
    env.reset(seed=0)
    assert env.render() == env.env.render()
    assert env.render_mode == "ansi"
    env.close()
    assert env.env.agents == []
    assert isinstance(env.unwrapped, GroupEnv)
