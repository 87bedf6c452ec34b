"""Events of a run and the interface of sinks, which show a run in other programs.

The run folder is the source of truth; a sink (Weights & Biases, TensorBoard, …) is a view of it. Every event
can be rebuilt from the folder, so what a sink missed can be sent later. A sink lives in a thread of its own,
where it may block or raise: :mod:`art_trainer.tracking.sinks.delivery` bounds, counts and repeats.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from art_gym.errors import did_you_mean
from art_trainer.errors import ConfigError, TrainerError
from art_trainer.tracking.callbacks import Outcome
from art_trainer.types import Episode, EpisodeTiming


class SinkError(TrainerError, RuntimeError):
    """A sink could not take an event; it is delivered again later. The message holds no secrets."""


class EventRefusedError(SinkError):
    """The service does not accept this event and never will; others may be accepted."""


class SinkUnavailableError(SinkError, ConfigError):
    """The sink cannot be used at all: a package or key is missing, or the key was refused."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run, as known at its start.

    Attributes:
        folder: The run folder.
        config: All settings; JSON-able, without secrets.
        max_turns: Most turns of a training episode, if known.
        project: The project of every run, at services that have projects.
    """

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    max_turns: int | None = None
    project: ClassVar[str] = "art-gym"

    @property
    def name(self) -> str:
        """The run's name, that of its folder."""
        return self.folder.resolve().name

    @property
    def env_id(self) -> str:
        """The environment."""
        return str(self.config.get("env", "unknown"))

    @property
    def model(self) -> str:
        """Name of the model that is trained."""
        return str(self.config.get("model", "unknown"))

    @property
    def tags(self) -> tuple[str, ...]:
        """Such as ``("ART", "GRPO", "art-tiny")``."""
        return ("ART", "GRPO", Path(self.model).name)


@dataclass(frozen=True, slots=True)
class StepDone:
    """The metrics of one step, a line of ``metrics.jsonl``."""

    step: int
    """From 1; 0 for the evaluation before the first update."""
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EpisodesPlayed:
    """The episodes that a step was trained on.

    ``timings`` holds one for each episode, or ``None``. It is ``None`` as a whole if nothing was measured, as
    after a trip through the folder.
    """

    step: int
    episodes: tuple[Episode, ...]
    timings: tuple[EpisodeTiming | None, ...] | None = None

    def episode_id(self, index: int) -> str:
        """The id of ``episodes[index]``, unique in the run and the same at every delivery."""
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
"""In the order of steps, and within a step in this order; a step may lack any of them."""
_EVENTS = (StepDone, EpisodesPlayed, CheckpointSaved)
EVENT_KINDS = ("metrics", "episodes", "checkpoint")


class Cursor(NamedTuple):
    """The position of an event in its run; cursors compare as events follow each other."""

    step: int
    kind: int
    """Index of the event's kind in :data:`EVENT_KINDS`."""

    @classmethod
    def of(cls, event: Event) -> Cursor:
        """The event's position."""
        return cls(event.step, _EVENTS.index(type(event)))

    def __str__(self) -> str:
        """Name the event for messages."""
        return f"{EVENT_KINDS[self.kind]} of step {self.step}"


START = Cursor(-1, 0)
"""Before every event."""


class Sink:
    """Base class of sinks. All calls come from one thread, which is not the one that trains.

    A sink is opened, then handed events in order, then closed. It overrides the methods for the events it
    shows; whatever such a method raises, the same event comes again later. An event may come twice if the
    process was killed after it was delivered.

    Args:
        settings: Environment variables and lines of ``.env``, such as ``LANGFUSE_HOST``.

    Raises:
        SinkUnavailableError: If a required setting is missing.
    """

    name: ClassVar[str]
    """As in ``--log``."""
    run: RunInfo

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Contacts nothing."""

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin or resume a run.

        Args:
            run: The run.
            resume: What :meth:`state` returned in an earlier process of this run; ``None`` in the first one.

        Raises:
            SinkUnavailableError: If trying again would not help.
        """
        self.run = run

    def deliver(self, event: Event) -> None:
        """Take one event; return when it is stored.

        Raises:
            EventRefusedError: If trying again would not help with this event. It becomes a dead letter: the
                next events are delivered, and ``art-trainer sync`` tries it again.
        """
        match event:
            case StepDone():
                self.on_metrics(event)
            case EpisodesPlayed():
                self.on_episodes(event)
            case CheckpointSaved():
                self.on_checkpoint(event)

    def on_metrics(self, event: StepDone) -> None:
        """Take a step's metrics."""

    def on_episodes(self, event: EpisodesPlayed) -> None:
        """Take a step's episodes."""

    def on_checkpoint(self, event: CheckpointSaved) -> None:
        """Take a checkpoint."""

    def state(self) -> dict[str, Any]:
        """Return what :meth:`open` needs to resume this run; JSON-able, no secrets.

        If it has a ``"destination"``, such as a server's address, and a later sink of the run has another
        one, that sink is handed all events from the first on.
        """
        return {}

    def close(self, outcome: Outcome) -> None:
        """End; no other call follows."""


def required(settings: Mapping[str, str], sink: str, *names: str) -> list[str]:
    """Return settings that a sink cannot be without.

    Raises:
        SinkUnavailableError: If some are missing; the message has all of them.
    """
    if missing := [name for name in names if not settings.get(name)]:
        raise SinkUnavailableError(f"{sink} needs {' and '.join(missing)}, in the environment or in .env")
    return [settings[name] for name in names]


_SINKS: Mapping[str, tuple[str, str]] = {
    "wandb": ("WandbSink", "wandb"),
    "langfuse": ("LangfuseSink", "langfuse"),
    "tensorboard": ("TensorBoardSink", "tensorboard"),
    "otel": ("OpenTelemetrySink", "opentelemetry"),
}
"""The registry: class and required package by name, which is that of the module and of the extra."""
SINK_NAMES = tuple(_SINKS)


def sink_names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Parse sinks' names: a list or a comma-separated string; each once, in order.

    Raises:
        ConfigError: For an unknown name.
    """
    parts = given.split(",") if isinstance(given, str) else given
    names = tuple(dict.fromkeys(stripped for part in parts if (stripped := part.strip())))
    for name in names:
        if name not in _SINKS:
            raise ConfigError(f"log: no sink `{name}`{did_you_mean(name, SINK_NAMES)}")
    return names


def make_sink(name: str, settings: Mapping[str, str]) -> Sink:
    """Build a sink without contacting anything.

    Args:
        name: One of :data:`SINK_NAMES`.
        settings: Environment variables and lines of ``.env``.

    Raises:
        ConfigError: If its package or a required setting is missing.
    """
    class_name, package = _SINKS[name]
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f'--log {name} needs {package}: pip install "art-gym[{name}]"')
    module = importlib.import_module(f"art_trainer.tracking.sinks.{name}")
    sink: Sink = getattr(module, class_name)(settings)
    return sink


def make_sinks(names: Iterable[str], settings: Mapping[str, str]) -> list[Sink]:
    """Build several sinks, see :func:`make_sink`.

    Raises:
        ConfigError: If one cannot be built; the message has what is missing for all of them.
    """
    sinks, missing = [], []
    for name in names:
        try:
            sinks.append(make_sink(name, settings))
        except ConfigError as error:
            missing.append(str(error))
    if missing:
        raise ConfigError("; ".join(missing))
    return sinks
