"""Task sampling: which tasks come next in training, by how often the policy solves them.

A group of attempts teaches most if about half of them succeed, and nothing if all do or none: its expected
gradient grows with the variance p (1 - p) of its success. So tasks are drawn with that probability, where p
is not known but drawn from its posterior (Thompson, 1933): a task that was seldom played is sometimes taken
for one of the middle, and played. Nobody pays for a group to learn that it teaches nothing, as with
``dynamic_sampling``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from art_gym.tasks import Task
from art_trainer.errors import ConfigError
from art_trainer.types import Ending, Group

MEMORY = 0.93
"""What an attempt counts one training step later: the policy changes, and half of it is left after ten."""
PRIOR = 8.0
"""Attempts that what is known of the tasks of equal difficulty counts for."""


class TaskSampler:
    """Draws training tasks by a posterior of their success.

    A task's success has a Beta posterior: its own attempts, and a prior around the mean of the tasks with the
    same ``data["difficulty"]``, or of all tasks if they have none.

    Args:
        tasks: The tasks.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._places = {task.id: place for place, task in enumerate(tasks)}
        self._ids = list(self._places)
        levels = [str(task.data.get("difficulty")) for task in tasks]
        self._levels = np.unique(levels, return_inverse=True)[1]
        self._successes = np.zeros(len(tasks))
        self._failures = np.zeros(len(tasks))

    def draw(self, count: int, rng: np.random.Generator) -> list[str]:
        """Return the ids of the next tasks, all different if there are enough."""
        successes = np.bincount(self._levels, self._successes)[self._levels]
        failures = np.bincount(self._levels, self._failures)[self._levels]
        mean = (successes + 1) / (successes + failures + 2)
        rates = rng.beta(PRIOR * mean + self._successes, PRIOR * (1 - mean) + self._failures)
        variances = rates * (1 - rates) + 1e-9  # none is impossible, so there are always enough
        drawn = rng.choice(
            len(rates), count, replace=count > len(rates), p=variances / variances.sum(), shuffle=False
        )
        return [self._ids[place] for place in drawn]

    def observe(self, groups: Sequence[Group]) -> None:
        """Take in the attempts of a step.

        Raises:
            ConfigError: If the environment does not say whether an attempt succeeded.
        """
        self._successes *= MEMORY
        self._failures *= MEMORY
        for episode in (episode for group in groups for episode in group.episodes if not episode.failed):
            if episode.success is None and episode.ending is Ending.TERMINATED:
                raise ConfigError(
                    f"task_sampling 'thompson' goes by success, which {episode.env_id} does not report at "
                    "the end of an episode: set 'uniform'"
                )
            if (place := self._places.get(episode.task_id)) is not None:
                (self._successes if episode.success else self._failures)[place] += 1

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` takes, JSON-able: successes and failures by task."""
        counts = zip(self._ids, self._successes.tolist(), self._failures.tolist(), strict=True)
        return {task_id: [won, lost] for task_id, won, lost in counts if won or lost}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state`."""
        for task_id, counts in state.items():
            place = self._places[task_id]
            self._successes[place], self._failures[place] = counts
