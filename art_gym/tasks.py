"""Tasks and their splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from art_gym.errors import UnknownTaskError, did_you_mean


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do: data only, apart from the environment's behaviour.

    Attributes:
        id: Unique within its :class:`TaskSet`.
        prompt: What the agent is asked.
        split: ``"train"``, ``"validation"``, ``"test"`` or a name of the author's.
        data: What the environment needs to set the task up and grade it; JSON-able.

    Raises:
        TypeError: If one of them is of another type.
    """

    id: str
    prompt: str
    split: str = "train"
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("id", "prompt", "split"):
            if not isinstance(value := getattr(self, name), str):
                raise TypeError(f"the {name} of a task must be a str, not {value!r} (task {self.id!r})")
        if not isinstance(self.data, Mapping):
            raise TypeError(f"the data of task `{self.id}` must be a dict, not {self.data!r}")


class TaskSet(Sequence[Task]):
    """An immutable sequence of tasks with unique ids.

    Raises:
        TypeError: If something else than a :class:`Task` is among them.
        ValueError: If it would be empty or an id occurs twice.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = tuple(tasks)
        if not self._tasks:
            raise ValueError("a TaskSet needs at least one task")
        for task in self._tasks:
            if not isinstance(task, Task):
                raise TypeError(f"a task is written Task(id, prompt, split, data), not {task!r}")
        self._by_id = {task.id: task for task in self._tasks}
        if len(self._by_id) != len(self._tasks):
            twice = Counter(task.id for task in self._tasks).most_common(1)[0][0]
            raise ValueError(f"task id `{twice}` occurs twice; ids must be unique")
        self._splits: dict[str, TaskSet] = {}
        self._split_names = tuple(dict.fromkeys(task.split for task in self._tasks))

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, in order of first appearance."""
        return self._split_names

    def split(self, name: str) -> TaskSet:
        """The tasks of one split.

        Raises:
            UnknownTaskError: If there is no such split.
        """
        if name not in self._splits:
            chosen = [task for task in self._tasks if task.split == name]
            if not chosen:
                raise UnknownTaskError(f"no split `{name}`{did_you_mean(name, self.splits)}")
            self._splits[name] = TaskSet(chosen)
        return self._splits[name]

    def get(self, task_id: str) -> Task:
        """The task with this id.

        Raises:
            UnknownTaskError: If there is none.
        """
        try:
            return self._by_id[task_id]
        except KeyError:
            raise UnknownTaskError(f"no task `{task_id}`{did_you_mean(str(task_id), self._by_id)}") from None

    def sample(self, rng: np.random.Generator) -> Task:
        """One task, uniformly."""
        return self._tasks[int(rng.integers(len(self._tasks)))]

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        return self._tasks[index]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskSet:
        # Immutable, and an environment is copied often.
        return self

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}: {len(self.split(name))}" for name in self.splits)
        return f"TaskSet({counts})"
