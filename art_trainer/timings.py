"""How long episodes took: kept beside them, since an episode itself is the same each time it is played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from art_trainer.episodes import Episode, Group, TokenHistory


@dataclass(frozen=True, slots=True)
class TurnTiming:
    """How long one turn took; what was not measured is ``None``."""

    reply_seconds: float | None = None
    """From the request to the whole reply, waiting for a place in a batch included."""
    action_seconds: float | None = None
    """The environment's step; of an agent's own code what it did until it asked again."""


@dataclass(frozen=True, slots=True)
class EpisodeTiming:
    """When an episode was played."""

    started: float
    """Unix time in seconds of the environment's reset."""
    turns: tuple[TurnTiming, ...]
    """One for each of the episode's turns."""


class Timings:
    """Timings of the episodes of a step, found again after a judge has rewritten their rewards.

    An episode is known by its token histories, which nobody rewrites; without any it has no timing.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[tuple[TokenHistory, ...], EpisodeTiming]] = {}

    def clear(self) -> None:
        """Forget all."""
        self._found = {}

    def add(self, episode: Episode, timing: EpisodeTiming) -> None:
        """Keep an episode's timing."""
        if episode.histories:
            # The histories are kept too: their identity must not go to another object.
            self._found[id(episode.histories)] = (episode.histories, timing)

    def of(self, groups: Sequence[Group]) -> tuple[EpisodeTiming | None, ...]:
        """Return the timing of every episode of some groups; ``None`` where it was played elsewhere."""
        found = (self._found.get(id(e.histories)) for group in groups for e in group.episodes)
        return tuple(None if entry is None else entry[1] for entry in found)
