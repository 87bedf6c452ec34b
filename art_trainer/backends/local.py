"""Groups played in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from art_trainer.backends.backend import Told
from art_trainer.config import GRPOConfig
from art_trainer.env_pool import EnvPool
from art_trainer.episodes import Group
from art_trainer.policy import Policy
from art_trainer.rollout import rollout_tasks
from art_trainer.starts import GroupTask


class LocalBackend:
    """Plays groups with the policy that is trained, when they are asked for.

    Args:
        policy: Who plays.
        pool: Where environments come from.
        config: How many episodes are played at one time.
    """

    per_process = True

    def __init__(self, policy: Policy, pool: EnvPool, config: GRPOConfig) -> None:
        self._policy = policy
        self._pool = pool
        self._config = config

    def publish(self, version: int) -> None:
        """Do nothing: the policy that plays is the one that learns."""

    def prefetch(self, tasks: Sequence[GroupTask]) -> None:
        """Do nothing: while it learns nobody plays."""

    def collect(self, tasks: Sequence[GroupTask], **told: Unpack[Told]) -> list[Group]:
        """Play groups, see :meth:`~art_trainer.backends.backend.RolloutBackend.collect`."""
        return rollout_tasks(
            self._policy,
            self._pool,
            tasks,
            max_concurrent=self._config.max_concurrent,
            record_states=self._config.records_states,
            env_threads=self._config.env_threads,
            **told,
        )

    def saved(self, batch: int) -> None:
        """Do nothing: nothing is kept."""

    def close(self) -> None:
        """Do nothing: the environments are the trainer's."""
