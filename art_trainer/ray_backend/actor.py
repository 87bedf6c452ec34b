"""The worker inside a Ray actor: a thread that plays, and one method that the driver calls again and again.

The method never waits for the thread, so its answer says that the process is alive even while it computes;
it brings work in and takes results out, so that at most one call of an actor is ever under way.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from art_trainer.episodes import Episode
from art_trainer.ray_backend.work import Played, Report, Work
from art_trainer.remote.messages import Lease
from art_trainer.rollout import last_line
from art_trainer.timings import EpisodeTiming

OnPlayed = Callable[[Lease, Episode, EpisodeTiming | None], None]


class Player(Protocol):
    """Plays in an actor, called from one thread."""

    def update(self, weights: Any) -> None:
        """Play with other weights from now on; where it raises, the old ones stay."""

    def play(self, leases: tuple[Lease, ...], on_played: OnPlayed, stop: threading.Event) -> None:
        """Play each lease once, telling of each episode as it ends.

        Raises:
            MemoryError: Where fewer at a time may do.
            Exception: Where it broke off, also because ``stop`` is set.
        """

    def close(self) -> None:
        """Release environments."""


class RolloutActor:
    """A worker of the Ray backend; the driver makes a Ray actor of it.

    Args:
        make_player: Makes who plays, in the thread that plays: it may take as long as it needs.
    """

    def __init__(self, make_player: Callable[[], Player]) -> None:
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._report = Report()
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(make_player,), name="player", daemon=True)
        self._thread.start()

    def exchange(self, work: Work | None, wait: float) -> Report:
        """Take work, and tell what happened since the last call.

        Args:
            work: Episodes to play, after those it has.
            wait: Most seconds to wait for something to tell.
        """
        if work is not None:
            self._work.put(work)
        with self._news:
            self._news.wait_for(lambda: not self._report.empty, wait)
            report, self._report = self._report, Report()
        return report

    def stop(self, seconds: float) -> None:
        """Break off what is being played and close the environments; wait at most so long for it."""
        self._stop.set()
        self._work.put(None)
        self._thread.join(seconds)

    def _run(self, make_player: Callable[[], Player]) -> None:
        try:
            player = make_player()
        except Exception:  # the driver is told, and decides
            with self._told() as report:
                report.broken = last_line()
            return
        with self._told() as report:
            report.ready = True
        while (work := self._work.get()) is not None and not self._stop.is_set():
            self._play(player, work)
        player.close()

    def _play(self, player: Player, work: Work) -> None:
        left = {lease.lease for lease in work.leases}

        def tell(lease: Lease, episode: Episode, timing: EpisodeTiming | None) -> None:
            left.discard(lease.lease)
            with self._told() as report:
                report.played.append(Played(lease, episode, timing))

        try:
            if work.weights is not None:
                player.update(work.weights)
            player.play(work.leases, tell, self._stop)
        except Exception as fault:  # the driver is told, and decides
            with self._told() as report:
                report.failed += sorted(left)
                report.error = last_line()
                report.out_of_memory = isinstance(fault, MemoryError)

    @contextmanager
    def _told(self) -> Iterator[Report]:
        """The next report, to be added to."""
        with self._news:
            yield self._report
            self._news.notify()
