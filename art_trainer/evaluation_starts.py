"""Where the episodes of an evaluation start: the same for every policy that is evaluated."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from art_gym.tasks import TaskSet
from art_trainer.starts import Start

DEFAULT_EPISODES = 100
"""How many episodes an environment without tasks is played."""


def attempts(place: int, task: str | None, reset_seed: int, *, seed: int, samples: int) -> list[Start]:
    """The attempts at one start: the same state, and randomness of each attempt's own for the policy.

    Args:
        place: Which start of the evaluation it is, from 0.
        task: The task's id; ``None`` where the environment's episodes differ by seed alone.
        reset_seed: For the environment's ``reset``.
        seed: The evaluation's; what the policy's sampling is derived from.
        samples: How many attempts.
    """
    options = None if task is None else {"task": task}
    return [
        Start(seed=reset_seed, options=options, group=place, rng_seed=(seed, place, 1 + attempt))
        for attempt in range(samples)
    ]


def evaluation_starts(
    env: gym.Env[str, str],
    *,
    split: str | None = None,
    episodes: int | None = None,
    seed: int = 0,
    samples: int = 1,
) -> list[Start]:
    """The starts of an evaluation: task k of the split for episode k, around again after the last.

    An environment without tasks, or with only one, is played from different seeds instead.

    Args:
        env: The environment; its ``tasks`` are used where it has them.
        split: Which of the environment's splits; see :func:`evaluation_split`.
        episodes: How many starts; every task once where not given (``DEFAULT_EPISODES`` without tasks).
        seed: What the seeds of the resets and of the policy's sampling are derived from.
        samples: Attempts at each start; they follow each other in the list.

    Raises:
        UnknownTask: Where the environment has tasks but no such split.
        ValueError: Where no episode is asked for.
    """
    if samples < 1:
        raise ValueError(f"an evaluation needs at least one attempt at each start, got samples={samples}")
    if episodes is not None and episodes < 1:
        raise ValueError(f"an evaluation needs at least one episode, got {episodes}")
    name = evaluation_split(env, split)
    tasks = [] if name is None else [task.id for task in env.unwrapped.tasks.split(name)]  # type: ignore[attr-defined]
    count = episodes or len(tasks) or DEFAULT_EPISODES
    starts = []
    for k in range(count):
        task = tasks[k % len(tasks)] if tasks else None
        reset_seed = int(np.random.SeedSequence((seed, k)).generate_state(1)[0])
        starts += attempts(k, task, reset_seed, seed=seed, samples=samples)
    return starts


def evaluation_split(env: gym.Env[str, str], split: str | None) -> str | None:
    """The split to evaluate on; ``None`` where the environment's episodes differ by seed alone.

    Args:
        env: The environment.
        split: The split asked for; where not given, ``"test"`` if there is one, else the first.

    Raises:
        UnknownTask: Where the environment has tasks but no such split; names the near miss.
    """
    tasks = getattr(env.unwrapped, "tasks", None)
    if not isinstance(tasks, TaskSet) or len(tasks) == 1:
        return None
    if split is None:
        return "test" if "test" in tasks.splits else tasks.splits[0]
    tasks.split(split)
    return split
