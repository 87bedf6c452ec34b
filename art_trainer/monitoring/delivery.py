"""Hands a run's events to a sink without ever holding up, or failing, the thread that trains.

That thread only puts events into a bounded queue. A thread of the sink's own takes them out. Where the queue
is full, or the sink raised, the sink is *behind*: it goes on from the run's folder, in which every event is
before it is offered, so nothing is lost and nothing comes out of order. How far the sink is, its cursor, is
kept in the folder each time the sink has flushed; what is left when the run ends can be sent later.

A resumed run does again the steps that followed its checkpoint. It comes to the same numbers, so what was
delivered of them is not delivered again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_trainer.monitoring.events import (
    CheckpointSaved,
    Event,
    Outcome,
    RunInfo,
    Sink,
    SinkUnavailableError,
)
from art_trainer.monitoring.inbox import Inbox
from art_trainer.monitoring.redaction import redact
from art_trainer.monitoring.refusals import Refusals, is_refusal
from art_trainer.monitoring.sink_file import SinkFile
from art_trainer.monitoring.source import START, Cursor, cursor_of, events_after

Say = Callable[[str], None]
"""Where words about a sink go; called from the sink's thread."""

_LAST_ATTEMPTS = 3
"""How often an event is tried when the run has ended; :meth:`Delivery.join` bounds the time."""


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """How much a sink's queue may hold, and how patient its delivery is; seconds."""

    events: int = 256
    """Most events in the queue."""
    episodes: int = 2048
    """Most episodes in the queue, unless a single event has more."""
    first_pause: float = 0.5
    """The pause after a failure; it doubles with each that follows."""
    longest_pause: float = 60.0
    flush_every: float = 2.0
    """How often the sink is flushed, and its cursor kept, while events come."""


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """How a sink stands."""

    name: str
    delivered: int
    """Events it took in this process."""
    failures: int
    """How often it raised."""
    postponed: int
    """Events that did not fit into the queue and were left to be read from the folder."""
    complete: bool
    """Whether it took every event and ended."""
    problem: str | None
    """The words of its last failure, or about what it refused; ``None`` where there was nothing."""
    set_aside: int = 0
    """Events that it refused for what they are; ``art-trainer sync`` tries them again."""


class Delivery:
    """One sink, its queue and its thread.

    Args:
        sink: The sink; from :meth:`start` on only the thread calls it.
        run: The run.
        say: Is told of trouble once, and when it is over.
        limits: Of queue and patience.
        read: Reads those of a run's events that follow a cursor.
    """

    def __init__(
        self,
        sink: Sink,
        run: RunInfo,
        *,
        say: Say,
        limits: DeliveryLimits | None = None,
        read: Callable[[Path, Cursor], Iterable[Event]] = events_after,
    ) -> None:
        self.name = sink.name
        self._sink = sink
        self._run = run
        self._say = say
        self._limits = limits or DeliveryLimits()
        self._read = read
        self._file = SinkFile.of(run.folder, sink.name)
        self._inbox = Inbox(self._limits.events, self._limits.episodes)
        self._refusals = Refusals()
        self._resume = self._resend = False
        self._abandoned = False
        self._cursor = self._kept = START
        self._unkept = 0
        self._kept_at = 0.0
        self._delivered = 0
        self._failures = 0
        self._complete = False
        self._problem: str | None = None
        self._in_trouble = False
        self._thread = threading.Thread(target=self._work, name=f"sink-{self.name}", daemon=True)

    def start(self, *, resume: bool = False, resend: bool = False) -> None:
        """Begin.

        Args:
            resume: Go on after what the sink took in earlier processes, first with what the folder has of
                that; otherwise what was kept about the sink is of another run and is forgotten.
            resend: Try those events once more, too, that the sink refused then.
        """
        self._resume, self._resend = resume, resend
        if resume:
            self._inbox.catch_up()
        self._thread.start()

    def offer(self, event: Event) -> None:
        """Leave an event for the sink; it is in the run's folder already. Never waits, never raises."""
        self._inbox.put(event)

    def catch_up(self) -> None:
        """Have the folder read: an event may be there that was not offered."""
        self._inbox.catch_up()

    def end(self, outcome: Outcome) -> None:
        """Tell the sink that no more events come; :meth:`join` waits for it."""
        self._inbox.end(outcome)

    def join(self, timeout: float) -> SinkStatus:
        """Wait at most so many seconds for the sink to end; one that did not is left alone for good."""
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._abandoned = self._thread.is_alive()
        if self._abandoned:
            self._problem = self._problem or f"it did not end within {timeout:.0f} s"
        return self.status()

    def status(self) -> SinkStatus:
        """How the sink stands now."""
        aside = len(self._refusals)
        complete = self._complete and not self._abandoned and not aside
        problem = self._refusals.words() if aside and self._complete else self._problem
        return SinkStatus(
            self.name, self._delivered, self._failures, self._inbox.postponed, complete, problem, aside
        )

    def _work(self) -> None:
        opened = False
        try:
            opened = self._open()
            if opened and self._serve():
                outcome = self._inbox.outcome
                assert outcome is not None
                opened = False
                self._sink.close(outcome)
                self._keep(flush=False)
                self._complete = True
        except SinkUnavailableError as fault:
            self._failures += 1
            self._problem = redact(fault)
            self._say(f"{self.name}: {self._problem}. The run goes on without it.")
        except Exception as fault:  # a sink is others' code; what its end raises must not look like a crash
            self._note(fault)
        if opened:
            self._drop()

    def _drop(self) -> None:
        """Close a sink that is given up: its sockets and files are no longer wanted."""
        try:
            self._sink.close("failed")
        except Exception as fault:  # a sink is others' code, and its server may be down
            self._note(fault)

    def _open(self) -> bool:
        """Open the sink, trying again until the run ends; return whether it is open."""
        pause = self._limits.first_pause
        while True:
            try:
                if not self._resume:
                    self._file.forget()
                cursor, state, refusals = self._file.read()
                self._sink.open(self._run, resume=state)
                break
            except SinkUnavailableError:
                raise
            except Exception as fault:  # a sink is others' code, and its server may be down
                self._note(fault)
            if self._inbox.wait_for_end(pause):
                return False
            pause = min(2 * pause, self._limits.longest_pause)
        if state is not None and _destination(state) != _destination(self._sink.state()):
            self._inbox.catch_up()
        else:
            self._cursor = self._kept = cursor
            self._refusals = refusals
        self._unkept = 1  # its state
        try:
            # A run that is killed early still knows what it is called there.
            self._file.write(self._cursor, self._sink.state(), self._refusals)
        except OSError as fault:
            self._note(fault)
        return True

    def _serve(self) -> bool:
        """Deliver until the run has ended and nothing is left; return ``False`` where something is."""
        pause, in_vain = self._limits.first_pause, 0
        while True:
            ending = self._inbox.outcome is not None
            before = self._cursor
            try:
                self._deliver_aside()
                self._deliver_waiting()
                if self._unkept and (ending or self._flush_is_due()):
                    self._keep()
            except SinkUnavailableError:
                raise
            except Exception as fault:  # a sink is others' code, and its server may be down
                self._note(fault)
                self._inbox.catch_up()
                in_vain = in_vain + 1 if self._cursor == before else 1
                if ending and in_vain >= _LAST_ATTEMPTS:
                    self._keep_what_was_taken()
                    return False
                if not ending:
                    self._inbox.wait_for_end(pause)
                    pause = min(2 * pause, self._limits.longest_pause)
                continue
            pause, in_vain = self._limits.first_pause, 0
            self._recovered()
            if ending:
                return True
            self._inbox.wait(self._limits.flush_every if self._unkept else None)

    def _keep_what_was_taken(self) -> None:
        """Keep the cursor of a sink that is given up, unless it does not even flush."""
        try:
            self._keep()
        except Exception as fault:  # a sink is others' code, and its server may be down
            self._note(fault)

    def _deliver_aside(self) -> None:
        """Try events again that were refused in earlier processes; those that still are stay aside."""
        places = self._refusals.places
        if not self._resend or not places:
            return
        found = set()
        for event in self._read(self._run.folder, Cursor(places[0].step, places[0].rank - 1)):
            if self._abandoned:
                return
            place = cursor_of(event)
            if place in self._refusals:
                self._give(event)
                found.add(place)
            if place >= places[-1]:
                break
        for place in places:
            if place not in found:  # the folder has it no more, such as a pruned checkpoint
                self._refusals.forget(place)
        self._resend = False

    def _deliver_waiting(self) -> None:
        """Hand over what the folder has, where the sink is behind, and what the inbox has."""
        while not self._abandoned:
            event = self._inbox.take()
            if self._inbox.take_behind():
                for recorded in self._read(self._run.folder, self._cursor):
                    self._hand_over(recorded)
            if event is None:
                return
            self._hand_over(event)

    def _hand_over(self, event: Event) -> None:
        if cursor_of(event) <= self._cursor or self._abandoned:
            return
        self._give(event)
        self._cursor = cursor_of(event)
        if self._flush_is_due():
            self._keep()

    def _give(self, event: Event) -> None:
        """Give the sink an event; return when it has it, or when it must do without."""
        self._unkept += 1
        try:
            self._sink.deliver(event)
        except Exception as fault:
            # A checkpoint that was pruned before its turn came, or meanwhile, can no longer be sent.
            if isinstance(event, CheckpointSaved) and not event.folder.exists():
                return
            if not (is_refusal(fault) and self._refusals.sets_aside(event, redact(fault))):
                raise
            self._note(fault)
        else:
            self._delivered += 1
            self._refusals.taken(event)

    def _flush_is_due(self) -> bool:
        return time.monotonic() - self._kept_at >= self._limits.flush_every

    def _keep(self, *, flush: bool = True) -> None:
        """Keep the cursor, once what was delivered up to it is where it belongs."""
        if flush:
            self._flush()
        if not self._abandoned:
            self._file.write(self._cursor, self._sink.state(), self._refusals)
            self._kept, self._unkept, self._kept_at = self._cursor, 0, time.monotonic()

    def _flush(self) -> None:
        try:
            self._sink.flush()
        except Exception:
            # Nobody knows what has arrived of what was taken since: it is delivered again.
            self._cursor = self._kept
            self._inbox.catch_up()
            raise

    def _note(self, fault: Exception) -> None:
        self._failures += 1
        self._problem = redact(fault) or type(fault).__name__
        if not self._in_trouble and not self._abandoned:
            self._in_trouble = True
            kept = "Training goes on; what it misses is kept."
            if self._inbox.outcome is not None:
                kept = "What it misses is kept."
            self._say(f"{self.name}: {self._problem}. {kept}")

    def _recovered(self) -> None:
        if self._in_trouble:
            self._in_trouble = False
            missing = f"but it {self._refusals.words()}" if len(self._refusals) else "nothing is missing"
            self._say(f"{self.name}: it works again, {missing}.")


def _destination(state: dict[str, Any]) -> Any:
    return state.get("destination")
