"""State machine of the lease rules: whatever clients, clocks, disks and crashes do, each group comes once."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from art_trainer.config import LeaseOptions
from art_trainer.distributed.protocol import Lease
from art_trainer.distributed.result_log import ResultLog, ResultLogError
from art_trainer.distributed.task_queue import CompletedGroup, TaskQueue
from art_trainer.types import Ending, GroupSpec
from tests.art_trainer.distributed.played import episode, member_of, task

CLIENTS = st.sampled_from(["ann", "bob", "cy"])
SECONDS, TRIES, STALENESS = 10.0, 3, 1
UNPLAYABLE = "unplayable"
PICKS = st.integers(0, 50)
FAILED = st.sampled_from([True, True, False])
KINDS = [*["right"] * 6, "bad_token", "wrong_client", "stale", "future", "seed", "failed", "mixed"]
ENDS = ("accepted", "expired", "released", "failed", "stale", "invalid", "forgotten")


class Killed(BaseException):
    """The process is gone, here."""


class Disk(ResultLog):
    """A log on a disk that may be full, in a process that may be killed right after a write."""

    full = killing = False

    def _write(self, statements: Any) -> None:
        if self.full:
            raise ResultLogError("the disk is full")
        super()._write(statements)
        if self.killing:
            raise Killed


@dataclass
class Member:
    """What must be true of an attempt."""

    ended: str | None = None
    """The reply of the accepted result."""
    on_disk: str | None = None
    failures: int = 0
    holder: str | None = None
    """The lease that is live."""
    expired: str | None = None
    """The lease that could come alive again."""


@dataclass
class Wanted:
    """What must be true of a group."""

    task: GroupSpec
    delivered: bool = False
    used: bool = False
    members: list[Member] = field(default_factory=list)


@dataclass
class Given:
    """What must be true of a lease."""

    grant: Lease
    client: str
    deadline: float
    state: str = "live"


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.now = 1000.0
        self.version = STALENESS + 1
        self.wanted: dict[str, Wanted] = {}
        self.replies = 0
        self.discarded = 0
        self.start()

    def start(self) -> None:
        """A server's process begins, on whatever the log has."""
        self.log = Disk(self.folder / "log")
        options = LeaseOptions(SECONDS, max_attempts=TRIES)
        self.queue = TaskQueue(self.log, max_staleness=STALENESS, options=options, clock=lambda: self.now)
        self.given: dict[str, Given] = {}
        self.queue.publish(self.version)

    def teardown(self) -> None:
        """Whatever has happened, what is wanted can be had, each group once."""
        self.log.full = False
        try:
            for _ in range(1000):
                if not self.missing():
                    break
                self.now += SECONDS
                self.expire()
                self.lease("ann", 3)
                for given in [one for one in self.given.values() if one.state == "live"]:
                    self.send(given, given.client)
                self.wait()
            assert not self.missing()
        finally:
            self.log.close()
            shutil.rmtree(self.folder)

    def member(self, given: Given) -> Member:
        """The attempt of a lease."""
        return self.wanted[given.grant.group].members[member_of(given.grant)]

    # The trainer

    @initialize()
    def submit_first(self) -> None:
        self.submit({0, 1}, 0)

    @rule(places=st.sets(st.integers(0, 2), min_size=1), batch=st.integers(0, 2))
    def submit(self, places: set[int], batch: int) -> None:
        tasks = [task(place, batch=self.discarded + batch) for place in places]
        self.queue.submit(tasks)
        for of in tasks:
            self.wanted.setdefault(of.id, Wanted(of, members=[Member() for _ in range(of.size)]))

    @rule()
    def publish(self) -> None:
        """What was delivered was learned from."""
        self.version += 1
        self.queue.publish(self.version)
        for group in self.wanted.values():
            group.used |= group.delivered

    @rule(again=st.none() | st.sets(st.integers(0, 1)), wrong=st.booleans())
    def wait_and_use(self, again: set[int] | None, wrong: bool) -> None:
        """Take what is finished, and have some of it played again or learn from all of it."""
        before = self.missing()
        self.wait()
        for name in before:
            if self.wanted[name].delivered and again is not None:
                (self.reject if wrong else self.retry)(name, again)

    def wait(self) -> None:
        missing = self.missing()
        if not missing:
            return
        found = self.queue.wait(list(self.wanted), timeout=0.0)
        assert {played.task.id for played in found} == {
            name for name in missing if all(member.ended is not None for member in self.wanted[name].members)
        }
        for played in found:
            self.check(played)

    def missing(self) -> list[str]:
        return [name for name, group in self.wanted.items() if not group.delivered]

    def check(self, played: CompletedGroup) -> None:
        group = self.wanted[played.task.id]
        assert played.task == group.task
        assert not group.delivered, "delivered twice"
        group.delivered = True
        assert len({(one.env_id, one.task_id) for one in played.episodes}) == 1
        for member, found in zip(group.members, played.episodes, strict=True):
            assert found.seed == group.task.seed
            if member.ended == UNPLAYABLE:
                assert found.ending is Ending.POLICY_ERROR
                assert re.match(r"nobody could play it in \d tries", found.error or "")
            else:
                assert found.turns[0].reply == member.ended == member.on_disk

    @precondition(lambda self: any(group.used for group in self.wanted.values()))
    @rule()
    def retry_what_was_used(self) -> None:
        for name in [name for name, group in self.wanted.items() if group.used]:
            self.retry(name, {0})

    def retry(self, name: str, members: set[int]) -> None:
        group = self.wanted[name]
        if group.used:
            with pytest.raises(ValueError, match="not delivered"):
                self.queue.retry(name, sorted(members), "too old")
            return
        self.queue.retry(name, sorted(members), "too old")
        group.delivered = False
        for member in members:
            group.members[member] = Member(on_disk=group.members[member].on_disk)

    def reject(self, name: str, members: set[int]) -> None:
        group = self.wanted[name]
        self.queue.reject(name, dict.fromkeys(members, "another task"))
        group.delivered = False
        for member in members:
            before = group.members[member]
            group.members[member] = Member(on_disk=before.on_disk, failures=before.failures)
            self.failed(group.members[member])

    @precondition(lambda self: self.discarded < 3)
    @rule()
    def discard(self) -> None:
        self.discarded += 1
        self.queue.discard_before(self.discarded)
        self.wanted = {name: g for name, g in self.wanted.items() if g.task.batch >= self.discarded}
        for given in self.given.values():
            if given.grant.rng_seed[2] < self.discarded and given.state in ("live", "expired"):
                given.state = "late"

    # The clients

    @rule(client=CLIENTS, count=st.integers(1, 4))
    def lease(self, client: str, count: int) -> None:
        granted = self.queue.lease(client, count)
        assert len(granted) <= count
        batches = [lease.rng_seed[2] for lease in granted]
        assert batches == sorted(batches)
        for lease in granted:
            assert lease.lease not in self.given
            given = self.given[lease.lease] = Given(lease, client, self.now + SECONDS)
            member = self.member(given)
            assert (member.ended, member.holder) == (None, None), "leased to two, or again"
            member.holder, member.expired = lease.lease, None

    @rule(picks=st.lists(PICKS, min_size=1, max_size=4), client=CLIENTS)
    def renew(self, picks: list[int], client: str) -> None:
        names = [given.grant.lease for given in self.picked(picks)]
        wanted = [n for n in names if self.given[n].client == client and self.revived(self.given[n])]
        assert self.queue.renew(client, [*names, "made up"]) == wanted
        for name in wanted:
            self.given[name].deadline = self.now + SECONDS

    def picked(self, picks: list[int]) -> list[Given]:
        """Some leases, the newer ones more often; if there are none some are taken."""
        if not self.given:
            self.lease("ann", len(picks))
        names = list(self.given)[::-1]
        return [self.given[names[place]] for place in sorted({pick % len(names) for pick in picks if names})]

    def revived(self, given: Given) -> bool:
        """Whether a lease is live, or comes alive again because nobody else has taken its attempt."""
        if given.state == "expired":
            member = self.member(given)
            if member.ended is None and member.expired == given.grant.lease:
                given.state = "live"
                member.holder, member.expired = given.grant.lease, None
                member.failures -= 1
        return given.state == "live"

    @rule(picks=st.lists(PICKS, min_size=1, max_size=4), client=CLIENTS, kind=st.sampled_from(KINDS))
    def result(self, picks: list[int], client: str, kind: str) -> None:
        assert self.queue.result(client, "\ud800 made up", "", episode(task()))[0] == "unknown"
        for given in self.picked(picks):
            self.send(given, client if kind == "wrong_client" else given.client, kind)

    def send(self, given: Given, client: str, kind: str = "right") -> None:
        lease = given.grant
        self.replies += 1
        reply = f"reply {self.replies}"
        now = self.version
        versions: dict[str, int | list[int]] = {
            "stale": now - STALENESS - 1,
            "future": now + 1,
            "mixed": [now - STALENESS, now],
        }
        sent = episode(
            task(9, batch=9) if kind == "seed" else lease,
            reply,
            version=versions.get(kind, now),
            ending=Ending.ENV_ERROR if kind == "failed" else Ending.TERMINATED,
        )
        expected = {"stale": "stale", "future": "invalid", "seed": "invalid"}.get(kind, "accepted")
        if client != given.client:
            expected = "wrong_client"
        elif kind == "bad_token":
            expected = "bad_token"
        elif given.state == "accepted":
            expected = "duplicate"
        elif not self.revived(given):
            expected = "late"
        token = "é\ud800" if kind == "bad_token" else lease.token
        try:
            outcome, reason = self.queue.result(client, lease.lease, token, sent)
        except ResultLogError:
            assert self.log.full
            assert expected == "accepted"
            given.deadline = self.now + SECONDS
            return
        assert not (self.log.full and outcome == "accepted")
        assert outcome == expected
        assert bool(reason) == (outcome != "accepted")
        if outcome in ("accepted", "stale", "invalid"):
            member = self.member(given)
            given.state, member.holder = outcome, None
            if outcome == "accepted":
                member.ended = member.on_disk = reply
            else:
                self.failed(member)

    def failed(self, member: Member) -> None:
        member.failures += 1
        if member.failures >= TRIES:
            member.ended, member.expired = UNPLAYABLE, None

    @rule(
        picks=st.lists(PICKS, min_size=1, max_size=3),
        other=st.sampled_from([None, None, "ann"]),
        failed=FAILED,
    )
    def release(self, picks: list[int], other: str | None, failed: bool) -> None:
        for given in self.picked(picks):
            client = other or given.client
            self.queue.release(client, [given.grant.lease, "made up"], "out of memory", failed)
            if client == given.client and given.state in ("live", "expired"):
                self.released(given, failed)

    def released(self, given: Given, failed: bool) -> None:
        member = self.member(given)
        if given.state == "live":
            member.holder = None
            if failed:
                self.failed(member)
        elif member.expired == given.grant.lease:
            member.expired = None
        given.state = "late"

    # Time, and what it brings

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]), noticed=st.sampled_from([True, True, False]))
    def pass_time(self, seconds: float, noticed: bool) -> None:
        self.now += seconds
        if noticed:
            self.expire()

    def expire(self) -> None:
        over = {n for n, g in self.given.items() if g.state == "live" and g.deadline <= self.now}
        assert set(self.queue.expire()) == over
        for name in over:
            given = self.given[name]
            given.state, member = "expired", self.member(given)
            member.holder, member.expired = None, name
            self.failed(member)

    @rule()
    def fill_or_clear_the_disk(self) -> None:
        self.log.full = not self.log.full

    @rule(at_once=st.booleans())
    def crash(self, at_once: bool) -> None:
        """The server is killed, maybe before a result that is on disk was acknowledged; the run continues."""
        live = [given for given in self.given.values() if given.state == "live"]
        if at_once and live and not self.log.full:
            self.log.killing = True
            self.replies += 1
            grant, reply = live[0].grant, f"reply {self.replies}"
            sent = episode(grant, reply, version=self.version)
            with pytest.raises(Killed):
                self.queue.result(live[0].client, grant.lease, grant.token, sent)
            self.member(live[0]).on_disk = reply
        self.log.close()
        full = self.log.full
        self.start()
        self.log.full = full
        self.queue.submit([group.task for group in self.wanted.values()])
        for group in self.wanted.values():
            group.delivered = group.used = False
            group.members = [Member(ended=m.on_disk, on_disk=m.on_disk) for m in group.members]

    @invariant()
    def counts_add_up(self) -> None:
        status = self.queue.status()
        live = {name for name, given in self.given.items() if given.state == "live"}
        assert {lease.lease for lease in status.leases} == live
        assert status.queue.leased == len(live) == sum(status.held.values())
        groups = [group for group in self.wanted.values() if not group.delivered]
        members = [member for group in groups for member in group.members]
        assert status.queue.finished == sum(member.ended is not None for member in members)
        assert status.queue.waiting + status.queue.leased + status.queue.finished == len(members)
        assert status.queue.groups_waiting == sum(
            any(member.ended is None for member in group.members) for group in groups
        )
        counts = status.results
        begun = counts.get("leased", 0) + counts.get("revived", 0)
        assert begun == len(live) + sum(counts.get(end, 0) for end in ENDS)


Interleavings.TestCase.settings = settings(stateful_step_count=50)
TestInterleavings = Interleavings.TestCase
