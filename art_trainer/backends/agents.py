"""Groups that an agent plays whose code is not ours, for a trainer without an environment.

::

    backend = AgentBackend(agent, tasks, policy, eval_tasks=held_out)
    GRPOTrainer(policy, None, config, backend=backend).train()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from art_trainer.agent_server.rollouts import Agent, AgentLimits, AgentRollouts, Attempt, task_name
from art_trainer.agent_server.server import AgentServer
from art_trainer.episodes import Episode, Group
from art_trainer.errors import ConfigError
from art_trainer.evaluation import EpisodeResult, Evaluation
from art_trainer.starts import GroupTask
from art_trainer.timings import Timings
from art_trainer.transformers_policy import TransformersPolicy


class AgentBackend:
    """Has an agent attempt the trainer's tasks, and the held-out ones of its evaluations.

    A group has the task ``tasks[seed % len(tasks)]``. Attempts that fail, and their groups, are treated
    as in :class:`~art_trainer.agent_server.rollouts.AgentRollouts`.

    Args:
        agent: The agent, see :data:`~art_trainer.agent_server.rollouts.Agent`.
        tasks: What it is trained on: whatever it understands. An ``id``, as attribute or key, names a task in
            the episodes.
        policy: Who answers it; the one that is trained.
        eval_tasks: What it is evaluated on; none of them should be among ``tasks``.
        limits: What an attempt may take.
        name: What episodes have for an environment's id; by default the agent's name.
        server: A server to use, which stays open; by default one on a free port of this machine.

    Raises:
        ConfigError: Where there is no task to train on.
    """

    per_process = False

    def __init__(
        self,
        agent: Agent,
        tasks: Sequence[Any],
        policy: TransformersPolicy,
        *,
        eval_tasks: Sequence[Any] = (),
        limits: AgentLimits | None = None,
        name: str | None = None,
        server: AgentServer | None = None,
    ) -> None:
        if not tasks:
            raise ConfigError("tasks is empty: the agent needs at least one to be trained on")
        self._tasks = tuple(tasks)
        self._eval_tasks = tuple(eval_tasks)
        self._policy = policy
        self._rollouts = AgentRollouts(agent, policy, limits=limits, name=name, server=server)

    def publish(self, version: int) -> None:
        """Do nothing: the policy that answers is the one that learns."""

    def prefetch(self, tasks: Sequence[GroupTask]) -> None:
        """Do nothing: while it learns nobody plays."""

    def collect(
        self,
        tasks: Sequence[GroupTask],
        *,
        on_episode: Callable[[Episode], None],
        on_group: Callable[[int, Group], None] | None = None,
        timings: Timings | None = None,
    ) -> list[Group]:
        """Have groups played, see :meth:`~art_trainer.backends.backend.RolloutBackend.collect`.

        An action's time is the agent's own: from a reply to the request that continues it.
        """
        attempts, group_of = [], []
        for place, task in enumerate(tasks):
            attempts += [self._attempt(task, member) for member in range(task.size)]
            group_of += [place] * task.size
        ended: list[dict[int, Episode]] = [{} for _ in tasks]
        groups: dict[int, Group] = {}

        def hear(attempt: int, episode: Episode) -> None:
            on_episode(episode)
            place = group_of[attempt]
            members = ended[place]
            members[attempt] = episode
            if len(members) == tasks[place].size:
                groups[place] = Group(tuple(members[attempt] for attempt in sorted(members)))
                if on_group is not None:
                    on_group(place, groups[place])

        self._rollouts.attempt(attempts, hear, timings)
        return [groups[place] for place in range(len(tasks))]

    def evaluate(self, *, episodes: int, seed: int) -> Evaluation:
        """Have the held-out tasks attempted, see :class:`~art_trainer.backends.backend.PlaysEvaluations`.

        Raises:
            ConfigError: Where there are none.
        """
        if not self._eval_tasks:
            raise ConfigError(
                "there is nothing to evaluate on: give AgentBackend eval_tasks, or set eval_steps to 0"
            )
        began = time.perf_counter()
        attempts = []
        for number in range(episodes):
            place = number % len(self._eval_tasks)
            task = self._eval_tasks[place]
            own_seed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
            attempts.append(Attempt(task, task_name(task, place), own_seed, (seed, number)))
        played = self._rollouts.attempt(attempts)
        return Evaluation(
            policy=self._policy.name,
            env_id=self._rollouts.name,
            split=None,
            seed=seed,
            results=tuple(EpisodeResult.of(episode) for episode in played),
            seconds=time.perf_counter() - began,
        )

    def saved(self, batch: int) -> None:
        """Do nothing: nothing is kept."""

    def close(self) -> None:
        """Stop the server, unless it was the caller's."""
        self._rollouts.close()

    def _attempt(self, task: GroupTask, member: int) -> Attempt:
        place = task.seed % len(self._tasks)
        chosen = self._tasks[place]
        return Attempt(chosen, task_name(chosen, place), task.seed, (*task.rng_seed, member))
