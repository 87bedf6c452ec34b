"""A step's groups, played by all processes: each plays its share, and all get all.

Tasks and randomness of a group depend on its place in the step alone, not on who plays it. So the episodes
are those of a single process, as far as the sampler's floating-point numbers do not depend on what it is
batched with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from art_trainer.config import GRPOConfig
from art_trainer.env_pool import EnvPool
from art_trainer.episodes import Episode, Group
from art_trainer.judging import RewardModel
from art_trainer.policy import Policy
from art_trainer.processes import Processes, jointly
from art_trainer.rollout import Start, rollout, rollout_groups
from art_trainer.timings import Timings


class SharedRollouts:
    """Plays groups of ``num_generations`` attempts, and has them judged where a judge pays.

    Args:
        policy: Who plays.
        pool: Where environments come from.
        config: The group's size and how many are played at one time.
        processes: Who shares the work.
        options: For every ``reset``.
        reward: What is paid in place of the environment's own reward. Each process has its own, with a budget
            of its own.
        timings: Told how long this process's episodes took.
        on_episode: Told of each episode as it ends, of those of other processes when they arrive.
    """

    def __init__(
        self,
        policy: Policy,
        pool: EnvPool,
        config: GRPOConfig,
        processes: Processes,
        *,
        options: Mapping[str, Any] | None,
        reward: RewardModel | None,
        on_episode: Callable[[Episode], None],
        timings: Timings,
    ) -> None:
        self._policy = policy
        self._pool = pool
        self._config = config
        self._processes = processes
        self._options = options
        self._reward = reward
        self._on_episode = on_episode
        self._timings = timings

    def play_together(
        self, seeds: Sequence[int], stream: Sequence[int], exposed: Callable[[], AbstractContextManager[None]]
    ) -> list[Group]:
        """Play a group from each seed; every process has to, and gets the groups of all.

        Args:
            seeds: One a group.
            stream: The stream of randomness, below the config's seed.
            exposed: Within what it returns Ctrl-C breaks the playing off, in all processes.
        """
        mine: list[Group] = []

        def play_share() -> list[list[dict[str, Any]]]:
            with exposed():
                mine.extend(self._play_share(seeds, stream))
                return [[episode.to_json() for episode in group.episodes] for group in mine]

        played = jointly(self._processes, play_share)
        groups: dict[int, Group] = {}
        for rank, theirs in enumerate(played):
            own = rank == self._processes.rank
            found = mine if own else [Group(tuple(map(Episode.from_json, group))) for group in theirs]
            groups |= zip(self._places(seeds, rank), found, strict=True)
            for episode in () if own else (episode for group in found for episode in group.episodes):
                self._on_episode(episode)
        return [groups[place] for place in range(len(seeds))]

    def _places(self, seeds: Sequence[int], rank: int) -> range:
        """The places of the seeds that a process plays."""
        return range(rank, len(seeds), self._processes.size)

    def play(self, seeds: Sequence[int], stream: Sequence[int]) -> list[Group]:
        """Play a group from each seed in this process, judged while others are still being played."""
        groups = rollout_groups(
            self._policy,
            self._pool,
            seeds,
            self._config.num_generations,
            options=self._options,
            rng_seed=(self._config.seed, *stream),
            max_concurrent=self._config.max_concurrent,
            record_states=self._config.records_states,
            env_threads=self._config.env_threads,
            timings=self._timings,
            on_episode=self._on_episode,
            on_group=None if self._reward is None else self._reward.submit,
        )
        return groups if self._reward is None else self._reward.collect()

    def _play_share(self, seeds: Sequence[int], stream: Sequence[int]) -> list[Group]:
        """Play this process's groups, judged when all of them are played."""
        size = self._config.num_generations
        starts = [
            Start(seeds[place], self._options, place, (self._config.seed, *stream, place, member))
            for place in self._places(seeds, self._processes.rank)
            for member in range(size)
        ]
        episodes = rollout(
            self._policy,
            self._pool,
            starts,
            max_concurrent=self._config.max_concurrent,
            on_episode=self._on_episode,
            record_states=self._config.records_states,
            env_threads=self._config.env_threads,
            timings=self._timings,
        )
        groups = [Group(tuple(episodes[i : i + size])) for i in range(0, len(episodes), size)]
        if self._reward is None:
            return groups
        for place, group in enumerate(groups):
            self._reward.submit(place, group)
        return self._reward.collect()
