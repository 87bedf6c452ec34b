"""Which attempt is leased to whom, and what may become of it: the rules alone, without threads and disk.

An attempt is free, or leased to one client, or ended. A lease is live (held, or its result being saved) until
it brings a result that counts, is given back, runs out or is refused; then the attempt is free again, or,
after too many failures, ends as one that nobody could play.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from art_trainer.episodes import Episode
from art_trainer.remote.journal_lines import Entry
from art_trainer.remote.messages import Outcome
from art_trainer.remote.wanted_groups import LIVE, Attempt, Lease, LeaseState, WantedGroup
from art_trainer.remote.work_queue import WorkQueue
from art_trainer.starts import GroupTask

ENDED_LEASES = 10_000
"""How many leases that have ended are remembered, to tell a late result from one that nobody asked for."""


class Verdict(NamedTuple):
    """What became of a result, and why."""

    outcome: Outcome
    reason: str


class LeaseBook:
    """Groups that are wanted, and the leases of their attempts.

    Args:
        max_staleness: See :class:`~art_trainer.remote.ledger.Ledger`, as of the rest.
        lease_seconds: As there.
        max_attempts: As there.
        max_lease_seconds: As there.

    Attributes:
        version: Of the weights that were published last; ``None``: of none, and nothing is leased.
        groups: Those that are wanted, by their ids.
        leases: Those that are live, and the last ones that were, by their ids.
        live: Those that are live.
        queue: Groups with free attempts.
        counts: What has happened how often.
    """

    def __init__(
        self, max_staleness: int, lease_seconds: float, max_attempts: int, max_lease_seconds: float
    ) -> None:
        self.version: int | None = None
        self.groups: dict[str, WantedGroup] = {}
        self.leases: dict[str, Lease] = {}
        self.live: dict[str, Lease] = {}
        self.queue = WorkQueue()
        self.counts: Counter[str] = Counter()
        self._max_staleness = max_staleness
        self._lease_seconds = lease_seconds
        self._max_attempts = max_attempts
        self._max_lease_seconds = max_lease_seconds
        self._ended: deque[str] = deque()
        self._asked: dict[str, float] = {}
        """When clients last asked for work."""
        self._added = 0

    def add(self, task: GroupTask, journalled: Mapping[int, Entry]) -> None:
        """Want a group, of which some attempts may have ended already."""
        self.groups[task.id] = group = WantedGroup.of(task, self._added, journalled)
        if journalled:
            self.counts["resumed"] += len(journalled)
        self._added += 1
        self.queue.update(group)

    def forget(self, before_batch: int) -> None:
        """Want no group of a batch before this one."""
        self.queue.forget(before_batch)
        gone = {name for name, group in self.groups.items() if group.task.batch < before_batch}
        for lease in [lease for lease in self.live.values() if lease.group in gone]:
            self.counts["forgotten"] += 1
            self._end(lease, LeaseState.OVER)
        for name in gone:
            del self.groups[name]

    def play_again(self, group: WantedGroup, members: Iterable[int]) -> None:
        """Want attempts again that have ended, and their group with them."""
        for member in members:
            group.attempts[member].play_again()
            self.counts["requeued"] += 1
        group.handed_out = False
        self.queue.update(group)

    def lease(self, client: str, count: int, now: float) -> list[Lease]:
        """Lease attempts to a client.

        One that has failed an attempt is not given it again while others ask for work: a client that fails at
        once whatever it is given would otherwise use up all the tries.
        """
        self._asked[client] = now
        if self.version is None:
            return []

        def may(attempt: Attempt) -> bool:
            failed = attempt.failed_by
            return client not in failed or not any(other not in failed for other in self._asked)

        chosen = self.queue.choose(count, may)
        granted = [self._grant(client, group, member, now) for group, member in chosen]
        for group in dict.fromkeys(group for group, _ in chosen):
            self.queue.update(group)
        return granted

    def renew(self, client: str, lease_ids: Iterable[str], now: float) -> list[str]:
        """Extend a client's leases; return those that are still its own."""
        own = [lease for lease_id in lease_ids if (lease := self._own(client, lease_id)) is not None]
        live = [lease for lease in own if lease.state in LIVE or (now < lease.last and self._revive(lease))]
        for lease in live:
            lease.deadline = min(now + self._lease_seconds, lease.last)
        return [lease.id for lease in live]

    def release(self, client: str, lease_id: str, failed: bool, reason: str) -> None:
        """Take a lease back that its client gives back; nothing happens where it is not its own."""
        lease = self._own(client, lease_id)
        if lease is None or lease.state not in (LeaseState.HELD, LeaseState.EXPIRED):
            return
        if lease.state is LeaseState.EXPIRED:  # counted already, and free
            lease.state = LeaseState.OVER
            return
        self.counts["failed" if failed else "released"] += 1
        self._end(lease, LeaseState.OVER)
        self._free(lease, f"client {client} gave it back: {reason}" if failed else None)

    def expire(self, now: float) -> list[str]:
        """Take back the leases whose time is over; return them.

        Nothing is kept any longer for clients that have not asked for work for as long as a lease lasts.
        """
        late = [e for e in self.live.values() if e.state is LeaseState.HELD and e.deadline <= now]
        for lease in late:
            self.counts["expired"] += 1
            self._end(lease, LeaseState.EXPIRED)
            silent = f"was not heard of for {self._lease_seconds:g} s"
            endless = f"had not played it after {self._max_lease_seconds:g} s"
            self._free(lease, f"client {lease.client} {silent if now < lease.last else endless}")
        self._asked = {
            client: asked for client, asked in self._asked.items() if now - asked < self._lease_seconds
        }
        return [lease.id for lease in late]

    def claim(self, client: str, lease_id: str, token: str) -> Lease | Verdict:
        """Find the lease that a result is for, where its client may still bring one."""
        lease = self.leases.get(lease_id)
        if lease is None:
            return Verdict("unknown", "there is no such lease; the server may have been started anew since")
        if lease.client != client:
            return Verdict("foreign", "the lease is another client's")
        if not hmac.compare_digest(_bytes(lease.token), _bytes(token)):
            return Verdict("forged", "this is not the lease's token")
        if lease.state is LeaseState.ACCEPTED:
            return Verdict("duplicate", "the lease has a result already")
        if lease.state in LIVE or self._revive(lease):
            return lease
        return Verdict("late", "the lease is over, and the attempt is someone else's or not wanted any more")

    def begin_saving(self, lease: Lease, episode: Episode, wrong: str | None = None) -> Verdict | None:
        """Check an episode that a held lease has brought; return why it does not count.

        Where it counts nothing else can happen to the lease until :meth:`accept` or :meth:`keep_held`.

        Args:
            lease: The lease.
            episode: The episode.
            wrong: What is known to be wrong with it already.
        """
        group = self.groups[lease.group]
        wrong = wrong or group.mismatch(episode)
        refusal = self._misdated(episode) if wrong is None else Verdict("invalid", wrong)
        if refusal is not None:
            self._end(lease, LeaseState.OVER)
            self._free(lease, f"client {lease.client} sent what does not count: {refusal[1]}")
            return refusal
        lease.state = LeaseState.SAVING
        group.attempts[lease.member].saving = episode
        return None

    def keep_held(self, lease: Lease, now: float) -> None:
        """The result that was being saved could not be."""
        if lease.state is LeaseState.SAVING:
            self.groups[lease.group].attempts[lease.member].saving = None
            lease.state = LeaseState.HELD
            lease.deadline = now + self._lease_seconds

    def accept(self, lease: Lease, entry: Entry) -> Verdict | None:
        """The result that was being saved is on disk and counts, unless nobody wants it any more."""
        if lease.state is not LeaseState.SAVING:
            return Verdict("late", "nobody wants the attempt any more")
        attempt = self.groups[lease.group].attempts[lease.member]
        attempt.entry, attempt.noted, attempt.saving, attempt.lease = entry, True, None, None
        self._end(lease, LeaseState.ACCEPTED)
        return None

    def _misdated(self, episode: Episode) -> Verdict | None:
        """Whether an episode was sampled by weights that are too old, or that do not exist."""
        assert self.version is not None
        spans = [span for history in episode.histories for span in history.spans]
        newest = max((span.policy_version for span in spans), default=self.version)
        oldest = min((span.policy_version for span in spans if span.turn is not None), default=self.version)
        if newest > self.version:
            return Verdict("invalid", f"it has tokens of version {newest}, the newest is {self.version}")
        if oldest < self.version - self._max_staleness:
            return Verdict(
                "stale",
                f"it was sampled by weights of version {oldest}; the newest are {self.version}, and "
                f"{self._max_staleness} older is the most that is allowed",
            )
        return None

    def _grant(self, client: str, group: WantedGroup, member: int, now: float) -> Lease:
        attempt = group.attempts[member]
        attempt.leased += 1
        self.counts["leased"] += 1
        lease = Lease(
            id=secrets.token_urlsafe(12),
            token=secrets.token_urlsafe(24),
            client=client,
            group=group.task.id,
            member=member,
            number=attempt.leased,
            deadline=now + self._lease_seconds,
            last=now + self._max_lease_seconds,
        )
        attempt.lease = self.leases[lease.id] = self.live[lease.id] = lease
        return lease

    def _own(self, client: str, lease_id: str) -> Lease | None:
        lease = self.leases.get(lease_id)
        return lease if lease is not None and lease.client == client else None

    def _revive(self, lease: Lease) -> bool:
        """Give an attempt back to a client that was silent too long, where nobody else has it."""
        group = self.groups.get(lease.group)
        if lease.state is not LeaseState.EXPIRED or group is None:
            return False
        attempt = group.attempts[lease.member]
        if attempt.lease is not lease or not attempt.free:
            return False
        self.counts["revived"] += 1
        attempt.failures -= 1
        attempt.failed_by.discard(lease.client)
        lease.state = LeaseState.HELD
        self.live[lease.id] = lease
        self.queue.update(group)
        return True

    def _end(self, lease: Lease, state: LeaseState) -> None:
        """A lease is live no more."""
        lease.state = state
        del self.live[lease.id]
        self._ended.append(lease.id)
        while len(self._ended) > ENDED_LEASES:
            oldest = self._ended.popleft()
            if oldest not in self.live:
                self.leases.pop(oldest, None)

    def _free(self, lease: Lease, failure: str | None) -> None:
        """Let others play the attempt of a lease that has ended without a result.

        Args:
            lease: The lease.
            failure: What went wrong; ``None``: nothing, it does not count as a try.
        """
        group = self.groups[lease.group]
        attempt = group.attempts[lease.member]
        if failure is not None:
            attempt.failures += 1
            attempt.failed_by.add(lease.client)
            if attempt.failures >= self._max_attempts:
                reason = f"nobody could play it in {attempt.failures} tries; the last time {failure}"
                attempt.entry = Entry(group.task, lease.member, attempt.round, None, reason=reason)
                self.counts["unplayable"] += 1
        self.queue.update(group)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
