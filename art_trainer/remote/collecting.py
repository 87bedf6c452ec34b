"""A trainer's side of a ledger: groups are asked for, waited for, and looked at before they are used."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from art_trainer.episodes import Episode, Group
from art_trainer.remote.journal import JournalError
from art_trainer.remote.ledger import Ledger, PlayedGroup
from art_trainer.starts import GroupTask
from art_trainer.timings import Timings

_LOOK_SECONDS = 0.5


class LedgerGroups:
    """Takes finished groups out of a ledger.

    Args:
        ledger: Leases them to whoever plays.
        max_staleness: How many updates the weights that sampled may be behind at use.
        check: Called again and again while nothing comes; raises where nothing will.

    Attributes:
        stale: How many episodes were played again, since their weights were too old when they were wanted.
    """

    def __init__(self, ledger: Ledger, max_staleness: int, check: Callable[[], None]) -> None:
        self._ledger = ledger
        self._max_staleness = max_staleness
        self._check = check
        self._version = 0
        self.stale = 0

    def publish(self, version: int) -> None:
        """What begins from now on is played with weights of this version."""
        self._version = version
        self._ledger.publish(version)

    def collect(
        self,
        tasks: Sequence[GroupTask],
        *,
        on_episode: Callable[[Episode], None],
        on_group: Callable[[int, Group], None] | None = None,
        timings: Timings | None = None,
    ) -> list[Group]:
        """Wait for groups, see :meth:`~art_trainer.backends.backend.RolloutBackend.collect`."""
        for task in tasks:
            # A step that was broken off may have got it already: it is there again at once.
            with contextlib.suppress(ValueError):
                self._ledger.requeue(task.id, (), "asked for again")
        self._ledger.submit(tasks)
        places = {task.id: place for place, task in enumerate(tasks)}
        groups: dict[int, Group] = {}
        while len(groups) < len(tasks):
            waiting = [task.id for place, task in enumerate(tasks) if place not in groups]
            for played in self._finished(waiting):
                if self._sent_back(played):
                    continue
                place = places[played.task.id]
                groups[place] = Group(played.episodes)
                for episode, timing in zip(played.episodes, played.timings, strict=True):
                    if timings is not None and timing is not None:
                        timings.add(episode, timing)
                    on_episode(episode)
                if on_group is not None:
                    on_group(place, groups[place])
            self._check()
        return [groups[place] for place in range(len(tasks))]

    def _finished(self, waiting: Sequence[str]) -> list[PlayedGroup]:
        """The groups that are finished; none after a while."""
        try:
            return self._ledger.wait(waiting, timeout=_LOOK_SECONDS)
        except JournalError:  # the disk is full, say: the ledger has the groups until there is room
            time.sleep(_LOOK_SECONDS)
            return []

    def _sent_back(self, played: PlayedGroup) -> bool:
        """Whether some of a group's members are too old by now, and are played again."""
        oldest = self._version - self._max_staleness
        stale = [member for member, episode in enumerate(played.episodes) if sampled_before(episode, oldest)]
        if stale:
            self.stale += len(stale)
            reason = f"sampled by weights older than version {oldest}"
            self._ledger.requeue(played.task.id, stale, reason)
        return bool(stale)


def sampled_before(episode: Episode, version: int) -> bool:
    """Whether any of an episode's tokens was sampled by weights of an earlier version."""
    return any(
        span.policy_version < version
        for history in episode.histories
        for span in history.spans
        if span.turn is not None
    )
