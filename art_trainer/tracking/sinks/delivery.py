"""Delivery of a run's events to sinks, by threads that never delay the thread that trains.

Each sink has a thread and a bounded queue of the newest events. Each event comes with the position of the one
before it: a sink that lacks that one, because its queue was full or Ctrl-C came in between, reads the run
folder instead, in which every event is before it is queued. So nothing is lost and nothing comes out of
order. What a sink raises is tried again after a pause. How far it is, its cursor, is saved in the folder;
what is left when the run ends can be sent later.

A resumed run repeats the steps after its checkpoint, with the same results: what was delivered of them is not
delivered again.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_trainer.tracking.callbacks import Outcome
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.tracking.sinks.backfill import SinkProgress, events_after, read_run_info, write_run_info
from art_trainer.tracking.sinks.base import (
    START,
    CheckpointSaved,
    Cursor,
    EpisodesPlayed,
    Event,
    EventRefusedError,
    RunInfo,
    Sink,
    SinkUnavailableError,
    StepDone,
)
from art_trainer.tracking.sinks.redaction import redact
from art_trainer.types import Episode, EpisodeTiming, Group

_logger = logging.getLogger(__name__)

_LAST_ATTEMPTS = 3
"""How often an event is tried after the run has ended; :meth:`Delivery.wait` bounds the time."""
_LONGEST_PAUSE = 60.0
_SAVE_SECONDS = 2.0
"""How often the cursor is saved while a sink reads the run folder."""
_ABOUT_VALUES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_ABOUT_THE_WORLD = (OSError, json.JSONDecodeError)
"""Subclasses of the former that come from networks and disks."""


@dataclass(slots=True)
class SinkStatus:
    """How a sink stands.

    Attributes:
        name: The sink.
        delivered: Events it took in this process.
        backfills: How often it read the run folder for events that it was not handed.
        failures: How often it raised.
        dead_letters: Events that it refused; ``art-trainer sync`` tries them again.
        complete: Whether it took every event and ended.
        problem: Its last failure; ``None`` if there was none.
    """

    name: str
    delivered: int = 0
    backfills: int = 0
    failures: int = 0
    dead_letters: int = 0
    complete: bool = False
    problem: str | None = None


class Delivery(threading.Thread):
    """Delivers a run's events to one sink, in a thread.

    Args:
        sink: The sink; from :meth:`start` on only the thread calls it.
        run: The run.
        resume: Continue after what the sink took in earlier processes; otherwise that belongs to another run
            and is discarded.
        resend: Try its dead letters again.
        capacity: Most events in the queue.
        first_pause: Seconds after a failure; they double with each that follows, up to a minute.
    """

    def __init__(
        self,
        sink: Sink,
        run: RunInfo,
        *,
        resume: bool = False,
        resend: bool = False,
        capacity: int = 32,
        first_pause: float = 0.5,
    ) -> None:
        super().__init__(name=f"sink-{sink.name}", daemon=True)
        self.status = SinkStatus(sink.name)
        self._sink, self._run = sink, run
        self._resume, self._resend = resume, resend
        self._capacity, self._first_pause = capacity, first_pause
        # Ctrl-C may hit the training thread between any two instructions, and there leave a lock taken for
        # ever; the `put` of a SimpleQueue is one instruction.
        self._events: queue.SimpleQueue[tuple[Cursor, Event] | None] = queue.SimpleQueue()
        self._ending: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._outcome: Outcome | None = None
        self._progress = SinkProgress()
        self._saved_at = 0.0
        self._logged = ""
        self._abandoned = False

    def put(self, previous: Cursor, event: Event) -> None:
        """Hand over the event that follows ``previous``, or leave it to the folder; never waits or raises."""
        if self._events.qsize() < self._capacity:
            self._events.put((previous, event))

    def end(self, outcome: Outcome) -> None:
        """No more events come; :meth:`wait` waits for the sink."""
        self._outcome = outcome
        self._ending.put(None)
        self._events.put(None)

    def wait(self, timeout: float) -> SinkStatus:
        """Wait at most ``timeout`` seconds for the sink to end; then it is abandoned."""
        self.join(timeout)
        self._abandoned = self.is_alive()
        if self._abandoned:
            self.status.complete = False
            self.status.problem = self.status.problem or f"it did not end within {timeout:.0f} s"
        return self.status

    def run(self) -> None:
        """Open the sink, deliver until the run has ended, close it."""
        is_open = ended = False
        try:
            is_open = self._retry(self._open)
            ended = is_open and self._deliver_until_end()
        except SinkUnavailableError as fault:
            self._report(fault)
        if is_open:
            try:
                self._sink.close(self._outcome if ended and self._outcome else "failed")
                self._save()
                self.status.complete = ended and not (self._abandoned or self.status.dead_letters)
            except Exception as fault:  # a sink is foreign code: what it raises must not look like a crash
                self._report(fault)

    def _open(self) -> None:
        if not self._resume:
            SinkProgress().save(self._run.folder, self.status.name)
        known = SinkProgress.load(self._run.folder, self.status.name)
        self._sink.open(self._run, resume=known.state)
        destination = self._sink.state().get("destination")
        if known.state is None or known.state.get("destination") == destination:
            self._progress = known
        self._save()  # a run that is killed early still knows its id in the service

    def _deliver_until_end(self) -> bool:
        """Deliver until the run has ended and nothing is left; return ``False`` if something is."""
        while self._retry(self._take, item := self._events.get()):
            if item is None:
                return True
        return False

    def _retry(self, action: Callable[..., None], *arguments: Any) -> bool:
        """Do something until it succeeds; return ``False`` if it still fails when the run has ended."""
        failures = 0
        while True:
            before, ended = self._progress.cursor, self._outcome is not None
            try:
                action(*arguments)
                return True
            except SinkUnavailableError:
                raise
            except Exception as fault:
                self._report(fault)
            failures = failures + 1 if self._progress.cursor == before else 1
            if ended and failures >= _LAST_ATTEMPTS:
                return False
            self._pause(min(self._first_pause * 2 ** min(failures - 1, 10), _LONGEST_PAUSE))

    def _pause(self, seconds: float) -> None:
        """Wait so many seconds, or until the run has ended."""
        with suppress(queue.Empty):
            self._ending.get(timeout=seconds)
            self._ending.put(None)

    def _take(self, item: tuple[Cursor, Event] | None) -> None:
        """Deliver an event, and before it what only the folder has; for ``None`` all that is left there."""
        if item is None:
            self._backfill(None)
        else:
            previous, event = item
            if previous > self._progress.cursor:
                self.status.backfills += 1
                self._backfill(Cursor.of(event))
            self._deliver(event)
        self._save()

    def _backfill(self, end: Cursor | None) -> None:
        """Deliver what the folder has before ``end``, dead letters too if they are to be sent again."""
        progress = self._progress
        again = set(progress.dead_letters) if self._resend else set()
        first = min([progress.cursor, *(Cursor(letter.step, letter.kind - 1) for letter in again)])
        for event in events_after(self._run.folder, first):
            if end is not None and Cursor.of(event) >= end:
                return
            self._deliver(event, even_if_before=Cursor.of(event) in again)
            again.discard(Cursor.of(event))
            if time.monotonic() - self._saved_at >= _SAVE_SECONDS:
                self._save()
        for gone in again:  # such as a pruned checkpoint
            del progress.dead_letters[gone]
        self._resend = False

    def _deliver(self, event: Event, even_if_before: bool = False) -> None:
        """Hand over an event after the cursor; return when it is delivered, pruned or a dead letter."""
        progress, cursor = self._progress, Cursor.of(event)
        if self._abandoned or not (cursor > progress.cursor or even_if_before):
            return
        try:
            self._sink.deliver(event)
            self.status.delivered += 1
            progress.dead_letters.pop(cursor, None)
        except Exception as fault:
            pruned = isinstance(event, CheckpointSaved) and not event.folder.exists()
            if not (pruned or is_refusal(fault)):
                raise
            if not pruned:
                self._report(fault, f"refused the {cursor}: ")
                progress.dead_letters[cursor] = redact(fault)
        progress.cursor = max(progress.cursor, cursor)

    def _save(self) -> None:
        if not self._abandoned:
            self._progress.state = self._sink.state()
            self._progress.save(self._run.folder, self.status.name)
            self._saved_at = time.monotonic()
            self.status.dead_letters = len(self._progress.dead_letters)

    def _report(self, fault: Exception, what: str = "") -> None:
        """Count a failure; log the first of several with the same message."""
        status, problem = self.status, redact(fault) or type(fault).__name__
        if problem != self._logged and not self._abandoned:
            _logger.warning("%s: %s%s. What it misses is kept.", status.name, what, problem)
        status.failures += 1
        status.problem, self._logged = what + problem, problem


def is_refusal(fault: Exception) -> bool:
    """Whether an exception is about the event that was delivered, and not about the state of the service."""
    if isinstance(fault, EventRefusedError):
        return True
    return isinstance(fault, _ABOUT_VALUES) and not isinstance(fault, _ABOUT_THE_WORLD)


class SinkDispatcher:
    """Trainer callback that hands a run's events to sinks; only :meth:`on_end` waits for them.

    The trainer calls it after it has written to the run folder. Ctrl-C may break off any call, or come
    between writing and calling: the sinks then read from the folder what they were not handed.

    Args:
        run: The run.
        sinks: The sinks.
        close_seconds: How long all sinks together may take to end.
        delivery: Options of :class:`Delivery`: ``capacity`` and ``first_pause``.
    """

    def __init__(
        self, run: RunInfo, sinks: Sequence[Sink], *, close_seconds: float = 5.0, **delivery: Any
    ) -> None:
        self._run, self._sinks = run, tuple(sinks)
        self._close_seconds, self._options = close_seconds, delivery
        self._deliveries: tuple[Delivery, ...] = ()
        self._last = START

    @property
    def statuses(self) -> tuple[SinkStatus, ...]:
        """How each sink stands."""
        return tuple(delivery.status for delivery in self._deliveries)

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Not every step is logged: see :meth:`on_logged`."""

    def on_episode(self, episode: Episode) -> None:
        """Episodes come with their step."""

    def on_begin(self, step: int) -> None:
        """The run begins, or resumes after ``step`` steps."""
        try:
            write_run_info(self._run)
        except OSError as fault:
            _logger.warning("sinks/run.json could not be written: %s", fault)
        self._last = Cursor(step, 2) if step else START
        self._deliveries = tuple(
            Delivery(sink, self._run, resume=step > 0, **self._options) for sink in self._sinks
        )
        for delivery in self._deliveries:
            delivery.start()

    def on_logged(
        self,
        metrics: Mapping[str, float],
        groups: Sequence[Group] = (),
        timings: Sequence[EpisodeTiming | None] | None = None,
    ) -> None:
        """A step's metrics and episodes are in the run folder."""
        step = int(metrics["step"])
        episodes = tuple(episode for group in groups for episode in group.episodes)
        self._dispatch(self._last, StepDone(step, metrics))
        if episodes:
            times = None if timings is None else tuple(timings)
            self._dispatch(Cursor(step, 0), EpisodesPlayed(step, episodes, times))

    def on_checkpoint(self, step: int, folder: Path, aliases: tuple[str, ...] = ("latest",)) -> None:
        """A checkpoint is in the run folder, after everything else of its step."""
        self._dispatch(Cursor(step, 1), CheckpointSaved(step, folder, aliases))

    def on_end(self, outcome: Outcome) -> None:
        """The run is over; wait for the sinks, and log what they miss."""
        for delivery in self._deliveries:
            delivery.end(outcome)
        deadline = time.monotonic() + self._close_seconds
        for delivery in self._deliveries:
            status = delivery.wait(max(0.0, deadline - time.monotonic()))
            if not status.complete:
                _logger.warning(
                    "%s has not taken everything (%s). Send the rest with: art-trainer sync %s --to %s",
                    status.name,
                    status.problem,
                    self._run.folder,
                    status.name,
                )

    def _dispatch(self, previous: Cursor, event: Event) -> None:
        for delivery in self._deliveries:
            delivery.put(previous, event)
        self._last = Cursor.of(event)


def sync_run(folder: Path, sink: Sink, *, timeout: float = 600.0) -> tuple[SinkStatus, Outcome]:
    """Deliver every event of a run that a sink has not taken, dead letters included, and end it.

    The run must have ended: its own sinks use the same cursor.

    Args:
        folder: The run folder.
        sink: The sink, not yet open.
        timeout: Seconds after which it is given up.

    Returns:
        How the sink stands, and how the run ended.

    Raises:
        FileNotFoundError: If the folder holds no run.
        ValueError: If a file of the run is damaged.
    """
    run_folder = RunFolder(folder)
    if not run_folder.metrics_file.exists():
        raise FileNotFoundError(f"{folder} holds no run (it has no {run_folder.metrics_file.name})")
    run = read_run_info(folder)
    last = max((line.get("step", 0) for line in run_folder.metrics().records), default=0)
    outcome: Outcome = "finished" if last >= int(run.config.get("max_steps", 0)) else "interrupted"
    delivery = Delivery(sink, run, resume=True, resend=True)
    delivery.end(outcome)
    delivery.start()
    return delivery.wait(timeout), outcome
