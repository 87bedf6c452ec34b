"""Groups that a trainer has asked for, and how far each attempt is: data, no clock, no disk."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from art_trainer.episodes import Ending, Episode
from art_trainer.remote.journal_lines import Entry
from art_trainer.starts import GroupTask
from art_trainer.timings import EpisodeTiming


@dataclass(frozen=True, slots=True)
class PlayedGroup:
    """A group of which every attempt has ended."""

    task: GroupTask
    episodes: tuple[Episode, ...]
    """In the order of the attempts. One that nobody could play ends as ``POLICY_ERROR`` and says why."""
    timings: tuple[EpisodeTiming | None, ...]


class LeaseState(enum.Enum):
    """What has become of a lease."""

    HELD = enum.auto()
    """Its client plays."""
    SAVING = enum.auto()
    """Its result is on the way to the disk; nothing else can happen to it meanwhile."""
    EXPIRED = enum.auto()
    """Its time is over. While nobody else has the attempt, its client may still go on with it."""
    ACCEPTED = enum.auto()
    """Its result counts."""
    OVER = enum.auto()
    """It was given back, or its result was refused, or nobody wants one any more."""


LIVE = (LeaseState.HELD, LeaseState.SAVING)


@dataclass(eq=False, slots=True)
class Lease:
    """A client's right to play one attempt."""

    id: str
    token: str
    client: str
    group: str
    """The group's id: a lease outlives its group."""
    member: int
    number: int
    """How often the attempt has been leased, this time included."""
    deadline: float
    """On the ledger's clock."""
    last: float
    """When it is over whatever its client says, on the same clock."""
    state: LeaseState = LeaseState.HELD


@dataclass(eq=False, slots=True)
class Attempt:
    """One member of a group."""

    round: int = 0
    """How often it was asked for again; see :class:`~art_trainer.remote.journal_lines.Entry`."""
    lease: Lease | None = None
    """The last one, where it can still bring a result."""
    leased: int = 0
    failures: int = 0
    failed_by: set[str] = field(default_factory=set)
    """Clients, of which another one should try it next."""
    saving: Episode | None = None
    """A result on the way to the disk."""
    entry: Entry | None = None
    """How it ended."""
    noted: bool = False
    """Whether the entry is in the journal."""

    @property
    def free(self) -> bool:
        """Whether somebody could play it."""
        return self.entry is None and (self.lease is None or self.lease.state not in LIVE)

    def play_again(self) -> None:
        """Forget how it ended."""
        self.entry = self.lease = None
        self.noted = False
        self.round += 1
        self.failures = 0
        self.failed_by.clear()


@dataclass(eq=False, slots=True)
class WantedGroup:
    """A group that a trainer has asked for.

    Attributes:
        task: What was asked for.
        order: How many groups had been asked for before.
        attempts: One for each member.
        handed_out: Whether the trainer has got it.
    """

    task: GroupTask
    order: int
    attempts: tuple[Attempt, ...]
    handed_out: bool = False

    @classmethod
    def of(cls, task: GroupTask, order: int, journalled: Mapping[int, Entry]) -> WantedGroup:
        """A new group, with what a journal knows of its members."""
        attempts = tuple(Attempt() for _ in range(task.size))
        for member, entry in journalled.items():
            attempt = attempts[member]
            attempt.round, attempt.entry, attempt.noted = entry.round, entry, True
        return cls(task, order, attempts)

    @property
    def urgency(self) -> tuple[int, int]:
        """What is smaller is played first."""
        return self.task.batch, self.order

    @property
    def free(self) -> list[int]:
        """The members that somebody could play."""
        return [member for member, attempt in enumerate(self.attempts) if attempt.free]

    @property
    def unplayed(self) -> int:
        """How many members have not ended."""
        return sum(attempt.entry is None for attempt in self.attempts)

    @property
    def ready(self) -> bool:
        """Whether it can be handed out."""
        return not self.handed_out and self.unplayed == 0

    def mismatch(self, episode: Episode) -> str | None:
        """Why an episode is no attempt at this group's task; ``None`` where it may be one.

        An episode that failed may have failed before it knew its task's name.
        """
        if episode.seed != self.task.seed:
            return f"the episode has seed {episode.seed}, the lease seed {self.task.seed}"
        if episode.failed:
            return None
        for attempt in self.attempts:
            other = attempt.entry.episode if attempt.entry is not None else attempt.saving
            if other is not None and not other.failed and _name(other) != _name(episode):
                return (
                    f"the episode is of task {episode.task_id!r} in {episode.env_id!r}, another attempt of "
                    f"its group of {other.task_id!r} in {other.env_id!r}"
                )
        return None

    def played(self) -> PlayedGroup:
        """The group as it is handed out; what failed bears the name of what did not."""
        entries = [attempt.entry for attempt in self.attempts if attempt.entry is not None]
        episodes = [entry.episode or self._unplayable(entry.reason) for entry in entries]
        named = sorted(episodes, key=lambda episode: (episode.failed, not episode.env_id))[0]
        return PlayedGroup(
            self.task,
            tuple(_renamed(episode, named) if episode.failed else episode for episode in episodes),
            tuple(entry.timing for entry in entries),
        )

    def _unplayable(self, reason: str) -> Episode:
        name = f"seed-{self.task.seed}"
        return Episode("", name, self.task.seed, "", (), (), Ending.POLICY_ERROR, error=reason)


def _renamed(episode: Episode, other: Episode) -> Episode:
    return dataclasses.replace(episode, env_id=other.env_id, task_id=other.task_id)


def _name(episode: Episode) -> tuple[str, str]:
    return episode.env_id, episode.task_id
