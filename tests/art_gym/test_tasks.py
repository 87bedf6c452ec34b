import copy
import pickle
from typing import Any

import numpy as np
import pytest

from art_gym.errors import UnknownTaskError
from art_gym.tasks import Task, TaskSet

TASKS = TaskSet(Task(f"t{n}", f"Do {n}.", "test" if n % 3 == 0 else "train", {"n": n}) for n in range(9))


@pytest.mark.parametrize(
    ("make", "given", "error", "words"),
    [
        (TaskSet, ([Task("a", ""), Task("b", ""), Task("b", "again")],), ValueError, "`b` occurs twice"),
        (TaskSet, ([],), ValueError, "at least one"),
        (TaskSet, ([{"id": "a"}],), TypeError, r"Task\(id, prompt, split, data\), not \{'id': 'a'\}"),
        (Task, (7, "p"), TypeError, "the id of a task must be a str, not 7"),
        (Task, ("a", None), TypeError, "the prompt of a task must be a str, not None .task 'a'."),
        (Task, ("a", "p", {"n": 1}), TypeError, "the split of a task"),
        (Task, ("a", "p", "test", [1]), TypeError, r"the data of task `a` must be a dict, not \[1\]"),
    ],
)
def test_wrong_tasks_are_refused(make: Any, given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make(*given)


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
