import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, render_test, seed_test
from pettingzoo.utils.conversions import parallel_to_aec

import art_gym  # noqa: F401 (registers the environments)
from art_gym import ResetNeededError, UnknownTaskError
from art_gym.wrappers.group_env import GroupEnv
from art_gym.wrappers.ruler_reward import RulerReward
from tests.art_gym.pettingzoo_warnings import no_other_warnings
from tests.art_gym.toys import CounterEnv
from tests.wrappers.judge_doubles import by_worth

NAMES = ["attempt_0", "attempt_1", "attempt_2"]


def counters(**kwargs: Any) -> GroupEnv:
    return GroupEnv(CounterEnv, 3, **{"max_turns": 6} | kwargs)


def mails(**kwargs: Any) -> GroupEnv:
    return GroupEnv("art/Email-v0", 2, max_turns=4, **kwargs)


def paid() -> RulerReward:
    return RulerReward(counters(), by_worth)


@pytest.mark.parametrize("make", [counters, mails, paid])
def test_pettingzoo_finds_nothing_wrong(make: Callable[..., Any]) -> None:
    with no_other_warnings():
        parallel_api_test(make(), num_cycles=12)
        parallel_seed_test(make, num_cycles=12)
        api_test(parallel_to_aec(make()), num_cycles=30)
        seed_test(lambda: parallel_to_aec(make()), num_cycles=12)


def test_both_render_modes_pass_pettingzoo_and_show_every_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    render_test(lambda **kwargs: parallel_to_aec(counters(**kwargs)))
    assert "The counter is 0" in capsys.readouterr().out
    group = counters(render_mode="ansi")
    group.reset(seed=0)
    replies = dict(zip(NAMES, ("add(1)", "stop()", "?"), strict=True))
    group.step(replies)
    picture = str(group.render())
    assert all(f"[{name}]\n> {reply}\n" in picture for name, reply in replies.items())


def test_all_attempts_begin_alike_and_act_alike_as_the_plain_environment_does() -> None:
    group, plain = counters(), CounterEnv(max_turns=6)
    for seed in range(8):
        observations, infos = group.reset(seed=seed)
        text, info = plain.reset(seed=seed)
        assert observations == {name: {"text": text} for name in NAMES}
        assert infos == dict.fromkeys(NAMES, info)
        assert group.agents == NAMES
        parts = group.step(dict.fromkeys(NAMES, "add(1)"))
        text, *rest = plain.step("add(1)")
        for name in NAMES:
            assert [part[name] for part in parts] == [{"text": text}, *rest]


def test_attempts_have_histories_of_their_own_and_leave_when_they_end() -> None:
    group, plain = counters(), {name: CounterEnv(max_turns=6) for name in NAMES}
    group.reset(seed=4)
    for env in plain.values():
        env.reset(seed=4)
    replies = [("add(1)", "add(2)", "?"), ("stop()", "add(1)", "add(9)"), ("", "stop()", "add(1)")]
    for round_, left in zip(replies, (NAMES, NAMES[1:], NAMES[2:]), strict=True):
        actions = dict(zip(NAMES, round_, strict=True))
        live = list(group.agents)
        parts = group.step({name: actions[name] for name in live})
        assert all(list(part) == live for part in parts)
        for name in live:
            text, *rest = plain[name].step(actions[name])
            assert [part[name] for part in parts] == [{"text": text}, *rest]
        assert group.agents == left


def test_without_a_seed_the_attempts_still_begin_alike_and_follow_from_the_last_seed() -> None:
    def starts() -> list[str]:
        group = counters()
        return [group.reset(seed=seed)[0][NAMES[0]]["text"] for seed in (5, None, None, None, None)]

    assert starts() == starts()
    assert len(set(starts())) > 1
    unseeded = counters()
    observations, _ = unseeded.reset()
    assert len({observation["text"] for observation in observations.values()}) == 1


def test_options_reach_every_attempt() -> None:
    group = counters()
    options = {"task": "t9"}
    _, infos = group.reset(seed=0, options=options)
    assert [info["task_id"] for info in infos.values()] == ["t9"] * 3
    assert options == {"task": "t9"}
    _, infos = group.reset(seed=0, options={"split": "test"})
    assert {info["task_id"] for info in infos.values()} < {"t8", "t9", "t10"}
    with pytest.raises(UnknownTaskError, match="no task `t99`"):
        group.reset(options={"task": "t99"})
    with pytest.raises(ResetNeededError):
        group.step(dict.fromkeys(NAMES, "stop()"))


def test_closing_closes_every_environment_and_ends_the_group() -> None:
    closed = []

    class Closing(CounterEnv):
        def close(self) -> None:
            closed.append(self)

    group = GroupEnv(Closing, 2)
    group.reset(seed=0)
    group.close()
    assert closed == list(group.envs.values())
    with pytest.raises(ResetNeededError):
        group.step({"attempt_0": "stop()", "attempt_1": "stop()"})


def test_copies_and_pickles_go_on_where_the_group_stood() -> None:
    group = counters()
    group.reset(seed=2)
    group.step({NAMES[0]: "stop()", NAMES[1]: "add(2)", NAMES[2]: "add(1)"})
    others = [copy.deepcopy(group), pickle.loads(pickle.dumps(group))]
    for _ in range(2):
        expected = group.step(dict.fromkeys(group.agents, "add(1)")), group.agents
        assert [(other.step(dict.fromkeys(other.agents, "add(1)")), other.agents) for other in others] == [
            expected
        ] * 2
    expected_reset = group.reset()
    assert [other.reset() for other in others] == [expected_reset] * 2


def test_actions_are_one_for_each_attempt_that_goes_on() -> None:
    group = counters()
    with pytest.raises(ResetNeededError, match="call reset"):
        group.step({})
    group.reset(seed=0)
    with pytest.raises(ValueError, match="missing: attempt_1, attempt_2"):
        group.step({"attempt_0": "stop()"})
    with pytest.raises(ValueError, match="no agent `attempt1`; did you mean `attempt_1`"):
        group.step(dict.fromkeys([*NAMES, "attempt1"], "stop()"))
    assert group.agents == NAMES, "what was refused changed nothing"
    group.step({NAMES[0]: "stop()", NAMES[1]: "add(1)", NAMES[2]: "add(1)"})
    with pytest.raises(ValueError, match="attempt_0 has ended"):
        group.step(dict.fromkeys(NAMES, "add(1)"))
