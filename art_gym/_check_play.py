"""How a text environment behaves from play to play: the second half of the contract's sentences."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from art_gym._check_form import must_lie_within
from art_gym._hostile import hostile_replies
from art_gym._plays import (
    Case,
    Play,
    difference,
    fail,
    follow,
    promised,
    replay,
    replies_of,
    reset,
    step,
)
from art_gym.errors import ResetNeeded

SAME_SEED: Final = "The same seed and the same replies must give the same episode."
ANY_INSTANCE: Final = "The same seed and the same replies must give the same episode in any instance."
INTERLEAVED: Final = "Instances stepped in turn must not disturb each other."
FRESH: Final = "What reset and step return must be fresh objects that nothing else holds."
GLOBAL_STATE: Final = "The global state of random and numpy.random must not be touched."
OPTIONS: Final = "reset(options=…) must begin the task, or a task of the split, that was asked for."
WRONG_OPTIONS: Final = "reset must refuse an unknown task, split or option with words that name it."
RESET_NEEDED: Final = "step before reset and after the end must raise ResetNeeded."
SNAPSHOT_CHANGES_NOTHING: Final = "Taking a snapshot must change nothing."
SNAPSHOT_RESTORES: Final = "restore must bring back the episode and its chance, any number of times."
SNAPSHOT_TRAVELS: Final = "A pickled snapshot must restore in another instance."
PICKLES: Final = "A pickled environment must go on where the original stood."
COPIES: Final = "A deep copy must go on where the original stood, and neither may disturb the other."


def check_same_seed(case: Case) -> None:
    """Hold :data:`SAME_SEED`."""
    for seed, play in case.random_plays.items():
        _must_equal(SAME_SEED, play, replay(case.env, seed, replies_of(play)))


def check_any_instance(case: Case) -> None:
    """Hold :data:`ANY_INSTANCE`."""
    other = case.another()
    for seed, play in case.random_plays.items():
        _must_equal(ANY_INSTANCE, play, replay(other, seed, replies_of(play)))


def check_interleaved(case: Case) -> None:
    """Hold :data:`INTERLEAVED`."""
    envs = (case.env, case.another())
    for seed, play in case.random_plays.items():
        replies = replies_of(play)
        alone = [replay(env, seed, replies) for env in envs]
        together = [[reset(env, seed)] for env in envs]
        for reply in replies:
            for env, so_far in zip(envs, together, strict=True):
                if not so_far[-1].ended:
                    so_far.append(step(env, reply))
        for expected, actual in zip(alone, together, strict=True):
            _must_equal(INTERLEAVED, expected, actual)


def check_fresh(case: Case) -> None:
    """Hold :data:`FRESH`."""
    for seed, play in case.random_plays.items():
        for _ in range(2):  # the second time a spoiled reset shows
            actual = [reset(case.env, seed)]
            for reply in replies_of(play):
                _spoil(actual[-1].info)
                actual.append(step(case.env, reply))
            _spoil(actual[-1].info)
            _must_equal(FRESH, play, actual)


def _spoil(value: Any) -> None:
    """Empty a container and all it contains, as a user may do with what is theirs."""
    if isinstance(value, dict | list):
        for part in list(value.values() if isinstance(value, dict) else value):
            _spoil(part)
        value.clear()


def check_global_state(case: Case) -> None:
    """Hold :data:`GLOBAL_STATE`."""
    before = _global_state()
    for seed, play in case.random_plays.items():
        replay(case.env, seed, replies_of(play))
    if _global_state() != before:
        raise fail(GLOBAL_STATE, "Draw all chance from self.np_random.")


def _global_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 (it is looked at, not used)
    return random.getstate(), name, np.asarray(keys).tobytes(), *rest


def check_options(case: Case) -> None:
    """Hold :data:`OPTIONS`."""
    tasks = list(case.env.tasks)
    for task in (tasks[0], tasks[len(tasks) // 2], tasks[-1]):
        got = reset(case.env, 0, {"task": task.id}).info.get("task_id")
        if got != task.id:
            raise fail(OPTIONS, f"Asked for the task {task.id!r} it began {got!r}.")
    for seed, split in itertools.product(case.seeds, case.env.tasks.splits):
        got = reset(case.env, seed, {"split": split}).info.get("task_id")
        if case.env.tasks.get(got).split != split:
            raise fail(OPTIONS, f"Asked for the split {split!r} it began {got!r}.")


def check_wrong_options(case: Case) -> None:
    """Hold :data:`WRONG_OPTIONS`."""
    absent = "no-such-thing"
    wrong_options: Sequence[dict[str, Any]] = ({"task": absent}, {"split": absent}, {absent: 1})
    for options in wrong_options:
        try:
            case.env.reset(seed=0, options=options)
        except (LookupError, ValueError, TypeError) as error:
            if absent not in str(error):
                raise fail(WRONG_OPTIONS, f"For {options} the words were {error}.") from error
        else:
            raise fail(WRONG_OPTIONS, f"{options} was taken.")


def check_never_raises(case: Case) -> None:
    """Hold :data:`NEVER_RAISES`."""
    seen = reset(case.env, case.seeds[0])
    for reply in hostile_replies(case.env.tools):
        if seen.ended:
            reset(case.env, case.seeds[0])
        seen = step(case.env, reply)
        must_lie_within(case, seen)


def check_reset_needed(case: Case) -> None:
    """Hold :data:`RESET_NEEDED`."""
    _must_need_reset(case.another(), "before reset")
    replay(case.env, case.seeds[0], replies_of(case.wasted_play))
    _must_need_reset(case.env, "after the end")


def _must_need_reset(env: Any, when: str) -> None:
    try:
        env.step("")
    except ResetNeeded:
        return
    except Exception as error:
        raise fail(RESET_NEEDED, f"A step {when} raised {type(error).__name__}: {error}") from error
    raise fail(RESET_NEEDED, f"A step {when} was answered.")


def check_snapshot_changes_nothing(case: Case) -> None:
    """Hold :data:`SNAPSHOT_CHANGES_NOTHING`."""
    for seed, play in case.random_plays.items():
        replies = _begin(case, seed, play)
        with promised(SNAPSHOT_CHANGES_NOTHING, "taking one"):
            case.env.snapshot()
        _must_equal(
            SNAPSHOT_CHANGES_NOTHING, _rest(play), follow(case.env, replies, SNAPSHOT_CHANGES_NOTHING)
        )


def check_snapshot_restores(case: Case) -> None:
    """Hold :data:`SNAPSHOT_RESTORES`."""
    for seed, play in case.random_plays.items():
        replies = _begin(case, seed, play)
        with promised(SNAPSHOT_RESTORES, "taking and restoring one"):
            state = case.env.snapshot()
            first = [*follow(case.env, replies, SNAPSHOT_RESTORES), reset(case.env)]
            for _ in range(2):
                case.env.restore(state)
                again = [*follow(case.env, replies, SNAPSHOT_RESTORES), reset(case.env)]
                _must_equal(SNAPSHOT_RESTORES, first, again)


def check_snapshot_travels(case: Case) -> None:
    """Hold :data:`SNAPSHOT_TRAVELS`."""
    other = case.another()
    for seed, play in case.random_plays.items():
        replies = _begin(case, seed, play)
        with promised(SNAPSHOT_TRAVELS, "restoring one elsewhere"):
            state = pickle.loads(pickle.dumps(case.env.snapshot()))
            reset(other, seed + 1)
            other.restore(state)
        _must_equal(SNAPSHOT_TRAVELS, _rest(play), follow(other, replies, SNAPSHOT_TRAVELS))


def check_pickles(case: Case) -> None:
    """Hold :data:`PICKLES`."""
    for seed, play in case.random_plays.items():
        replies = _begin(case, seed, play)
        with promised(PICKLES, "pickling"):
            other = case.adopt(pickle.loads(pickle.dumps(case.env)))
        _must_equal(PICKLES, _rest(play), follow(other, replies, PICKLES))


def check_copies(case: Case) -> None:
    """Hold :data:`COPIES`."""
    for seed, play in case.random_plays.items():
        replies = _begin(case, seed, play)
        with promised(COPIES, "copying"):
            other = case.adopt(copy.deepcopy(case.env))
        _must_equal(COPIES, _rest(play), follow(other, replies, COPIES))
        reset(other, seed + 1)
        _must_equal(COPIES, _rest(play), follow(case.env, replies, COPIES))


def _begin(case: Case, seed: int, play: Play) -> list[str]:
    """Play the first half of an episode again; return the replies of the rest."""
    replies = replies_of(play)
    replay(case.env, seed, replies[: len(replies) // 2])
    return replies[len(replies) // 2 :]


def _rest(play: Play) -> Play:
    return play[1 + (len(play) - 1) // 2 :]


def _must_equal(sentence: str, expected: Play, actual: Play) -> None:
    words = difference(expected, actual)
    if words:
        raise fail(sentence, words)


PLAY_CHECKS: Final = (
    check_same_seed,
    check_any_instance,
    check_interleaved,
    check_fresh,
    check_global_state,
    check_options,
    check_wrong_options,
    check_never_raises,
    check_reset_needed,
    check_snapshot_changes_nothing,
    check_snapshot_restores,
    check_snapshot_travels,
    check_pickles,
    check_copies,
)
