"""Datasets of an environment's tasks for TRL's trainers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np

from art_gym import catalog
from art_gym.base import without_tool_list
from art_trainer.errors import ConfigError
from art_trainer.rollout.envs import MakeEnv, env_maker, find_env
from art_trainer.rollout.episodes import first_messages
from art_trainer.rollout.evaluate import evaluation_split

Messages = Sequence[Mapping[str, Any]]


def task_dataset(
    env: str,
    *,
    split: str | None = "train",
    size: int | None = None,
    seed: int = 0,
    env_args: Mapping[str, Any] | None = None,
    free_text: bool = False,
) -> Any:
    """Return a ``datasets.Dataset`` with a row for each start of an episode.

    Its columns are ``prompt`` (the conversation's first messages), ``seed`` and ``task`` (arguments of the
    environment's reset) and ``env`` (the environment's id and arguments as JSON). TRL repeats a row for every
    member of a group, so all of them start from the same state with the same randomness.

    Args:
        env: As :func:`art_gym.lookup.find_env` takes it.
        split: The split of tasks; ignored if its episodes differ by seed alone.
        size: Number of rows; by default every task of the split once, 256 without tasks. Tasks repeat with
            other seeds.
        seed: The seed of the rows' seeds.
        env_args: Arguments of the environment, JSON-serialisable.
        free_text: Keep the environment's own list of its tools in the system message, for
            ``environment_factory(free_text=True)``; otherwise the chat template lists them.

    Raises:
        ModuleNotFoundError: If the package ``datasets`` (extra ``art-gym[trl]``) is missing.
        UnknownTaskError: If the environment has tasks but no such split.
        ValueError: If ``size`` is below 1.
        ConfigError: If there is no such environment, or it is not text, a game with several seats, or does
            not take ``env_args``; or they cannot be written as JSON.
    """
    try:
        from datasets import Dataset  # type: ignore[import-untyped]
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            'a dataset for TRL needs the package datasets: pip install "art-gym[trl]"'
        ) from missing
    if size is not None and size < 1:
        raise ValueError(f"a dataset has at least one row, got size={size}")
    env_spec = env_json(env, env_args)
    rows = []
    with closing(make_env(env_spec)) as made:
        name = evaluation_split(made, split)
        tasks = [] if name is None else [task.id for task in made.unwrapped.tasks.split(name)]  # type: ignore[attr-defined]
        count = size or len(tasks) or 256
        for place, state in enumerate(np.random.SeedSequence(seed).generate_state(count)):
            row_seed, task = int(state), tasks[place % len(tasks)] if tasks else None
            observation, info = made.reset(seed=row_seed, options=reset_options(task))
            messages = first_messages(observation, info.get("system") or "")
            if messages[0]["role"] == "system" and not free_text:
                messages[0]["content"] = without_tool_list(messages[0]["content"])
            rows.append({"prompt": messages, "seed": row_seed, "task": task, "env": env_spec})
    return Dataset.from_list(rows)


def env_json(env: str, env_args: Mapping[str, Any] | None) -> str:
    """Return an environment's id and arguments as JSON, equal for equal arguments."""
    found = find_env(env)
    if found.id in catalog.games():
        raise ConfigError(
            f"{found.id} is a game with several seats: use art-trainer self-play, or register one seat of "
            "it, an art_gym.games.SeatEnv"
        )
    try:
        return json.dumps({"id": found.name, "args": dict(env_args or {})}, sort_keys=True)
    except TypeError as error:
        raise ConfigError(
            f"env_args of {env} are stored in the dataset as JSON, but cannot be: {error}"
        ) from error


def make_env(env_spec: str) -> gym.Env[Any, Any]:
    """Create the environment of :func:`env_json`; a ConfigError if it cannot be made or is not text."""
    return _maker(env_spec)()


@lru_cache(maxsize=64)
def _maker(env_spec: str) -> MakeEnv:
    wanted = json.loads(env_spec)
    return env_maker(wanted["id"], wanted["args"])


def reset_options(task: str | None) -> dict[str, Any] | None:
    """Return the reset options for a row's task."""
    return None if task is None else {"task": task}


def check_start(
    env: str, seed: object, task: object, observation: str, prompt: Messages, *, free_text: bool
) -> None:
    """Raise a ConfigError if an episode does not begin with what its row's prompt says."""
    first, last = prompt[0]["content"], prompt[-1]["content"]
    begins = observation == last
    if len(prompt) > 1:
        instructions = observation.removesuffix(f"\n\n{last}")
        begins = instructions != observation and first in (instructions, without_tool_list(instructions))
        if begins and first != (instructions if free_text else without_tool_list(instructions)):
            raise ConfigError(
                f"the dataset of {env} was made with free_text={not free_text} and the factory with "
                f"free_text={free_text}: give both the same, or the model reads of the wrong tools"
            )
    if not begins:
        raise ConfigError(
            f"{env} with seed {seed} and task {task!r} does not begin with what the dataset's prompt says: "
            "leave the prompts as task_dataset made them, and check that the environment draws all its "
            "randomness from np_random"
        )
