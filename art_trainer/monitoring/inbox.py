"""Events that wait for a sink's thread, put there by the thread that trains.

The thread that trains may be hit by Ctrl-C between any two of its instructions, also within ``with lock:``
after the lock was taken and before anything would give it back; whoever waits for that lock then waits for
ever. So nothing here holds one of Python's own locks: each field has one writer, and what is shared are a
deque and a ``SimpleQueue``, whose ``append`` and ``put`` happen as a whole or not at all.
"""

from __future__ import annotations

import queue
from collections import deque

from art_trainer.monitoring.events import EpisodesPlayed, Event, Outcome


class Inbox:
    """A bounded queue of events. What does not fit is left to be read from the run's folder.

    One thread puts and ends, another one takes and waits; either may ask to catch up.

    Args:
        events: Most events in it.
        episodes: Most episodes in it, unless a single event has more.

    Attributes:
        outcome: How the run ended, once it has.
        postponed: Events that did not fit.
    """

    def __init__(self, events: int, episodes: int) -> None:
        self.outcome: Outcome | None = None
        self.postponed = 0
        self._most_events, self._most_episodes = events, episodes
        self._events: deque[Event] = deque()
        self._episodes_put = self._episodes_taken = 0
        self._behind = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[None] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        """Add an event that is in the run's folder already; never waits."""
        size = _size(event)
        held = self._episodes_put - self._episodes_taken
        if len(self._events) >= self._most_events or (self._events and held + size > self._most_episodes):
            self.postponed += 1
            self._behind = True
        else:
            self._events.append(event)
            self._episodes_put += size
        self._wakes.put(None)

    def catch_up(self) -> None:
        """The folder may have events that were never put: have it read before what is put from now on."""
        self._behind = True
        self._wakes.put(None)

    def end(self, outcome: Outcome) -> None:
        """No more events come."""
        self.outcome = outcome
        self._wakes.put(None)
        self._ends.put(None)

    def take(self) -> Event | None:
        """The next event, ``None`` where none waits; ask :meth:`take_behind` before it is used."""
        if not self._events:
            return None
        event = self._events.popleft()
        self._episodes_taken += _size(event)
        return event

    def take_behind(self) -> bool:
        """Whether the folder must be read now; it is not asked for twice.

        Whatever did not fit before an event that was taken has been noted by the time that event was put.
        """
        behind, self._behind = self._behind, False
        return behind

    def wait(self, seconds: float | None) -> None:
        """Return when there is something to do, at the latest after so many seconds."""
        while not self._wakes.empty():
            self._wakes.get()
        if self._events or self._behind or self.outcome is not None:
            return
        try:
            self._wakes.get(timeout=seconds)
        except queue.Empty:
            return

    def wait_for_end(self, seconds: float) -> bool:
        """Wait so long, or until the run ends; return whether it has."""
        try:
            if self.outcome is None:
                self._ends.get(timeout=seconds)
        except queue.Empty:
            pass
        return self.outcome is not None


def _size(event: Event) -> int:
    return len(event.episodes) if isinstance(event, EpisodesPlayed) else 0
