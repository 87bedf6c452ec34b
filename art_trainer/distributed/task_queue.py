"""Task queue with leases: each attempt goes to one client at a time, and its first valid result counts once.

An attempt is free, leased to one client, or ended. A lease is live until it brings a result that counts, is
released, expires or is rejected; then the attempt is free again or, after too many failures, ends as one that
no client could play. A result is in the result log before it counts. The trainer gets whole groups, each
once. After a crash a new queue on the same log continues: it takes up the accepted results, and old leases
are unknown.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
import hmac
import logging
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from art_trainer.config import LeaseOptions
from art_trainer.distributed.protocol import Lease, LeaseStatus, Outcome, QueueStatus
from art_trainer.distributed.result_log import Entry, ResultLog, ResultLogError
from art_trainer.errors import TrainerError
from art_trainer.types import Ending, Episode, GroupSpec

MAX_ENDED_LEASES = 10_000
"""Ended leases that are remembered, to tell late results from unknown ones."""
_SHOWN_LEASES = 100
_log = logging.getLogger(__name__)


class BackendClosedError(TrainerError, RuntimeError):
    """The backend is closed; nothing is played any more."""

    def __init__(self) -> None:
        super().__init__("the server is closed: nobody plays any more")


class Verdict(NamedTuple):
    """What became of a result, and why."""

    outcome: Outcome
    reason: str


class CompletedGroup(NamedTuple):
    """A group of which every attempt has ended."""

    task: GroupSpec
    episodes: tuple[Episode, ...]
    """By attempt. One that no client could play has the ending ``POLICY_ERROR`` and says why."""


class TaskQueueStatus(NamedTuple):
    """A queue's state."""

    queue: QueueStatus
    """Counts of attempts."""
    leases: list[LeaseStatus]
    """The leases that expire first."""
    results: dict[str, int]
    """Results by outcome; leases by how they began (``leased``, ``revived``) and ended (``expired``,
    ``released``, ``failed``, ``forgotten``); attempts that were requested again (``requeued``; ``rejected``
    for a wrong result), given up (``unplayable``), or found in the log (``resumed``)."""
    held: dict[str, int]
    """How many leases each client has."""


class _State(enum.Enum):
    """State of a lease."""

    ACTIVE = enum.auto()
    """Its client plays."""
    COMMITTING = enum.auto()
    """Its result is being written to disk; nothing else can happen to it meanwhile."""
    EXPIRED = enum.auto()
    """Its time is over. Its client may continue as long as nobody else has the attempt."""
    ACCEPTED = enum.auto()
    """Its result counts."""
    CLOSED = enum.auto()
    """Released, rejected, or no longer wanted."""


_LIVE = (_State.ACTIVE, _State.COMMITTING)


@dataclass(eq=False, slots=True)
class _Lease:
    """The server's side of a :class:`~art_trainer.distributed.protocol.Lease`."""

    grant: Lease
    client: str
    member: int
    deadline: float
    """When it expires unless it is renewed, on the queue's clock."""
    hard_deadline: float
    """When it expires even if it is renewed."""
    state: _State = _State.ACTIVE


@dataclass(eq=False, slots=True)
class _Attempt:
    """One member of a group."""

    group: _Group
    member: int
    round: int = 0
    """How often it was retried by the trainer."""
    lease: _Lease | None = None
    """The last lease, if it can still bring a result."""
    leased: int = 0
    failures: int = 0
    failed_by: set[str] = field(default_factory=set)
    entry: Entry | None = None
    """Its result, if it has one."""
    player: str = ""
    """The client that sent the result, if it is known."""
    unplayable: str = ""
    """Why no client could play it."""

    @property
    def ended(self) -> bool:
        """Whether it is not played any more."""
        return self.entry is not None or bool(self.unplayable)

    @property
    def free(self) -> bool:
        """Whether it can be leased."""
        return not self.ended and (self.lease is None or self.lease.state not in _LIVE)

    @property
    def episode(self) -> Episode:
        """The episode of an attempt that has ended."""
        if self.entry is not None:
            return self.entry.episode
        seed = self.group.task.seed
        return Episode("", f"seed-{seed}", seed, "", (), (), Ending.POLICY_ERROR, error=self.unplayable)


class _Group:
    """A requested group.

    Attributes:
        delivered: Whether the trainer has taken it.
    """

    def __init__(self, task: GroupSpec) -> None:
        self.task = task
        self.attempts = [_Attempt(self, member) for member in range(task.size)]
        self.delivered = False

    @property
    def unplayed(self) -> int:
        """How many attempts have not ended."""
        return sum(not attempt.ended for attempt in self.attempts)

    @property
    def ready(self) -> bool:
        """Whether it can be delivered."""
        return not self.delivered and self.unplayed == 0

    def play_again(self, member: int) -> _Attempt:
        """Replace an attempt that has ended by a new one of the next round."""
        self.attempts[member] = _Attempt(self, member, self.attempts[member].round + 1)
        return self.attempts[member]

    def completed(self) -> CompletedGroup:
        """Return the finished group; failed episodes get the names of those that did not fail."""
        episodes = [attempt.episode for attempt in self.attempts]
        known = min(episodes, key=lambda episode: (episode.failed, not episode.env_id))
        named = (
            dataclasses.replace(one, env_id=known.env_id, task_id=known.task_id) if one.failed else one
            for one in episodes
        )
        return CompletedGroup(self.task, tuple(named))


class TaskQueue:
    """Leases attempts and takes their results; any thread may call it.

    Only :meth:`wait` and :meth:`result` block; :meth:`submit` and :meth:`discard_before` use the disk. The
    lock is never held while waiting for the disk.

    Args:
        log: Where accepted results are kept; its owner closes it after the queue.
        max_staleness: How many versions behind the newest the weights that sampled an episode may be.
        options: Timeouts and retries of leases.
        check_episode: Returns what is wrong with an episode, or ``None``.
        clock: Seconds; only differences count.
        on_work: Called, in any thread, when there is something new to lease.
    """

    def __init__(
        self,
        log: ResultLog,
        *,
        max_staleness: int = 0,
        options: LeaseOptions | None = None,
        check_episode: Callable[[Episode], str | None] = lambda episode: None,
        clock: Callable[[], float] = time.monotonic,
        on_work: Callable[[], None] = lambda: None,
    ) -> None:
        self._result_log = log
        self._max_staleness = max_staleness
        self._options = options or LeaseOptions()
        self._check_episode = check_episode
        self._clock = clock
        self._on_work = on_work
        self._changed = threading.Condition()
        self._closed = False
        self._version: int | None = None
        """The newest weights; nothing is leased before the first."""
        self._groups: dict[str, _Group] = {}
        self._used: dict[str, int] = {}
        """Batches of groups that were trained on."""
        self._recovered: dict[int, dict[str, dict[int, Entry]]] = {}
        """Logged results that were not requested yet, by batch, group and member."""
        self._open: deque[_Group] | None = None
        """Groups by batch, the first ones that have nothing to lease left out: without it, handing out one
        lease would look at all attempts. ``None`` if something may have become free."""
        self._live: dict[str, _Lease] = {}
        self._ended: dict[str, _Lease] = {}
        """The last leases that ended, in that order."""
        self._asked: dict[str, float] = {}
        """When clients last asked for work."""
        self._counts: Counter[str] = Counter()

    # For the trainer.

    def publish(self, version: int) -> None:
        """Accept results of new weights, and drop the groups that were delivered before."""
        with self._changing():
            if version == self._version:
                return
            self._version = version
            for group in [group for group in self._groups.values() if group.delivered]:
                self._used[group.task.id] = group.task.batch
                del self._groups[group.task.id]

    def submit(self, tasks: Sequence[GroupSpec]) -> None:
        """Request groups, oldest batch first; those requested before are skipped.

        Raises:
            BackendClosedError: If the queue is closed.
            ResultLogError: If the log is damaged, or holds another group of the same name.
        """
        if self._closed:
            raise BackendClosedError
        for batch in {task.batch for task in tasks} - self._recovered.keys():
            groups = self._recovered[batch] = {}
            for entry in self._result_log.replay(batch):  # of several rounds the last counts
                groups.setdefault(entry.task.id, {})[entry.member] = entry
        with self._changing():
            for task in tasks:
                if task.id not in self._groups and task.id not in self._used:
                    group = _Group(task)
                    for member, entry in self._take_recovered(task).items():
                        group.attempts[member].entry = entry
                        group.attempts[member].round = entry.round
                        self._counts["resumed"] += 1
                    self._groups[task.id] = group

    def wait(self, task_ids: Collection[str], timeout: float | None = None) -> list[CompletedGroup]:
        """Wait until at least one of some groups is complete, and take those that are, each once.

        Args:
            task_ids: The groups; those that were delivered before are skipped.
            timeout: Most seconds to wait; ``None``: no limit.

        Returns:
            The complete groups; empty after a timeout.

        Raises:
            BackendClosedError: If the queue is closed.
            ValueError: If there is nothing to wait for.
        """
        with self._changed:
            groups = self._undelivered(task_ids)
            self._changed.wait_for(lambda: self._closed or any(group.ready for group in groups), timeout)
            if self._closed:
                raise BackendClosedError
            ready = [group for group in groups if group.ready]
            for group in ready:
                group.delivered = True
            return [group.completed() for group in ready]

    def retry(self, task_id: str, members: Iterable[int], reason: str) -> None:
        """Have attempts of a delivered but unused group played again; the group is delivered again.

        Args:
            task_id: The group.
            members: Attempts, from 0; may be empty.
            reason: For the log.

        Raises:
            ValueError: If the group was not delivered since the last version was published.
        """
        again = sorted(set(members))
        with self._changing():
            group = self._delivered(task_id)
            for member in again:
                group.play_again(member)
            self._counts["requeued"] += len(again)
            group.delivered = False
        _log.info("group %s: attempts %s are played again: %s", task_id, again, reason)

    def reject(self, task_id: str, wrong: Mapping[int, str]) -> None:
        """Drop results of a delivered group that turned out to be wrong; the group is delivered again.

        Others play these attempts, unless too many tries have failed.

        Args:
            task_id: The group.
            wrong: What is wrong, by attempt.

        Raises:
            ValueError: If the group was not delivered since the last version was published.
        """
        with self._changing():
            group = self._delivered(task_id)
            group.delivered = False
            for member, reason in wrong.items():
                before = group.attempts[member]
                attempt = group.play_again(member)
                attempt.failures, attempt.failed_by = before.failures, before.failed_by
                why = f"client {before.player or '(unknown)'} sent a wrong result: {reason}"
                _log.warning("group %s, attempt %d is played again: %s", task_id, member, why)
                self._count_failure(attempt, before.player, why)
            self._counts["rejected"] += len(wrong)

    def discard_before(self, batch: int) -> None:
        """Drop all earlier batches, also from the log: they will never be requested again."""
        with self._changing():
            for lease in list(self._live.values()):
                if self._groups[lease.grant.group].task.batch < batch:
                    self._counts["forgotten"] += 1
                    self._end(lease, _State.CLOSED)
            self._groups = {name: g for name, g in self._groups.items() if g.task.batch >= batch}
            self._used = {name: used for name, used in self._used.items() if used >= batch}
            self._recovered = {old: groups for old, groups in self._recovered.items() if old >= batch}
        self._result_log.discard_before(batch)

    def close(self) -> None:
        """Lease nothing more and end all waits. Results that are being written are still accepted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # For the clients.

    @property
    def waiting(self) -> int:
        """How many attempts can be leased."""
        with self._changed:
            return sum(attempt.free for attempt in self._attempts())

    def lease(self, client: str, count: int) -> list[Lease]:
        """Lease at most ``count`` attempts to a client, oldest batch first, those of a group together.

        A client does not get an attempt again that it has failed while others ask for work: a client that
        always fails would use up all tries.
        """
        with self._changed:
            now = self._asked[client] = self._clock()
            if self._closed or self._version is None:
                return []
            return [self._grant(client, attempt, now) for attempt in self._choose(client, count)]

    def renew(self, client: str, lease_ids: Iterable[str]) -> list[str]:
        """Extend a client's leases; return those that still belong to it."""
        with self._changed:
            now = self._clock()
            own = [lease for lease_id in lease_ids if (lease := self._own(client, lease_id)) is not None]
            live = [it for it in own if it.state in _LIVE or (now < it.hard_deadline and self._revive(it))]
            for lease in live:
                lease.deadline = min(now + self._options.lease_seconds, lease.hard_deadline)
            return [lease.grant.lease for lease in live]

    def result(self, client: str, lease_id: str, token: str, episode: Episode) -> Verdict:
        """Take a result; ``accepted`` only when it is on disk.

        Args:
            client: Who sends it.
            lease_id: Its lease.
            token: The lease's secret.
            episode: The episode.

        Raises:
            ResultLogError: If it cannot be written. The client keeps the lease and may try again.
        """
        error = self._check_episode(episode)  # slow for long episodes, so without the lock
        with self._changed:
            begun = self._begin_commit(client, lease_id, token, episode, error)
        if isinstance(begun, Verdict):
            with self._changing():
                self._counts[begun.outcome] += 1
            return begun
        lease, attempt = begun
        entry = Entry(attempt.group.task, attempt.member, attempt.round, episode)
        try:
            self._result_log.append([entry])
        except BaseException:
            with self._changed:
                self._abort_commit(lease)
            raise
        with self._changed:
            verdict = self._accept(lease, attempt, entry)
            self._counts[verdict.outcome] += 1
            self._changed.notify_all()
            return verdict

    def release(self, client: str, lease_ids: Iterable[str] | None, reason: str, failed: bool) -> None:
        """Take leases back from their client.

        Args:
            client: Its id; other clients' leases are ignored.
            lease_ids: The leases; ``None``: all that it has.
            reason: For the episode, if nobody can play it.
            failed: Whether the episode was tried and failed.
        """
        with self._changing():
            for lease_id in list(self._live) if lease_ids is None else lease_ids:
                lease = self._own(client, lease_id)
                if lease is None or lease.state not in (_State.ACTIVE, _State.EXPIRED):
                    continue
                if lease.state is _State.EXPIRED:  # counted and freed already
                    lease.state = _State.CLOSED
                    continue
                self._counts["failed" if failed else "released"] += 1
                self._end(lease, _State.CLOSED)
                if failed:
                    attempt = self._attempt_of(lease)
                    self._count_failure(attempt, client, f"client {client} gave it back: {reason}")

    def expire(self) -> list[str]:
        """Take back leases whose time is over; return their ids. Call it about once a second."""
        with self._changing():
            now, options = self._clock(), self._options
            late = [one for one in self._live.values() if one.state is _State.ACTIVE and one.deadline <= now]
            for lease in late:
                self._counts["expired"] += 1
                self._end(lease, _State.EXPIRED)
                silent = f"sent nothing for {options.lease_seconds:g} s"
                slow = f"had not finished after {options.max_lease_seconds:g} s"
                how = silent if now < lease.hard_deadline else slow
                self._count_failure(self._attempt_of(lease), lease.client, f"client {lease.client} {how}")
            self._asked = {who: at for who, at in self._asked.items() if now - at < options.lease_seconds}
            return [lease.grant.lease for lease in late]

    def status(self) -> TaskQueueStatus:
        """Return the present state."""
        with self._changed:
            now = self._clock()
            groups = [group for group in self._groups.values() if not group.delivered]
            unplayed = sum(group.unplayed for group in groups)
            queue = QueueStatus(
                waiting=unplayed - len(self._live),
                leased=len(self._live),
                finished=sum(group.task.size for group in groups) - unplayed,
                groups_waiting=sum(group.unplayed > 0 for group in groups),
            )
            leases = [
                LeaseStatus(
                    lease=lease.grant.lease,
                    client=lease.client,
                    group=lease.grant.group,
                    attempt=self._attempt_of(lease).leased,
                    seconds_left=lease.deadline - now,
                )
                for lease in heapq.nsmallest(_SHOWN_LEASES, self._live.values(), key=lambda one: one.deadline)
            ]
            held = Counter(lease.client for lease in self._live.values())
            return TaskQueueStatus(queue, leases, dict(self._counts), dict(held))

    # All below is called with the lock held.

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock; afterwards wake whoever waits for groups or work."""
        with self._changed:
            yield
            self._open = None
            self._changed.notify_all()
            work = any(attempt.free for attempt in self._attempts())
        if work:
            self._on_work()

    def _attempts(self) -> Iterator[_Attempt]:
        return (attempt for group in self._groups.values() for attempt in group.attempts)

    def _attempt_of(self, lease: _Lease) -> _Attempt:
        """Return a live lease's attempt. Ended leases are remembered for long, and must not keep episodes."""
        return self._groups[lease.grant.group].attempts[lease.member]

    def _delivered(self, task_id: str) -> _Group:
        group = self._groups.get(task_id)
        if group is None or not group.delivered:
            raise ValueError(f"group {task_id} cannot be retried: it is not delivered")
        return group

    def _take_recovered(self, task: GroupSpec) -> dict[int, Entry]:
        groups = self._recovered[task.batch]
        for entry in groups.get(task.id, {}).values():
            if (entry.task.seed, entry.task.size) != (task.seed, task.size):
                raise ResultLogError(
                    f"{self._result_log.folder}: there group {task.id} has seed {entry.task.seed} and "
                    f"{entry.task.size} attempts, in this run seed {task.seed} and {task.size} attempts. "
                    "Continue with that run's settings, or delete the folder: its episodes are then played "
                    "again"
                )
        return groups.pop(task.id, {})

    def _undelivered(self, task_ids: Collection[str]) -> list[_Group]:
        names = dict.fromkeys(task_ids)
        for name in names:
            if name not in self._groups and name not in self._used:
                raise ValueError(f"group {name} was never submitted, or has been discarded")
        groups = [self._groups[name] for name in names if name in self._groups]
        if all(group.delivered for group in groups):
            raise ValueError("there is nothing to wait for: all of these groups have been delivered")
        return groups

    def _choose(self, client: str, count: int) -> list[_Attempt]:
        """Choose at most ``count`` attempts, oldest batch first, those of a group together."""

        def may(attempt: _Attempt) -> bool:
            return client not in attempt.failed_by or self._asked.keys() <= attempt.failed_by

        if self._open is None:
            self._open = deque(sorted(self._groups.values(), key=lambda group: group.task.batch))
        while self._open and not any(attempt.free for attempt in self._open[0].attempts):
            self._open.popleft()
        free = (attempt for group in self._open for attempt in group.attempts if attempt.free)
        return list(islice(filter(may, free), count))

    def _grant(self, client: str, attempt: _Attempt, now: float) -> Lease:
        attempt.leased += 1
        self._counts["leased"] += 1
        seconds = self._options.lease_seconds
        lease_id, token = secrets.token_urlsafe(12), secrets.token_urlsafe(24)
        lease = _Lease(
            grant=Lease.of(lease_id, token, attempt.group.task, attempt.member, seconds),
            client=client,
            member=attempt.member,
            deadline=now + seconds,
            hard_deadline=now + self._options.max_lease_seconds,
        )
        attempt.lease = self._live[lease_id] = lease
        return lease.grant

    def _known(self, lease_id: str) -> _Lease | None:
        return self._live.get(lease_id) or self._ended.get(lease_id)

    def _own(self, client: str, lease_id: str) -> _Lease | None:
        lease = self._known(lease_id)
        return lease if lease is not None and lease.client == client else None

    def _revive(self, lease: _Lease) -> bool:
        """Make an expired lease active again if nobody else has its attempt."""
        if lease.state is not _State.EXPIRED or lease.grant.group not in self._groups:
            return False
        attempt = self._attempt_of(lease)
        if attempt.lease is not lease or not attempt.free:
            return False
        self._counts["revived"] += 1
        attempt.failures -= 1
        attempt.failed_by.discard(lease.client)
        lease.state = _State.ACTIVE
        self._live[lease.grant.lease] = self._ended.pop(lease.grant.lease)
        return True

    def _find(self, client: str, lease_id: str, token: str) -> _Lease | Verdict:
        """Return the lease of a result if its client may still send one."""
        lease = self._known(lease_id)
        if lease is None:
            return Verdict("unknown", "there is no such lease; the server may have restarted since")
        if lease.client != client:
            return Verdict("wrong_client", "the lease belongs to another client")
        if not hmac.compare_digest(_bytes(lease.grant.token), _bytes(token)):
            return Verdict("bad_token", "this is not the lease's token")
        if lease.state is _State.ACCEPTED:
            return Verdict("duplicate", "the lease has a result already")
        if lease.state in _LIVE or self._revive(lease):
            return lease
        return Verdict("late", "the lease is over, and the attempt is taken or no longer wanted")

    def _begin_commit(
        self, client: str, lease_id: str, token: str, episode: Episode, error: str | None
    ) -> tuple[_Lease, _Attempt] | Verdict:
        """Find the lease of a result, check the episode, and reserve the lease if the result counts."""
        while isinstance(lease := self._find(client, lease_id, token), _Lease):
            if lease.state is _State.ACTIVE:
                break
            self._changed.wait()  # another result of this lease is being written
        else:
            return lease
        attempt = self._attempt_of(lease)
        if episode.seed != attempt.group.task.seed:
            error = f"the episode has seed {episode.seed}, the lease seed {attempt.group.task.seed}"
        verdict = self._check_staleness(episode) if error is None else Verdict("invalid", error)
        if verdict is not None:
            self._end(lease, _State.CLOSED)
            reason = f"client {client} sent a result that does not count: {verdict.reason}"
            self._count_failure(attempt, client, reason)
            return verdict
        lease.state = _State.COMMITTING
        return lease, attempt

    def _check_staleness(self, episode: Episode) -> Verdict | None:
        assert self._version is not None
        newest_allowed, oldest_allowed = self._version, self._version - self._max_staleness
        spans = [span for history in episode.histories for span in history.spans]
        newest = max((span.policy_version for span in spans), default=newest_allowed)
        oldest = min((s.policy_version for s in spans if s.turn is not None), default=newest_allowed)
        if newest > newest_allowed:
            return Verdict("invalid", f"it has tokens of version {newest}, the newest is {newest_allowed}")
        if oldest < oldest_allowed:
            return Verdict(
                "stale",
                f"it was sampled by weights of version {oldest}; the newest are {newest_allowed}, and at "
                f"most {self._max_staleness} older is allowed",
            )
        return None

    def _abort_commit(self, lease: _Lease) -> None:
        """The result could not be written; the client keeps the lease."""
        if lease.state is _State.COMMITTING:
            lease.state = _State.ACTIVE
            lease.deadline = self._clock() + self._options.lease_seconds
        self._changed.notify_all()

    def _accept(self, lease: _Lease, attempt: _Attempt, entry: Entry) -> Verdict:
        """The result is on disk and counts, unless its batch was discarded meanwhile."""
        if lease.state is not _State.COMMITTING:
            return Verdict("late", "the attempt is no longer wanted")
        attempt.entry, attempt.player, attempt.lease = entry, lease.client, None
        self._end(lease, _State.ACCEPTED)
        return Verdict("accepted", "")

    def _end(self, lease: _Lease, state: _State) -> None:
        lease.state = state
        self._ended[lease.grant.lease] = self._live.pop(lease.grant.lease)
        if len(self._ended) > MAX_ENDED_LEASES:
            del self._ended[next(iter(self._ended))]

    def _count_failure(self, attempt: _Attempt, client: str, reason: str) -> None:
        """Count a failed try of an attempt; end the attempt after too many."""
        attempt.failures += 1
        attempt.failed_by.add(client)
        if attempt.failures >= self._options.max_attempts:
            attempt.unplayable = f"nobody could play it in {attempt.failures} tries; the last time {reason}"
            self._counts["unplayable"] += 1
            name = attempt.group.task.id
            _log.warning("group %s, attempt %d: %s", name, attempt.member, attempt.unplayable)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
