"""Who plays what: each attempt that a trainer asks for is leased to one client at a time, and counts once.

The rules of leases are those of :mod:`art_trainer.remote.lease_book`; here they are guarded by a lock, which
is never held while the disk is waited for. The first valid result of a lease counts as soon as the journal
has it on disk; all others are counted and dropped. Groups are handed to the trainer whole, each once. After a
crash a new ledger on the same journal goes on: what had been accepted is taken up, what had been leased is
free again, and the old leases are unknown.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from art_trainer.episodes import Episode
from art_trainer.errors import TrainerError
from art_trainer.remote.journal import Journal, JournalError
from art_trainer.remote.journal_lines import Entry
from art_trainer.remote.lease_book import LeaseBook, Verdict
from art_trainer.remote.messages import Outcome
from art_trainer.remote.status import LeaseStatus, QueueStatus
from art_trainer.remote.unclaimed import UnclaimedEntries
from art_trainer.remote.wanted_groups import Attempt, Lease, LeaseState, PlayedGroup, WantedGroup
from art_trainer.starts import GroupTask
from art_trainer.timings import EpisodeTiming

__all__ = ["BackendClosed", "GrantedLease", "JournalError", "Ledger", "LedgerStatus", "PlayedGroup"]

SHOWN_LEASES = 100
_log = logging.getLogger(__name__)


class BackendClosed(TrainerError, RuntimeError):
    """Nobody plays any more."""


@dataclass(frozen=True, slots=True)
class GrantedLease:
    """The right to play one attempt of a group, for a time.

    Attributes:
        id: Names the lease.
        token: Whoever sends a result has to know it.
        task: The group.
        member: Which of its attempts, from 0.
        seconds: For how long, unless it is renewed.
    """

    id: str
    token: str
    task: GroupTask
    member: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """What a ledger holds, now.

    Attributes:
        queue: Where the attempts are.
        leases: Those that run out first.
        results: Results by outcome; leases by how they began (``leased``, ``revived``) and ended
            (``expired``, ``released``, ``failed``, ``forgotten``); attempts that were asked for again
            (``requeued``), that nobody could play (``unplayable``), or that the journal had (``resumed``).
        held: How many leases each client has.
    """

    queue: QueueStatus
    leases: list[LeaseStatus]
    results: dict[str, int]
    held: dict[str, int]


class Ledger:
    """Leases attempts and takes their results; any thread may call it.

    Only :meth:`wait` and :meth:`result` block; and :meth:`submit` and :meth:`forget`, as long as the journal
    needs to read or delete files.

    Args:
        journal: Where accepted results are kept; whoever opened it closes it, after the ledger.
        max_staleness: By how many versions the weights that sampled an episode may be older than the
            published ones.
        lease_seconds: A client that is not heard of for so long loses its leases.
        max_lease_seconds: A lease that has no result by then is lost, whatever its client says of itself: an
            environment may hang in a worker that is otherwise well.
        max_attempts: An attempt that fails or expires so often ends as ``POLICY_ERROR``.
        fault_of: Says what is wrong with an episode, whoever played it; ``None``: nothing.
        clock: Seconds; only differences count.
        on_work: Called, in whatever thread, when there is something new to lease.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        max_staleness: int = 0,
        lease_seconds: float = 60.0,
        max_lease_seconds: float = 3600.0,
        max_attempts: int = 3,
        fault_of: Callable[[Episode], str | None] = lambda episode: None,
        clock: Callable[[], float] = time.monotonic,
        on_work: Callable[[], None] | None = None,
    ) -> None:
        self._journal = journal
        self._fault_of = fault_of
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._on_work = on_work
        self._unclaimed = UnclaimedEntries(journal)
        self._book = LeaseBook(max_staleness, lease_seconds, max_attempts, max_lease_seconds)
        self._lock = threading.Lock()
        self._group_ended = threading.Condition(self._lock)
        self._saved = threading.Condition(self._lock)
        self._used: dict[str, int] = {}
        """Groups that were learned from, and their batches."""
        self._closed = False

    def publish(self, version: int) -> None:
        """Take results that were sampled with these weights.

        What was handed out before has been learned from: it is not kept any longer.
        """
        with self._changing():
            if version == self._book.version:
                return
            self._book.version = version
            for group in [group for group in self._book.groups.values() if group.handed_out]:
                self._used[group.task.id] = group.task.batch
                del self._book.groups[group.task.id]

    def submit(self, tasks: Sequence[GroupTask]) -> None:
        """Have groups played, the oldest batch first; those that were asked for before are left out.

        Raises:
            JournalError: Where the journal is damaged, or holds results of another group by the same name.
        """
        read = self._unclaimed.read(task.batch for task in tasks)
        with self._changing():
            self._unclaimed.keep(read)
            for task in tasks:
                if task.id not in self._book.groups and task.id not in self._used:
                    self._book.add(task, self._unclaimed.take(task))

    def wait(self, task_ids: Collection[str], timeout: float | None = None) -> list[PlayedGroup]:
        """Wait until at least one of some groups is finished, and take those that are.

        Each group is handed out once.

        Args:
            task_ids: The groups; those that were handed out before are left out.
            timeout: Most seconds to wait; ``None``: for ever.

        Returns:
            The groups that are finished; none where the time was over before.

        Raises:
            BackendClosed: Where the ledger is closed, before or meanwhile.
            JournalError: Where it cannot be noted that nobody could play an attempt; the group is handed out
                by a later call.
            ValueError: Where there is nothing to wait for.
        """
        with self._lock:
            groups = self._awaited(task_ids)
            self._group_ended.wait_for(lambda: self._closed or any(group.ready for group in groups), timeout)
            if self._closed:
                raise BackendClosed("the server is closed: nobody plays any more")
            ready = [group for group in groups if group.ready]
            for group in ready:
                group.handed_out = True
        try:
            for group in ready:
                self._note_unplayable(group)
            return [group.played() for group in ready]
        except BaseException:
            with self._lock:
                for group in ready:
                    group.handed_out = False
            raise

    def requeue(self, task_id: str, members: Sequence[int], reason: str) -> None:
        """Have attempts of a group played again that was handed out but not used; it is handed out again.

        Args:
            task_id: The group.
            members: Which attempts, from 0; none where the group is only to be handed out again.
            reason: For the log.

        Raises:
            ValueError: Where the group is not one that was handed out since the last version was published.
        """
        again = sorted(set(members))
        with self._changing():
            group = self._book.groups.get(task_id)
            if group is None or not group.handed_out:
                raise ValueError(f"group {task_id} cannot be played again: it is not handed out")
            self._book.play_again(group, again)
        _log.info("group %s: attempts %s are played again: %s", task_id, again, reason)

    def forget(self, before_batch: int) -> None:
        """Batches before this one will never be asked for again: drop them, in the journal too.

        Raises:
            JournalError: Where the journal's files cannot be deleted.
        """
        with self._lock:
            self._book.forget(before_batch)
            self._used = {name: batch for name, batch in self._used.items() if batch >= before_batch}
            self._unclaimed.forget(before_batch)
            self._saved.notify_all()
        self._journal.forget(before_batch)

    def close(self) -> None:
        """Lease nothing any more, and let those who wait go. Results that are under way are still taken."""
        with self._lock:
            self._closed = True
            self._group_ended.notify_all()

    def lease(self, client: str, count: int) -> list[GrantedLease]:
        """Lease attempts to a client, those of the oldest batch first, whole groups where possible.

        Args:
            client: Its id.
            count: Most attempts.
        """
        with self._lock:
            if self._closed:
                return []
            leases = self._book.lease(client, count, self._clock())
            return [
                GrantedLease(
                    id=lease.id,
                    token=lease.token,
                    task=self._book.groups[lease.group].task,
                    member=lease.member,
                    seconds=self._lease_seconds,
                )
                for lease in leases
            ]

    def renew(self, client: str, lease_ids: Iterable[str]) -> list[str]:
        """Note that a client is at work on its leases; return those that are still its own."""
        with self._lock:
            return self._book.renew(client, lease_ids, self._clock())

    def result(
        self, client: str, lease_id: str, token: str, episode: Episode, timing: EpisodeTiming | None = None
    ) -> tuple[Outcome, str]:
        """Take a result; ``accepted`` only after it is on disk.

        Args:
            client: Who sends it.
            lease_id: The lease that it was played for.
            token: The lease's own secret.
            episode: The attempt.
            timing: How long it took.

        Returns:
            What became of it, and why.

        Raises:
            JournalError: Where it cannot be written down. The lease stays its client's, who can try again.
        """
        wrong = self._fault_of(episode)  # it takes a while where the episode is long: nobody waits for it
        with self._changing():
            begun = self._begin_saving(client, lease_id, token, episode, wrong)
            if isinstance(begun, Verdict):
                self._book.counts[begun.outcome] += 1
                return begun
            lease, group, attempt = begun
            entry = Entry(group.task, lease.member, attempt.round, episode, timing, client)
        try:
            self._journal.append([entry])
        except BaseException:
            with self._lock:
                self._book.keep_held(lease, self._clock())
                self._saved.notify_all()
            raise
        with self._lock:
            outcome = self._book.accept(lease, entry) or Verdict("accepted", "")
            self._book.counts[outcome.outcome] += 1
            self._saved.notify_all()
            self._group_ended.notify_all()
            return outcome

    def release(self, client: str, lease_ids: Iterable[str], reason: str, failed: bool) -> None:
        """Take leases back from their client.

        Args:
            client: Its id; leases of others are left as they are.
            lease_ids: The leases.
            reason: Why, for the episode where nobody could play it.
            failed: Whether playing was tried and went wrong.
        """
        with self._changing():
            for lease_id in lease_ids:
                self._book.release(client, lease_id, failed, reason)

    def expire(self) -> list[str]:
        """Take leases back whose time is over, for others; return them. To be called every second or so."""
        with self._changing():
            return self._book.expire(self._clock())

    def next_deadline(self) -> float | None:
        """When, on the ledger's clock, the first lease runs out; ``None`` where there is none."""
        with self._lock:
            return min((lease.deadline for lease in self._book.live.values()), default=None)

    def status(self) -> LedgerStatus:
        """What it holds, now."""
        with self._lock:
            book, now = self._book, self._clock()
            groups = [group for group in book.groups.values() if not group.handed_out]
            unplayed = sum(group.unplayed for group in groups)
            queue = QueueStatus(
                waiting=unplayed - len(book.live),
                leased=len(book.live),
                finished=sum(group.task.size for group in groups) - unplayed,
                groups_waiting=sum(group.unplayed > 0 for group in groups),
            )
            first = heapq.nsmallest(SHOWN_LEASES, book.live.values(), key=lambda lease: lease.deadline)
            leases = [
                LeaseStatus(
                    lease=lease.id,
                    client=lease.client,
                    group=lease.group,
                    attempt=lease.number,
                    seconds_left=lease.deadline - now,
                )
                for lease in first
            ]
            held = Counter(lease.client for lease in book.live.values())
            return LedgerStatus(queue, leases, dict(book.counts), dict(held))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change something; whoever waits for what came of it is told."""
        with self._lock:
            yield
            self._group_ended.notify_all()
            work = len(self._book.queue) > 0
        if work and self._on_work is not None:
            self._on_work()

    def _awaited(self, task_ids: Collection[str]) -> list[WantedGroup]:
        groups = []
        for task_id in dict.fromkeys(task_ids):
            if task_id not in self._book.groups and task_id not in self._used:
                raise ValueError(f"group {task_id} was never submitted, or has been forgotten")
            if task_id in self._book.groups:
                groups.append(self._book.groups[task_id])
        if all(group.handed_out for group in groups):
            raise ValueError("there is nothing to wait for: all of these groups have been handed out")
        return groups

    def _begin_saving(
        self, client: str, lease_id: str, token: str, episode: Episode, wrong: str | None
    ) -> tuple[Lease, WantedGroup, Attempt] | Verdict:
        """Find and check what a result is for, and let nothing else happen to it."""
        while True:
            lease = self._book.claim(client, lease_id, token)
            if isinstance(lease, Verdict):
                return lease
            if lease.state is LeaseState.HELD:
                break
            self._saved.wait()  # for another result of this lease: whether that one counts decides
        refusal = self._book.begin_saving(lease, episode, wrong)
        if refusal is not None:
            return refusal
        group = self._book.groups[lease.group]
        return lease, group, group.attempts[lease.member]

    def _note_unplayable(self, group: WantedGroup) -> None:
        """Write down which attempts of a group nobody could play."""
        attempts = [attempt for attempt in group.attempts if not attempt.noted]
        entries = [attempt.entry for attempt in attempts if attempt.entry is not None]
        if not entries:
            return
        self._journal.append(entries)
        for attempt, entry in zip(attempts, entries, strict=True):
            attempt.noted = True
            _log.warning("group %s, attempt %d: %r", group.task.id, entry.member, entry.reason)
