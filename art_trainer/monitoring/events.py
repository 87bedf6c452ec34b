"""What a run tells its sinks, and what a sink is.

The run's folder is the source of truth; a sink (Weights & Biases, TensorBoard, …) is a view of it. A sink is
opened with a :class:`RunInfo`, is then handed events in order, and is closed with an outcome. Each event can
be rebuilt from the folder, so what a sink missed can be sent later.

A sink is built by its class's ``from_settings``, lives in a thread of its own and may block or raise there:
:mod:`art_trainer.monitoring.delivery` bounds, counts and repeats. It never prints: words about a fault go
into the exception, without secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from art_trainer.episodes import Episode
from art_trainer.errors import ConfigError, TrainerError
from art_trainer.timings import EpisodeTiming

Outcome = Literal["finished", "interrupted", "failed"]
"""How a run ended: by itself, by Ctrl-C, by an error."""


class SinkError(TrainerError, RuntimeError):
    """A sink could not take an event; the event stays to be delivered."""


class EventRefusedError(SinkError):
    """A sink's service does not take this event as it is, and would not take it later either."""


class SinkUnavailableError(SinkError, ConfigError):
    """A sink cannot be used at all as things are: a package or a key is missing, a key was refused."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a run is, as known at its start.

    Attributes:
        name: The run's name, that of its folder.
        project: What the run belongs to.
        folder: Where the run's files lie.
        env_id: The environment.
        model: Name of the model that is trained.
        config: Every setting; JSON-able, without secrets.
        tags: Such as ``("ART", "GRPO", "art-tiny")``.
        resumed_from_step: Steps that were done in earlier processes; 0 for a new run.
        max_turns: Most turns of a training episode, where known.
    """

    name: str
    project: str
    folder: Path
    env_id: str
    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    resumed_from_step: int = 0
    max_turns: int | None = None


@dataclass(frozen=True, slots=True)
class StepDone:
    """The numbers of one step, a line of ``metrics.jsonl``."""

    step: int
    """From 1; 0 for the evaluation before the first update."""
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EpisodesPlayed:
    """The episodes that a step learned from.

    ``timings`` holds one for each episode, ``None`` for one without; it is ``None`` where nothing was
    measured, as after a trip through the folder. Episodes may come without token histories.
    """

    step: int
    episodes: tuple[Episode, ...]
    timings: tuple[EpisodeTiming | None, ...] | None = None

    def episode_id(self, index: int) -> str:
        """The id of ``episodes[index]``: one per run, and the same each time it is delivered."""
        return f"{self.step:06d}-{index:04d}"


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint was written; its folder may be pruned at any later time.

    ``aliases`` are ``("latest",)``, ``("best", "latest")`` or, after the last step, ``("final", "latest")``.
    """

    step: int
    folder: Path
    aliases: tuple[str, ...]


Event = StepDone | EpisodesPlayed | CheckpointSaved
"""In the order of their steps, and in one step in this order; a step may lack any of them."""


class Sink(Protocol):
    """One view of a run. All calls come from one thread, which is not the one that trains."""

    name: str
    """As in ``--log``."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """Build a sink, without contact to anything.

        Args:
            settings: Values that are set, by their environment names such as ``LANGFUSE_HOST``.

        Raises:
            SinkUnavailableError: Where a setting that the sink cannot do without is missing.
        """

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin, or go on with a run.

        Args:
            run: The run.
            resume: What :meth:`state` gave in an earlier process of this run; ``None`` in the first one.

        Raises:
            SinkUnavailableError: Where trying again would not help.
        """

    def deliver(self, event: Event) -> None:
        """Take one event; whatever this raises, the same event comes again later.

        An event may come twice, where the process was killed between delivery and the note of it.

        Raises:
            EventRefusedError: Where trying again would not help with this event, but others may do. After a
                few tries it is set aside, see :mod:`art_trainer.monitoring.refusals`.
        """

    def flush(self) -> None:
        """Return when everything delivered so far is where it belongs; the caller bounds the time."""

    def state(self) -> dict[str, Any]:
        """What :meth:`open` needs to go on with this run later; JSON-able, no secrets.

        It may hold a ``"destination"``, such as a server's address. A later sink of the run with another
        destination is handed all events from the first on.
        """

    def close(self, outcome: Outcome) -> None:
        """End; the sink gets no other call."""
