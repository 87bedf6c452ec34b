"""What a trainer tells of its run, passed on to all sinks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from art_trainer.episodes import Episode, Group
from art_trainer.monitoring.delivery import Delivery, DeliveryLimits, Say, SinkStatus
from art_trainer.monitoring.events import (
    CheckpointSaved,
    EpisodesPlayed,
    Event,
    Outcome,
    RunInfo,
    Sink,
    StepDone,
)
from art_trainer.monitoring.sink_file import write_run_info
from art_trainer.timings import EpisodeTiming


class Monitor:
    """Tells sinks how a run goes; no call waits for one of them, but the last, and that not for long.

    The trainer calls it after what it tells of has been written to the run's folder. Ctrl-C may break any of
    its calls off, or come between writing and telling: what the sinks were not told of they then read from
    the folder, before anything that follows it.

    Args:
        run: The run; how far it is, :meth:`on_begin` is told.
        sinks: The sinks.
        say: Where words about sinks in trouble go.
        limits: Of each sink's queue and patience.
        close_seconds: How long all sinks together may take to end.
    """

    def __init__(
        self,
        run: RunInfo,
        sinks: Sequence[Sink],
        *,
        say: Say,
        limits: DeliveryLimits | None = None,
        close_seconds: float = 5.0,
    ) -> None:
        self._run = run
        self._sinks = tuple(sinks)
        self._say = say
        self._limits = limits
        self._close_seconds = close_seconds
        self._deliveries: tuple[Delivery, ...] = ()
        self._told = -1
        """The last step that sinks were told of."""
        self._telling = False

    @property
    def statuses(self) -> tuple[SinkStatus, ...]:
        """How each sink stands."""
        return tuple(delivery.status() for delivery in self._deliveries)

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Not every step is logged, and of one that is :meth:`on_logged` tells more."""

    def on_episode(self, episode: Episode) -> None:
        """Episodes come with their step."""

    def on_begin(self, step: int) -> None:
        """The run begins, or goes on after ``step`` steps."""
        run = replace(self._run, resumed_from_step=step)
        try:
            write_run_info(run)
        except OSError as fault:
            self._say(f"sinks/run.json could not be written: {fault}")
        self._deliveries = tuple(
            Delivery(sink, run, say=self._say, limits=self._limits) for sink in self._sinks
        )
        self._told = step
        for delivery in self._deliveries:
            delivery.start(resume=step > 0)

    def on_logged(
        self,
        metrics: Mapping[str, float],
        groups: Sequence[Group] = (),
        timings: Sequence[EpisodeTiming | None] | None = None,
    ) -> None:
        """A step's line, and its episodes, are in the run's folder.

        Args:
            metrics: The line.
            groups: The groups that the step learned from.
            timings: When their episodes were played, where that was measured.
        """
        step = int(metrics["step"])
        episodes = tuple(episode for group in groups for episode in group.episodes)
        events: list[Event] = [StepDone(step, metrics)]
        if episodes:
            events.append(EpisodesPlayed(step, episodes, None if timings is None else tuple(timings)))
        self._tell(events)
        self._told = step

    def on_checkpoint(self, step: int, folder: Path, aliases: tuple[str, ...] = ("latest",)) -> None:
        """A checkpoint is in the run's folder."""
        if step > self._told:  # that step has no line, or Ctrl-C came before it was told
            self._catch_up()
        self._tell([CheckpointSaved(step, folder, aliases)])
        self._told = step

    def on_end(self, outcome: Outcome) -> None:
        """The run is over; wait for the sinks, but not longer than agreed, and say what they miss."""
        if outcome != "finished" or self._telling:
            self._catch_up()
        for delivery in self._deliveries:
            delivery.end(outcome)
        deadline = time.monotonic() + self._close_seconds
        for delivery in self._deliveries:
            status = delivery.join(max(0.0, deadline - time.monotonic()))
            if not status.complete:
                self._say(
                    f"{status.name} has not taken everything ({status.problem}). "
                    f"Send the rest with: art-trainer sync {self._run.folder} --to {status.name}"
                )

    def _tell(self, events: Sequence[Event]) -> None:
        if self._telling:  # an earlier call was broken off
            self._catch_up()
        self._telling = True
        for event in events:
            for delivery in self._deliveries:
                delivery.offer(event)
        self._telling = False

    def _catch_up(self) -> None:
        for delivery in self._deliveries:
            delivery.catch_up()
