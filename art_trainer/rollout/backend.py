"""Rollout backends: groups played in this process, by remote workers, a Ray cluster or agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, Unpack

from art_trainer.config import GRPOConfig
from art_trainer.inference.policy import Policy
from art_trainer.rollout.envs import EVALUATION, TRAIN, EnvPool, EnvSource, choose_split, maker
from art_trainer.rollout.episodes import rollout_groups
from art_trainer.rollout.evaluate import Evaluation, evaluate
from art_trainer.types import Episode, Group, GroupSpec

if TYPE_CHECKING:
    from art_trainer.inference.transformers_policy import TransformersPolicy
    from art_trainer.tracking.callbacks import TrainerCallback


class CollectCallbacks(TypedDict):
    """Callbacks of :meth:`RolloutBackend.collect`, as keyword arguments."""

    on_episode: Callable[[Episode], None]
    """Called with each episode as it ends."""
    on_group: NotRequired[Callable[[int, Group], None] | None]
    """Called with each complete group, its index among the tasks before it."""


class RolloutBackend:
    """Base of what plays groups: tasks in, finished groups out, each exactly once.

    A trainer calls it from one thread, in this order, again and again: :meth:`publish`, :meth:`prefetch`,
    :meth:`collect`; and :meth:`saved` when it has written a checkpoint. All but :meth:`collect` do nothing
    by default.

    Attributes:
        per_process: Whether each of several training processes has its own backend, which plays that
            process's share. Otherwise only the main process has one.
    """

    per_process = False

    def publish(self, version: int) -> None:
        """Use the policy's current weights for all episodes that start from now on.

        Args:
            version: The version of these weights. Nothing happens if it was published last.
        """

    def prefetch(self, tasks: Sequence[GroupSpec]) -> None:
        """Announce tasks that :meth:`collect` will request later; they may be played early."""

    def collect(self, tasks: Sequence[GroupSpec], **callbacks: Unpack[CollectCallbacks]) -> list[Group]:
        """Play groups, and wait until all are complete.

        Args:
            tasks: The groups, prefetched or not.
            **callbacks: See :class:`CollectCallbacks`.

        Returns:
            The groups, in the order of their tasks. No episode is missing: one that could not be played
            has an ending that says so.
        """
        raise NotImplementedError

    def saved(self, batch: int) -> None:
        """Batches before this one are in a checkpoint, so they will never be requested again."""

    def close(self) -> None:
        """Release all resources and stop the workers."""


class SelfContainedBackend(RolloutBackend):
    """A backend that plays a trainer's evaluations too."""

    def evaluate(self, *, episodes: int, seed: int) -> Evaluation:
        """Play held-out tasks with the policy's current weights and sampling.

        Args:
            episodes: How many; tasks are repeated if there are fewer.
            seed: Equal seeds give equal tasks and randomness.

        Raises:
            ConfigError: If there is nothing to evaluate on.
        """
        raise NotImplementedError


class LocalBackend(SelfContainedBackend):
    """Plays in this process, with the policy that is trained.

    Args:
        policy: The policy that plays.
        env: The environment to train on.
        eval_env: The environment to evaluate on; by default the same.
        config: Says which splits, and how many episodes run at the same time.
    """

    per_process = True

    def __init__(
        self, policy: Policy, env: EnvSource, eval_env: EnvSource | None, config: GRPOConfig
    ) -> None:
        make_env = maker(env)
        self._make_eval_env = make_env if eval_env is None else maker(eval_env)
        self._policy = policy
        self._pool = EnvPool(make_env)
        self._config = config

    def training_options(self) -> dict[str, Any] | None:
        """Return the options of ``reset`` in training; ``None`` if the environment has no splits.

        Raises:
            ConfigError: If the environment has no such split.
        """
        env = self._pool.acquire()
        self._pool.release(env)
        split = choose_split(env, self._config.train_split, TRAIN)
        return None if split is None else {"split": split}

    def collect(self, tasks: Sequence[GroupSpec], **callbacks: Unpack[CollectCallbacks]) -> list[Group]:
        """Play groups, see :meth:`RolloutBackend.collect`."""
        return rollout_groups(
            self._policy,
            self._pool,
            tasks,
            max_concurrent=self._config.max_concurrent,
            record_states=self._config.records_states,
            env_threads=self._config.env_threads,
            **callbacks,
        )

    def evaluate(self, *, episodes: int, seed: int) -> Evaluation:
        """Run an evaluation, see :meth:`SelfContainedBackend.evaluate`."""
        return evaluate(
            self._policy,
            self._make_eval_env,
            split=self._eval_split,
            episodes=episodes,
            seed=seed,
            max_concurrent=self._config.max_concurrent,
        )

    @cached_property
    def _eval_split(self) -> str | None:
        with closing(self._make_eval_env()) as env:
            return choose_split(env, self._config.eval_split, EVALUATION)

    def close(self) -> None:
        """Close the environments; new ones are made when needed again."""
        self._pool.close()


@dataclass(frozen=True, slots=True)
class RolloutSetup:
    """A backend that plays the groups elsewhere, with its trainer callbacks."""

    backend: RolloutBackend
    callbacks: tuple[TrainerCallback, ...] = ()
    on_evaluation: Callable[[], None] = lambda: None
    """Called before each evaluation before and after training."""
    on_trained: Callable[[], None] = lambda: None
    """Called when all steps are done."""


RolloutSetupFactory = Callable[["TransformersPolicy"], AbstractContextManager[RolloutSetup]]
"""Makes the setup for a policy, in the main process; the backend is up within the context."""
