"""Checks of how a text environment behaves from episode to episode: the second half of the contract."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env

from art_gym.errors import ResetNeededError
from art_gym.testing.format_checks import HEADINGS, outside_space
from art_gym.testing.hostile_replies import hostile_replies
from art_gym.testing.rules import Rule, broken, check, must_not_raise
from art_gym.testing.trajectories import (
    Subject,
    Trajectory,
    difference,
    follow,
    replay,
    replies_of,
    reset,
    step,
)


@check(Rule.SAME_SEED)
def _same_seed(subject: Subject) -> Iterator[str]:
    for seed, episode in subject.random_episodes.items():
        yield from _differences(episode, replay(subject.env, seed, replies_of(episode)))


@check(Rule.ANY_INSTANCE)
def _any_instance(subject: Subject) -> Iterator[str]:
    other = subject.another()
    for seed, episode in subject.random_episodes.items():
        yield from _differences(episode, replay(other, seed, replies_of(episode)))


@check(Rule.INTERLEAVED)
def _interleaved(subject: Subject) -> Iterator[str]:
    envs = (subject.env, subject.another())
    for seed, episode in subject.random_episodes.items():
        replies = replies_of(episode)
        alone = [replay(env, seed, replies) for env in envs]
        together = [[reset(env, seed)] for env in envs]
        for reply in replies:
            for env, so_far in zip(envs, together, strict=True):
                if not so_far[-1].ended:
                    so_far.append(step(env, reply))
        for expected, actual in zip(alone, together, strict=True):
            yield from _differences(expected, actual)


@check(Rule.FRESH)
def _fresh(subject: Subject) -> Iterator[str]:
    for seed, episode in subject.random_episodes.items():
        for _ in range(2):  # a change of shared objects shows the second time
            actual = [reset(subject.env, seed)]
            for reply in replies_of(episode):
                _clear(actual[-1].info)
                actual.append(step(subject.env, reply))
            _clear(actual[-1].info)
            yield from _differences(episode, actual)


def _clear(value: Any) -> None:
    """Clear a container and all it contains, as a user may do with what was returned."""
    if isinstance(value, dict | list):
        for part in list(value.values() if isinstance(value, dict) else value):
            _clear(part)
        value.clear()


@check(Rule.GLOBAL_STATE)
def _global_random_state(subject: Subject) -> Iterator[str]:
    before = _global_state()
    for seed, episode in subject.random_episodes.items():
        replay(subject.env, seed, replies_of(episode))
    if _global_state() != before:
        yield "Draw all random numbers from self.np_random."


def _global_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 (only compared)
    return random.getstate(), name, np.asarray(keys).tobytes(), *rest


@check(Rule.OPTIONS)
def _options(subject: Subject) -> Iterator[str]:
    tasks = list(subject.env.tasks)
    for task in (tasks[0], tasks[len(tasks) // 2], tasks[-1]):
        got = reset(subject.env, 0, {"task": task.id}).info.get("task_id")
        if got != task.id:
            yield f"With the task {task.id!r} in the options it started {got!r}."
    for seed, split in itertools.product(subject.seeds, subject.env.tasks.splits):
        got = reset(subject.env, seed, {"split": split}).info.get("task_id")
        if subject.env.tasks.get(got).split != split:
            yield f"With the split {split!r} in the options it started {got!r}."


@check(Rule.WRONG_OPTIONS)
def _wrong_options(subject: Subject) -> Iterator[str]:
    absent = "no-such-thing"
    for options in ({"task": absent}, {"split": absent}, {absent: 1}):
        try:
            subject.env.reset(seed=0, options=options)
        except (LookupError, ValueError, TypeError) as error:
            if absent not in str(error):
                yield f"For {options} the message was: {error}."
        else:
            yield f"{options} was accepted."


@check(Rule.NEVER_RAISES)
def _never_raises(subject: Subject) -> Iterator[str]:
    seen = reset(subject.env, subject.seeds[0])
    for reply in hostile_replies(subject.env.tools):
        if seen.ended:
            reset(subject.env, subject.seeds[0])
        seen = step(subject.env, reply)
        for fault in outside_space(subject, seen):
            raise broken(Rule.WITHIN, fault)
    yield from ()


@check(Rule.RESET_NEEDED)
def _reset_needed(subject: Subject) -> Iterator[str]:
    yield from _step_without_reset(subject.another(), "before reset")
    replay(subject.env, subject.seeds[0], replies_of(subject.wasted_episode))
    yield from _step_without_reset(subject.env, "after the end")


def _step_without_reset(env: Any, when: str) -> Iterator[str]:
    try:
        env.step("")
    except ResetNeededError:
        return
    except Exception as error:
        yield f"A step {when} raised {type(error).__name__}: {error}"
    else:
        yield f"A step {when} did not raise."


@check(Rule.SNAPSHOT_CHANGES_NOTHING)
def _snapshot_changes_nothing(subject: Subject) -> Iterator[str]:
    for replies, rest, _ in _halfway(subject):
        with must_not_raise(Rule.SNAPSHOT_CHANGES_NOTHING, "taking one"):
            subject.env.snapshot()
        yield from _differences(rest, follow(subject.env, replies, Rule.SNAPSHOT_CHANGES_NOTHING))


@check(Rule.SNAPSHOT_RESTORES)
def _snapshot_restores(subject: Subject) -> Iterator[str]:
    rule = Rule.SNAPSHOT_RESTORES
    for replies, _, _ in _halfway(subject):
        with must_not_raise(rule, "taking and restoring one"):
            state = subject.env.snapshot()
            first = [*follow(subject.env, replies, rule), reset(subject.env)]
            for _ in range(2):
                subject.env.restore(state)
                again = [*follow(subject.env, replies, rule), reset(subject.env)]
                yield from _differences(first, again)


@check(Rule.SNAPSHOT_TRAVELS)
def _snapshot_travels(subject: Subject) -> Iterator[str]:
    other = subject.another()
    for replies, rest, seed in _halfway(subject):
        with must_not_raise(Rule.SNAPSHOT_TRAVELS, "restoring one elsewhere"):
            state = pickle.loads(pickle.dumps(subject.env.snapshot()))
            reset(other, seed + 1)
            other.restore(state)
        yield from _differences(rest, follow(other, replies, Rule.SNAPSHOT_TRAVELS))


@check(Rule.PICKLES)
def _pickles(subject: Subject) -> Iterator[str]:
    for replies, rest, _ in _halfway(subject):
        other = _duplicate(subject, Rule.PICKLES, lambda env: pickle.loads(pickle.dumps(env)))
        yield from _differences(rest, follow(other, replies, Rule.PICKLES))


@check(Rule.COPIES)
def _copies(subject: Subject) -> Iterator[str]:
    for replies, rest, seed in _halfway(subject):
        other = _duplicate(subject, Rule.COPIES, copy.deepcopy)
        yield from _differences(rest, follow(other, replies, Rule.COPIES))
        reset(other, seed + 1)
        yield from _differences(rest, follow(subject.env, replies, Rule.COPIES))


@check(Rule.GYMNASIUM)
def _gymnasium(subject: Subject) -> Iterator[str]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("error")
        with must_not_raise(Rule.GYMNASIUM, "It"):
            # Without a spec Gymnasium cannot make the other render modes, and warns that it cannot.
            check_env(subject.env, skip_render_check=subject.env.spec is None)
    yield from ()


@check(Rule.DOCSTRING)
def _docstring(subject: Subject) -> Iterator[str]:
    lines = [line.strip("# \t") for line in (type(subject.env).__doc__ or "").splitlines()]
    found = [line for line in lines if line in HEADINGS]
    if found != list(HEADINGS):
        yield f"Wanted {', '.join(HEADINGS)}; found {', '.join(found) or 'none'}."


def _halfway(subject: Subject) -> Iterator[tuple[list[str], Trajectory, int]]:
    """Replay the first half of each episode; yield the replies of the rest, their results, and the seed."""
    for seed, episode in subject.random_episodes.items():
        replies = replies_of(episode)
        half = len(replies) // 2
        replay(subject.env, seed, replies[:half])
        yield replies[half:], episode[1 + half :], seed


def _duplicate(subject: Subject, rule: Rule, duplicate: Callable[[Any], Any]) -> Any:
    with must_not_raise(rule, "it"):
        return subject.adopt(duplicate(subject.env))


def _differences(expected: Trajectory, actual: Trajectory) -> Iterator[str]:
    if found := difference(expected, actual):
        yield found
