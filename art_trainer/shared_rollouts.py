"""A step's groups, played by all processes: each plays its share, and all get all.

Tasks and randomness of a group depend on its place in the step alone, not on who plays it. So the episodes
are those of a single process, as far as the sampler's floating-point numbers do not depend on what it is
batched with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from art_trainer.backends.backend import RolloutBackend
from art_trainer.episodes import Episode, Group
from art_trainer.judging import RewardModel
from art_trainer.processes import Processes, jointly
from art_trainer.starts import GroupTask
from art_trainer.timings import Timings


class SharedRollouts:
    """Has groups played, and judged where a judge pays.

    Args:
        backend: Who plays.
        processes: Who shares the work.
        reward: What is paid in place of the environment's own reward. Each process has its own, with a budget
            of its own.
        timings: Told how long this process's episodes took.
        on_episode: Told of each episode as it ends, of those of other processes when they arrive.
    """

    def __init__(
        self,
        backend: RolloutBackend,
        processes: Processes,
        *,
        reward: RewardModel | None,
        on_episode: Callable[[Episode], None],
        timings: Timings,
    ) -> None:
        self._backend = backend
        self._processes = processes
        self._reward = reward
        self._on_episode = on_episode
        self._timings = timings

    def play(
        self, tasks: Sequence[GroupTask], exposed: Callable[[], AbstractContextManager[None]]
    ) -> list[Group]:
        """Play a step's groups; every process has to, and gets the groups of all.

        Args:
            tasks: The groups, the same in every process.
            exposed: Within what it returns Ctrl-C breaks the playing off, in all processes.
        """
        if self._processes.size == 1:
            with exposed():
                return self._collect(tasks)
        mine: list[Group] = []
        own_places = self._places(tasks, self._processes.rank)

        def play_share() -> list[list[dict[str, Any]]]:
            with exposed():
                mine.extend(self._collect([tasks[place] for place in own_places]))
                return [[episode.to_json() for episode in group.episodes] for group in mine]

        played = jointly(self._processes, play_share)
        groups: dict[int, Group] = {}
        for rank, theirs in enumerate(played):
            own = rank == self._processes.rank
            found = mine if own else [Group(tuple(map(Episode.from_json, group))) for group in theirs]
            groups |= zip(self._places(tasks, rank), found, strict=True)
            for episode in () if own else (episode for group in found for episode in group.episodes):
                self._on_episode(episode)
        return [groups[place] for place in range(len(tasks))]

    def _places(self, tasks: Sequence[GroupTask], rank: int) -> range:
        """The places of the tasks that a process has played."""
        if self._backend.per_process:
            return range(rank, len(tasks), self._processes.size)
        return range(len(tasks) if rank == 0 else 0)

    def _collect(self, tasks: Sequence[GroupTask]) -> list[Group]:
        """Play groups by this process's backend, judged while others are still being played."""
        if not tasks:
            return []
        groups = self._backend.collect(
            tasks,
            on_episode=self._on_episode,
            on_group=None if self._reward is None else self._reward.submit,
            timings=self._timings,
        )
        return groups if self._reward is None else self._reward.collect()
