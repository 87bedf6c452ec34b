import copy
import pickle
from typing import Any

import numpy as np
import pytest

from art_gym.errors import UnknownTaskError
from art_gym.tasks import Task, TaskSet

TASKS = TaskSet(Task(f"t{n}", f"Do {n}.", "test" if n % 3 == 0 else "train", {"n": n}) for n in range(9))


def test_ids_must_be_unique_and_there_must_be_a_task() -> None:
    with pytest.raises(ValueError, match="`b` occurs twice"):
        TaskSet([Task("a", ""), Task("b", ""), Task("b", "again")])
    with pytest.raises(ValueError, match="at least one"):
        TaskSet([])
    with pytest.raises(TypeError, match=r"Task\(id, prompt, split, data\), not \{'id': 'a'\}"):
        TaskSet([{"id": "a"}])  # type: ignore[list-item]  # as read from JSON lines


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((7, "p"), "the id of a task must be a str, not 7"),
        (("a", None), "the prompt of a task must be a str, not None .task 'a'."),
        (("a", "p", {"n": 1}), "the split of a task"),
        (("a", "p", "test", [1]), r"the data of task `a` must be a dict, not \[1\]"),
    ],
)
def test_a_task_of_wrong_types_is_refused(given: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Task(*given)


def test_splits_keep_order_and_sampling_reaches_every_task() -> None:
    assert TASKS.splits == ("test", "train")
    assert [task.id for task in TASKS.split("test")] == ["t0", "t3", "t6"]
    assert TASKS.split("test") is TASKS.split("test")
    rng = np.random.default_rng(1)
    assert {TASKS.sample(rng).id for _ in range(100)} == {f"t{n}" for n in range(9)}
    assert TASKS.get("t4").data["n"] == 4
    with pytest.raises(UnknownTaskError, match="no task `t44`; did you mean `t4`") as caught:
        TASKS.get("t44")
    assert isinstance(caught.value, KeyError)


def test_copies_share_and_pickles_equal() -> None:
    assert copy.deepcopy(TASKS) is TASKS
    again = pickle.loads(pickle.dumps(TASKS))
    assert list(again) == list(TASKS)
    assert again.splits == TASKS.splits
    assert repr(TASKS) == "TaskSet(test: 3, train: 6)"
