"""Tasks of an environment as a dataset that TRL's trainers take."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from art_trainer.errors import ConfigError
from art_trainer.evaluation import evaluation_split
from art_trainer.rollout import first_messages


def task_dataset(
    env: str,
    *,
    split: str | None = "train",
    size: int | None = None,
    seed: int = 0,
    env_args: Mapping[str, Any] | None = None,
) -> Any:
    """Return a ``datasets.Dataset`` with one row for each start of an episode.

    Its columns are ``prompt`` (the conversation's first messages), ``seed`` and ``task`` (what the
    environment is reset with), ``env`` (the environment's id and arguments as JSON) and ``begins`` (a digest
    of the first observation). TRL repeats a row for every member of a group, so all of them start from the
    same state and meet the same chance. The prompt's last message says again, under ``start``, what the
    environment is reset with: it is all that a ``rollout_func`` gets to see of a row.

    Args:
        env: An id that ``gym.make`` knows.
        split: Which of its tasks; ignored where its episodes differ by seed alone.
        size: How many rows; by default every task of the split once, 256 without tasks. Tasks come around
            again with other seeds.
        seed: What the rows' seeds are derived from.
        env_args: Arguments of the environment, as JSON can hold them.

    Raises:
        ModuleNotFoundError: Without the package ``datasets``, of the extra ``art-gym[trl]``.
        UnknownTask: Where the environment has tasks but no such split.
        ValueError: Where no row is asked for.
        ConfigError: Where ``env_args`` cannot be written as JSON.
    """
    try:
        from datasets import Dataset  # type: ignore[import-untyped]
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            'a dataset for TRL needs the package datasets: pip install "art-gym[trl]"'
        ) from missing
    if size is not None and size < 1:
        raise ValueError(f"a dataset has at least one row, got size={size}")
    made_by = env_json(env, env_args)
    made = make_env(made_by)
    try:
        name = evaluation_split(made, split)
        tasks = [] if name is None else [task.id for task in made.unwrapped.tasks.split(name)]  # type: ignore[attr-defined]
        count = size or len(tasks) or 256
        rows = []
        for place, state in enumerate(np.random.SeedSequence(seed).generate_state(count)):
            row_seed, task = int(state), tasks[place % len(tasks)] if tasks else None
            observation, info = made.reset(seed=row_seed, options=reset_options(task))
            messages = first_messages(observation, info.get("system") or "")
            messages[-1]["start"] = json.dumps({"seed": row_seed, "task": task})
            rows.append(
                {
                    "prompt": messages,
                    "seed": row_seed,
                    "task": task,
                    "env": made_by,
                    "begins": digest(observation),
                }
            )
    finally:
        made.close()
    return Dataset.from_list(rows)


def env_json(env: str, env_args: Mapping[str, Any] | None) -> str:
    """An environment's id and arguments as one text, equal for equal arguments.

    Raises:
        ConfigError: Where the arguments cannot be written as JSON.
    """
    try:
        return json.dumps({"id": env, "args": dict(env_args or {})}, sort_keys=True)
    except TypeError as error:
        raise ConfigError(
            f"env_args of {env} are kept in the dataset as JSON, and cannot be: {error}"
        ) from error


def make_env(made_by: str) -> gym.Env[Any, Any]:
    """Make the environment that :func:`env_json` wrote down."""
    wanted = json.loads(made_by)
    return gym.make(wanted["id"], **wanted["args"])


def reset_options(task: str | None) -> dict[str, Any] | None:
    """The options that reset an environment to a row's task."""
    return None if task is None else {"task": task}


def digest(observation: str) -> str:
    """Sixteen characters by which a first observation is known again."""
    return hashlib.sha256(observation.encode()).hexdigest()[:16]
