from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from art_gym.errors import UnknownTaskError
from art_gym.tasks import Task, TaskSet

TASKS = TaskSet(Task(f"t{n}", f"Do {n}.", "test" if n % 3 == 0 else "train", {"n": n}) for n in range(9))


def test_splits_keep_order_and_membership() -> None:
    assert TASKS.splits == ("test", "train")
    assert [task.id for task in TASKS.split("test")] == ["t0", "t3", "t6"]
    assert TASKS.split("test") is TASKS.split("test")
    assert len(TASKS) == len(TASKS.split("test")) + len(TASKS.split("train"))


def test_get_names_the_near_miss() -> None:
    assert TASKS.get("t4").data["n"] == 4
    with pytest.raises(UnknownTaskError, match="no task `t44`; did you mean `t4`"):
        TASKS.get("t44")
    with pytest.raises(KeyError):
        TASKS.get("t44")


def test_sampling_is_seeded_and_reaches_every_task() -> None:
    def draw(seed: int) -> list[str]:
        rng = np.random.default_rng(seed)
        return [TASKS.sample(rng).id for _ in range(100)]

    assert draw(1) == draw(1)
    assert set(draw(1)) == {f"t{n}" for n in range(9)}


def test_ids_must_be_unique_and_there_must_be_a_task() -> None:
    with pytest.raises(ValueError, match="`b` occurs twice"):
        TaskSet([Task("a", ""), Task("b", ""), Task("b", "again")])
    with pytest.raises(ValueError, match="at least one"):
        TaskSet([])


def test_copies_share_and_pickles_equal() -> None:
    assert copy.deepcopy(TASKS) is TASKS
    again = pickle.loads(pickle.dumps(TASKS))
    assert list(again) == list(TASKS)
    assert again.splits == TASKS.splits
    assert repr(TASKS) == "TaskSet(test: 3, train: 6)"
