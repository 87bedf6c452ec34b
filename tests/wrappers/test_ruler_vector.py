"""Around ``RulerReward`` of a vector environment is seen what plain environments give, and the scores.

The reference is always the same: an attempt played by itself in a plain environment from its group's seed.
"""

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import art_gym  # noqa: F401 (registers the environments)
from art_gym import ResetNeededError
from art_gym.wrappers.judging import Attempt, JudgeFailedError, Rubric, Score
from art_gym.wrappers.judging.base import AttemptRecorder
from art_gym.wrappers.ruler_reward import RulerReward
from art_gym.wrappers.ruler_scoring import WAITING
from art_gym.wrappers.ruler_vector import RulerVectorReward
from tests.art_gym import toys
from tests.art_gym.toys import CounterEnv
from tests.wrappers import judge_doubles
from tests.wrappers.judge_doubles import FailsOn, by_worth, worth

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
for module in (sys.modules[__name__], toys, judge_doubles):
    cloudpickle.register_pickle_by_value(module)  # spawned workers cannot import a test module

SEED, SIZE, GROUPS, TURNS = 5, 3, 2, 4
MODES = list(AutoresetMode)


def counter() -> CounterEnv:
    return CounterEnv(max_turns=TURNS)


def mail() -> gym.Env[str, str]:
    return gym.make("art/Email-v0", max_turns=TURNS)


def sync(make: Callable[[], Any], mode: AutoresetMode, count: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([make] * count, autoreset_mode=mode)


def shared(
    make: Callable[[], Any], mode: AutoresetMode, count: int, **options: Any
) -> gym.vector.VectorEnv[Any, Any, Any]:
    return AsyncVectorEnv([make] * count, autoreset_mode=mode, **options)


def piped(make: Callable[[], Any], mode: AutoresetMode, count: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return shared(make, mode, count, shared_memory=False)


COUNTER = ("add(1)", "add(3)", "no call 日本", "peek('target')", "stop()", "stop()")
MAIL = ("search_inbox(keywords='budget')", "nonsense", "give_up()", "select()")


def scripted(words: Sequence[str]) -> Callable[[int, int], str]:
    """A reply for each environment and step, fixed for ever; few in a row end an attempt at once."""
    chosen = np.random.default_rng(0).integers(len(words), size=(GROUPS * SIZE, 64))
    return lambda env, turn: words[int(chosen[env, turn])]


@dataclass
class Played:
    """An attempt as it was seen from outside, steps of waiting left out."""

    seed: int
    start: tuple[str, dict[str, Any]]
    replies: list[str] = field(default_factory=list)
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    waited: int = 0


def row(infos: dict[str, Any], env: int) -> dict[str, Any]:
    """One environment's ``info``, read by Gymnasium's own rule."""
    found: dict[str, Any] = {}
    for key, values in infos.items():
        if f"_{key}" in infos and infos[f"_{key}"][env]:
            value = row(values, env) if isinstance(values, dict) else values[env]
            found[key] = value.item() if isinstance(value, np.generic) else value
    return found


def play(
    vector: RulerVectorReward, act: Callable[[int, int], str], steps: int, seed: int | None = SEED
) -> Iterator[Played]:
    """Play on through autoresets (or own resets) and yield each attempt when it has ended."""
    count, size, mode = vector.num_envs, vector.group_size, vector.autoreset_mode
    observations, infos = vector.reset(seed=seed)

    def begun(env: int) -> Played:
        start = vector.seeds[env // size]
        assert start is not None
        info = row(infos, env)
        return Played(start, (observations[env], {key: info[key] for key in info if key[:6] != "final_"}))

    running: list[Played | None] = [begun(env) for env in range(count)]
    for turn in range(steps):
        replies = [act(env, turn) for env in range(count)]
        observations, rewards, terminations, truncations, infos = vector.step(replies)
        ended = terminations | truncations
        for env in range(count):
            info, now = row(infos, env), running[env]
            if now is None:  # next-step autoreset
                assert (rewards[env], ended[env]) == (0.0, False)
                running[env] = begun(env)
                continue
            if len(now.replies) == len(now.steps):
                now.replies.append(replies[env])
            if info.get("waiting"):
                assert (observations[env], rewards[env], ended[env]) == (WAITING, 0.0, False)
                assert info == {"waiting": True, "independent_reward": 0.0, "score_terms": {}}
                now.waited += 1
                continue
            text = observations[env]
            if ended[env] and mode is AutoresetMode.SAME_STEP:
                text, info = info["final_obs"], info["final_info"]
            now.steps.append((text, rewards[env], terminations[env], truncations[env], info))
            if ended[env]:
                yield now
                running[env] = begun(env) if mode is AutoresetMode.SAME_STEP else None
        if mode is AutoresetMode.DISABLED and ended.any():
            observations, infos = vector.reset(options={"reset_mask": ended})
            for env in ended.nonzero()[0].tolist():
                running[env] = begun(env)


def assert_as_in_a_plain_environment(played: Played, env: gym.Env[str, str]) -> None:
    recorder = AttemptRecorder()
    observation, info = env.reset(seed=played.seed)
    assert played.start == (observation, info)
    recorder.begin(observation, info)
    total = 0.0
    for index, (reply, step) in enumerate(zip(played.replies, played.steps, strict=True)):
        observation, reward, terminated, truncated, info = env.step(reply)
        recorder.add(reply, observation, reward, terminated, truncated, info)
        total += float(reward)
        seen, paid, *flags, told = step
        assert (seen, *flags) == (observation, terminated, truncated)
        assert told["independent_reward"] == reward
        assert paid == sum(told["score_terms"].values())
        kept = {key: value for key, value in told.items() if key in info and key != "score_terms"}
        assert kept == {key: value for key, value in info.items() if key != "score_terms"}
        last = index == len(played.steps) - 1
        assert (terminated or truncated) == last == ("ruler" in told)
    score = worth(recorder.attempt("same"))
    steps = len(played.steps)
    assert paid == score
    assert told["independent_return"] == pytest.approx(total)
    assert told["ruler"] == {
        "score": score,
        "explanation": f"{steps} steps",
        "parts": {"length": score},
        "waited": played.waited,
    }
    assert all(step[1] == 0.0 for step in played.steps[:-1])


CASES = [
    pytest.param(make_vector, make, words, mode, id=f"{make_vector.__name__}-{make.__name__}-{mode.value}")
    for make_vector, make, words in (
        (sync, counter, COUNTER),
        (shared, counter, COUNTER),
        (piped, counter, COUNTER),
        (sync, mail, MAIL),
    )
    for mode in MODES
    if not (make_vector is piped and mode is AutoresetMode.NEXT_STEP)
]


@pytest.mark.parametrize(("make_vector", "make", "words", "mode"), CASES)
def test_every_attempt_is_a_plain_episode_paid_its_score(
    make_vector: Callable[..., Any], make: Callable[[], Any], words: Sequence[str], mode: AutoresetMode
) -> None:
    vector = RulerReward(make_vector(make, mode, GROUPS * SIZE), by_worth, group_size=SIZE)
    with contextlib.closing(vector):
        played = list(play(vector, scripted(words), 24))
    for attempt in played:
        assert_as_in_a_plain_environment(attempt, make())
    assert len(played) >= 4 * SIZE
    if words is COUNTER:
        assert any(attempt.waited for attempt in played)
        assert {len(attempt.steps) for attempt in played} >= {1, 2, 4}
        assert any(attempt.steps[-1][3] for attempt in played), "some are cut off"
    assert len({attempt.seed for attempt in played}) == len(played) / SIZE
    assert vector.scoring.judged == len(played) / SIZE


def test_a_group_s_episodes_do_not_depend_on_the_mode_or_on_how_environments_run() -> None:
    seen = []
    for make_vector, mode in ((sync, MODES[0]), (sync, MODES[1]), (sync, MODES[2]), (shared, MODES[1])):
        vector = RulerReward(make_vector(counter, mode, GROUPS * SIZE), by_worth, group_size=SIZE)
        with contextlib.closing(vector):
            # The same reply at every step, so that a step more or less between episodes plays no part.
            played = list(play(vector, lambda env, turn: "stop()" if env % 2 else "add(2)", 40))
        seen.append([(one.seed, one.replies, one.steps) for one in played][: 4 * SIZE * GROUPS])
    assert all(other == seen[0] for other in seen[1:])
    assert len(seen[0]) == 4 * SIZE * GROUPS


def test_equal_seeds_give_equal_seeds_for_ever_and_others_give_others() -> None:
    def seeds(seed: Any) -> list[tuple[int, int]]:
        vector = RulerReward(sync(counter, AutoresetMode.SAME_STEP, 4), by_worth, group_size=2)
        return [(attempt.seed, len(attempt.steps)) for attempt in play(vector, scripted(COUNTER), 16, seed)]

    assert seeds(SEED) == seeds(SEED)
    assert seeds(SEED) != seeds(SEED + 1)
    assert seeds([7, 7, 8, 8]) == seeds([7, 7, 8, 8])
    assert seeds(None) != seeds(None)


@pytest.mark.parametrize("mode", MODES)
def test_spare_episodes_hear_nothing_and_begin_only_where_they_must(mode: AutoresetMode) -> None:
    heard: list[list[str]] = []

    class Listening(CounterEnv):
        def __init__(self) -> None:
            super().__init__(max_turns=TURNS)
            heard.append([])
            self.heard = heard[-1]

        def reset(self, **kwargs: Any) -> Any:
            self.heard.append("reset")
            return super().reset(**kwargs)

        def step(self, action: str) -> Any:
            self.heard.append(action)
            return super().step(action)

    vector = RulerReward(sync(Listening, mode, 4), by_worth, group_size=2)
    vector.reset(seed=0)
    vector.step(["stop()", "add(1)", "stop()", "add(1)"])
    vector.step(["spare", "add(1)", "spare", "add(1)"])
    *_, ended, _, _ = vector.step(["spare", "add(1)", "spare", "add(1)"])
    assert not ended.any()
    spare = ["reset", ""] if mode is AutoresetMode.NEXT_STEP else ["reset", "", ""]
    assert heard[0] == heard[2] == ["reset", "stop()", *spare]
    assert heard[1] == heard[3] == ["reset", "add(1)", "add(1)", "add(1)"]


@pytest.mark.parametrize("mode", MODES)
def test_a_failing_judge_pays_nan_and_is_counted(mode: AutoresetMode) -> None:
    vector = RulerReward(sync(counter, mode, 2), FailsOn(1))
    ended = list(play(vector, lambda env, turn: "stop()", 5))[:6]
    rewards = [attempt.steps[-1][1] for attempt in ended]
    assert [math.isnan(reward) for reward in rewards] == [False, False, True, True, False, False]
    info = ended[2].steps[-1][4]
    assert info["ruler"]["failed"] == "timeout"
    assert math.isnan(info["ruler"]["score"])
    assert math.isnan(info["score_terms"]["ruler"])
    assert info["independent_return"] == 0.0
    assert "failed" not in ended[4].steps[-1][4]["ruler"]
    assert vector.scoring.failures == {"timeout": 1}


def test_a_failure_can_be_raised_and_needs_a_reset() -> None:
    vector = RulerReward(sync(counter, AutoresetMode.NEXT_STEP, 2), FailsOn(0), on_failure="raise")
    vector.reset(seed=0)
    for fault in (JudgeFailedError, ResetNeededError):
        with pytest.raises(fault):
            vector.step(["stop()", "stop()"])
    vector.reset(seed=0)
    assert vector.step(["stop()", "stop()"])[1].tolist() == [pytest.approx(1 / 3)] * 2


def test_groups_that_end_together_are_judged_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)
    judged: list[Sequence[Attempt]] = []

    def judge(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        both.wait()
        judged.append(group)
        return by_worth(group)

    vector = RulerReward(sync(counter, AutoresetMode.NEXT_STEP, 4), judge, group_size=2)
    vector.reset(seed=0)
    assert vector.step(["stop()"] * 4)[2].all()
    assert all([one.id for one in group] == ["attempt_0", "attempt_1"] for group in judged)
    assert len({attempt.task for group in judged for attempt in group}) == 2


def test_a_mask_begins_whole_groups_and_leaves_the_others_alone() -> None:
    vector = RulerReward(sync(counter, AutoresetMode.DISABLED, 4), by_worth, group_size=2)
    mask = {"reset_mask": np.array([True, True, False, False])}
    for early in (lambda: vector.reset(options=mask), lambda: vector.step(["stop()"] * 4)):
        with pytest.raises(ResetNeededError):
            early()
    vector.reset(seed=0)
    before, *_ = vector.step(["stop()", "stop()", "add(1)", "add(2)"])
    with pytest.raises(ResetNeededError, match=r"groups \[0\]"):
        vector.step(["add(1)"] * 4)
    texts, infos = vector.reset(seed=9, options=mask)
    assert vector.seeds[0] == 9
    assert texts[0] == texts[1] == counter().reset(seed=9)[0]
    assert texts[2:] == before[2:]
    assert infos["_task_id"].tolist() == [True, True, False, False]
    *_, infos = vector.step(["stop()"] * 4)
    assert infos["turn"].tolist() == [1, 1, 2, 2]
    assert vector.reset(options={"task": "t9"})[1]["task_id"].tolist() == ["t9"] * 4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"seed": [1, 2, 3, 3]}, r"group 0 has \[1, 2\]"),
        ({"seed": [1, 1]}, "4 environments take as many seeds, not 2"),
        ({"options": {"reset_mask": np.array([True, False, True, True])}}, "whole groups"),
        ({"options": {"reset_mask": np.zeros(4, np.bool_)}}, "at least one"),
        ({"options": {"reset_mask": np.ones(4)}}, "must be of bool"),
    ],
)
def test_what_would_part_a_group_is_refused(arguments: dict[str, Any], named: str) -> None:
    vector = RulerReward(sync(counter, AutoresetMode.DISABLED, 4), by_worth, group_size=2)
    vector.reset(seed=0)
    with pytest.raises(ValueError, match=named):
        vector.reset(**arguments)


def test_what_is_no_group_of_texts_is_refused() -> None:
    vector = sync(counter, AutoresetMode.NEXT_STEP, 4)
    for size in (0, 3):
        with pytest.raises(ValueError, match="group_size"):
            RulerReward(vector, by_worth, group_size=size)
    with pytest.raises(TypeError, match="not Box"):
        RulerReward(gym.make_vec("art/2048Array-v0", 2), by_worth)
    del vector.metadata["autoreset_mode"]
    with pytest.raises(ValueError, match=r'set metadata\["autoreset_mode"\]'):
        RulerReward(vector, by_worth)


def test_pipes_with_next_step_autoreset_are_refused_for_gymnasium_s_sake() -> None:
    """Should this test's second part ever fail, Gymnasium was mended and the refusal can go."""
    with contextlib.closing(piped(counter, AutoresetMode.NEXT_STEP, 2)) as vector:
        with pytest.raises(ValueError, match="leave shared_memory=True"):
            RulerReward(vector, by_worth)
        vector.reset(seed=0)
        vector.step(["stop()", "add(1)"])
        vector.reset(options={"reset_mask": np.array([True, False])})
        *_, infos = vector.step(["add(1)", "add(1)"])
        assert infos["turn"].tolist() == [0, 2], "the first one began yet another episode"
