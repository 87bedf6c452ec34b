"""Leases played: episodes as the trainer's own process would play them, sent as each ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from art_trainer.engine_policy import EnginePolicy
from art_trainer.env_pool import EnvPool
from art_trainer.episodes import Episode, Group
from art_trainer.remote.messages import Lease
from art_trainer.rollout import rollout
from art_trainer.starts import Start
from art_trainer.timings import EpisodeTiming, Timings
from art_trainer.transformers_policy import TransformersPolicy

OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
OnEnd = Callable[[Lease, Episode, EpisodeTiming | None], None]


class PlayStopped(Exception):
    """What was being played is not wanted any more."""


class Player:
    """Plays leases with a policy, some at a time. All methods belong to one thread.

    Args:
        policy: Who plays.
        pool: Where environments come from; it stays open.
        record_states: Whether turns note the environment's state.
        env_threads: As in :func:`~art_trainer.rollout.rollout`.
    """

    def __init__(
        self,
        policy: TransformersPolicy | EnginePolicy,
        pool: EnvPool,
        *,
        record_states: bool,
        env_threads: int = 0,
    ) -> None:
        self.policy = policy
        self._pool = pool
        self._record_states = record_states
        self._env_threads = env_threads

    def play(self, leases: Sequence[Lease], capacity: int, on_end: OnEnd, stop: threading.Event) -> None:
        """Play each lease once.

        Args:
            leases: What to play.
            capacity: Most episodes under way at one time.
            on_end: Told of each episode as it ends.
            stop: Where it is set, the playing is broken off before the next token.

        Raises:
            PlayStopped: Where it was.
            torch.OutOfMemoryError: The next call may have more luck with a smaller ``capacity``.
            MemoryError: Likewise.
        """
        groups: dict[str, int] = {}
        starts = [
            Start(
                lease.seed, lease.options, groups.setdefault(lease.group, len(groups)), tuple(lease.rng_seed)
            )
            for lease in leases
        ]
        timings = Timings()

        def tell(place: int, episode: Episode) -> None:
            if stop.is_set():
                raise PlayStopped
            on_end(leases[place], episode, timings.of([Group((episode,))])[0])

        try:
            with self._watched(stop):
                rollout(
                    self.policy,
                    self._pool,
                    starts,
                    max_concurrent=capacity,
                    on_end=tell,
                    record_states=self._record_states,
                    env_threads=self._env_threads,
                    timings=timings,
                )
        except BaseException as fault:
            self._clean_up()
            if stop.is_set():
                raise PlayStopped from fault
            raise

    def _watched(self, stop: threading.Event) -> AbstractContextManager[None]:
        if isinstance(self.policy, EnginePolicy):
            return nullcontext()
        return _stopping(self.policy.model, stop)

    def _clean_up(self) -> None:
        """After a fault the cache may hold anything: begin with a new one."""
        self.policy.sampling = self.policy.sampling
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@contextmanager
def _stopping(model: nn.Module, stop: threading.Event) -> Iterator[None]:
    """Within, a forward pass of the model raises where it is not wanted any more."""

    def check(*_: object) -> None:
        if stop.is_set():
            raise PlayStopped

    hugging_face: Any = model
    # Every pass begins here, whichever part of the model is called.
    handle = hugging_face.get_input_embeddings().register_forward_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()
