"""Where episodes and groups of them start, as plain data that can be played here or sent elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Start:
    """Where an episode starts; equal seeds and options start from the same state."""

    seed: int
    """For the environment's ``reset``."""
    options: Mapping[str, Any] | None = None
    """For the environment's ``reset``."""
    group: int = 0
    """Starts of one group share seed and options, so that a policy may compute their prompt once."""
    rng_seed: int | Sequence[int] = 0
    """Seeds the policy's randomness in this episode."""


@dataclass(frozen=True, slots=True)
class GroupTask:
    """A group that wants to be played: attempts at one task, from one state.

    Attributes:
        seed: For the environment's ``reset``.
        size: How many attempts.
        rng_seed: Seeds the policy's randomness in the group; no other group of a run has the same.
        options: For the environment's ``reset``.
        batch: Which batch of the run needs it, from 0.
    """

    seed: int
    size: int
    rng_seed: tuple[int, ...]
    options: Mapping[str, Any] | None = None
    batch: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a group has at least 1 attempt, got size={self.size}")

    @property
    def id(self) -> str:
        """Names it in its run."""
        return ".".join(map(str, self.rng_seed))

    def start(self, member: int, group: int = 0) -> Start:
        """Where an attempt starts.

        Args:
            member: Which attempt, from 0.
            group: What the attempts of this group, and no others that are played with them, have in common.
        """
        return Start(self.seed, self.options, group, (*self.rng_seed, member))
