"""The hash of a list of tasks: what the environment itself says they are.

It covers, for each start:

* the task's id, split and seed,
* what is asked, and the first observation with the standing instructions,
* the environment's data of the task, the answer among them where it is there,
* what the environment says its grading depends on (:class:`art_gym.grading.TellsGrading`): the hidden tests,
  tolerance and template of a coding problem, the digest of all mails of a mailbox.

Tasks that are asked, answered, tested or numbered otherwise have another hash. It does not cover the
environment's arguments, which are in the suite, nor its code: how a reply is read, how mails are ranked, what
a term pays. A result says which versions and which commit it was made with, and ``art-trainer eval --verify``
plays it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from art_gym.errors import ArtGymError
from art_gym.grading import TellsGrading
from art_gym.tasks import TaskSet
from art_trainer.errors import ConfigError
from art_trainer.suites.suite import Suite


def task_list_sha256(
    make_env: Callable[[], gym.Env[str, str]], starts: Sequence[tuple[str | None, int]]
) -> str:
    """The sha256 of the tasks as canonical JSON: an object a start, keys sorted, no spaces, ASCII alone.

    Args:
        make_env: Makes the environment.
        starts: Task (``None`` where episodes differ by seed alone) and seed of each reset.

    Raises:
        ConfigError: Where the environment has no such task, or its data is no JSON.
    """
    env = make_env()
    try:
        described = [_described(env, task, seed) for task, seed in starts]
    except ArtGymError as error:
        raise ConfigError(f"the environment does not have all tasks of the suite: {error}") from error
    finally:
        env.close()
    try:
        text = json.dumps(described, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except TypeError as error:
        raise ConfigError(f"what the environment says of its tasks is no JSON: {error}") from error
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def check_task_list(make_env: Callable[[], gym.Env[str, str]], suite: Suite) -> str:
    """The hash of a suite's tasks as the environment has them now, which must be the suite's own.

    Raises:
        ConfigError: Where they are not the tasks that the suite was made with.
    """
    found = task_list_sha256(make_env, suite.starts)
    if suite.task_list_sha256 not in ("", found):
        raise ConfigError(
            f"suite {suite.name or suite.env}: the tasks of {suite.env} are not those it was made with "
            f"(task list {found[:12]}…, the suite's is {suite.task_list_sha256[:12]}…). What is asked, "
            "answered or graded with has changed, so results cannot be compared with earlier ones: use the "
            "version it was made with, or "
            "make the suite again with `art-trainer make-suite`"
        )
    return found


def _described(env: gym.Env[str, str], task: str | None, seed: int) -> dict[str, Any]:
    known = getattr(env.unwrapped, "tasks", None)
    if task is not None and isinstance(known, TaskSet):
        known.get(task)
    try:
        observation, info = env.reset(seed=seed, options=None if task is None else {"task": task})
    except Exception as fault:  # an environment is its author's code; the rollout meets it again and tells
        return {"seed": seed, "task": task, "fault": type(fault).__name__}
    described: dict[str, Any] = {"seed": seed, "task": info.get("task_id", task), "observation": observation}
    if isinstance(known, TaskSet):
        told = known.get(str(described["task"]))
        described |= {"prompt": told.prompt, "split": told.split, "data": dict(told.data)}
        if isinstance(env.unwrapped, TellsGrading):
            described["grading"] = dict(env.unwrapped.grading(told))
    return described
