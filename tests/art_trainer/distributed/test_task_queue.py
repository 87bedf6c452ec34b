"""The task queue beyond its state machine: order, reasons, blocking calls, threads."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from art_trainer.config import LeaseOptions
from art_trainer.distributed import task_queue
from art_trainer.distributed.protocol import Lease
from art_trainer.distributed.result_log import Entry, ResultLog, ResultLogError
from art_trainer.distributed.task_queue import BackendClosedError, TaskQueue
from art_trainer.types import Episode, GroupSpec
from tests.art_trainer.distributed.played import episode, member_of, task
from tests.art_trainer.waiting import until


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=50.0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ResultLog]:
    opened = ResultLog(tmp_path / "log")
    yield opened
    opened.close()


@pytest.fixture
def queue(log: ResultLog, clock: SimpleNamespace) -> TaskQueue:
    made = TaskQueue(log, max_staleness=1, options=LeaseOptions(lease_seconds=10), clock=lambda: clock.now)
    made.publish(5)
    return made


def send(queue: TaskQueue, lease: Lease, client: str = "ann", **changes: Any) -> str:
    changes = dict[str, Any]({"reply": f"attempt {member_of(lease)}", "version": 5}) | changes
    return queue.result(client, lease.lease, lease.token, episode(lease, **changes)).outcome


def test_a_waiting_trainer_gets_whole_groups_in_order_and_closing_loses_no_results(queue: TaskQueue) -> None:
    assert queue.lease("ann", 1) == []
    queue.submit([task(size=3)] * 2)
    leases = queue.lease("ann", 10)
    assert [(lease.rng_seed, lease.lease_seconds) for lease in leases] == [
        ([7, 3, 0, 0, member], 10.0) for member in range(3)
    ]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.wait, [task().id])
        assert [send(queue, lease) for lease in reversed(leases)] == ["accepted"] * 3
        (completed,) = waiting.result(60)
        assert [one.turns[0].reply for one in completed.episodes] == [f"attempt {n}" for n in range(3)]
        assert completed.task == task(size=3)
        for name in (task().id, "7.7"):  # delivered; never submitted
            with pytest.raises(ValueError, match=r"wait for|submitted"):
                queue.wait([name], timeout=0)
        queue.submit([task(2)])
        (last, *_) = queue.lease("ann", 2)
        waiting = threads.submit(queue.wait, [task(2).id])
        queue.close()
        with pytest.raises(BackendClosedError):
            waiting.result(60)
    assert queue.lease("ann", 1) == []
    assert send(queue, last) == "accepted"


def test_old_batches_go_first_and_groups_stay_together(queue: TaskQueue) -> None:
    queue.submit([task(0, batch=1, size=3)])
    queue.submit([task(0, batch=0, size=3), task(1, batch=0, size=1)])

    def leased(count: int) -> list[tuple[int, ...]]:
        return [tuple(lease.rng_seed[2:]) for lease in queue.lease("ann", count)]

    assert leased(0) == []
    assert leased(2) == [(0, 0, 0), (0, 0, 1)]
    assert leased(3) == [(0, 0, 2), (0, 1, 0), (1, 0, 0)]
    assert leased(9) == [(1, 0, 1), (1, 0, 2)]


def test_a_lease_ends_after_its_longest_time_even_if_renewed(log: ResultLog, clock: SimpleNamespace) -> None:
    queue = TaskQueue(log, options=LeaseOptions(10, max_lease_seconds=25), clock=lambda: clock.now)
    queue.publish(5)
    queue.submit([task(size=1)])
    (hung,) = queue.lease("ann", 1)
    for _ in range(3):
        clock.now += 8
        assert queue.renew("ann", [hung.lease]) == [hung.lease]
        assert queue.expire() == []
    clock.now += 1
    assert queue.expire() == [hung.lease]
    assert queue.renew("ann", [hung.lease]) == []
    (taken,) = queue.lease("bob", 5)
    assert send(queue, hung) == "late"
    assert send(queue, taken, "bob") == "accepted"


def test_a_client_that_always_fails_does_not_use_up_all_tries(
    queue: TaskQueue, clock: SimpleNamespace
) -> None:
    queue.submit([task(place, size=4) for place in range(3)])
    queue.lease("ann", 1)
    for _ in range(20):
        failing = [lease.lease for lease in queue.lease("bad", 4)]
        queue.release("bad", failing, "broken", failed=True)
    assert queue.status().results["failed"] == queue.status().queue.waiting == 11
    clock.now += 10
    queue.expire()
    assert len(queue.lease("bad", 20)) == 12, "nobody else has asked for a while"


@pytest.mark.parametrize("works", [True, False])
def test_a_second_result_waits_until_the_first_is_written(
    queue: TaskQueue, log: ResultLog, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    queue.submit([task(size=1)])
    (lease,) = queue.lease("ann", 1)
    writing, go_on = threading.Event(), threading.Event()
    append = log.append

    def slow(entries: Any) -> None:
        monkeypatch.setattr(log, "append", append)
        writing.set()
        assert go_on.wait(300)
        if not works:
            raise ResultLogError("no space")
        append(entries)

    monkeypatch.setattr(log, "append", slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(send, queue, lease, reply="first")
        assert writing.wait(300)
        clock.now += 30
        assert queue.expire() == [], "a lease whose result is being written does not expire"
        queue.release("ann", [lease.lease], "meanwhile", failed=True)
        second = threads.submit(send, queue, lease, reply="second")
        until(lambda: len(queue._changed._waiters) == 1)
        go_on.set()
        assert second.result(60) == ("duplicate" if works else "accepted")
        assert (first.exception(60) is None) == works
    (completed,) = queue.wait([task().id])
    assert completed.episodes[0].turns[0].reply == ("first" if works else "second")
    assert len(list(log.replay())) == 1


def test_a_result_of_a_discarded_batch_is_late(
    queue: TaskQueue, log: ResultLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.submit([task(size=1)])
    (lease,) = queue.lease("ann", 1)
    append = log.append

    def discarding(entries: Any) -> None:
        queue.discard_before(1)
        append(entries)

    monkeypatch.setattr(log, "append", discarding)
    assert send(queue, lease) == "late"
    assert queue.status().queue.leased == 0


@pytest.mark.parametrize("other", [task(seed=8), task(size=4)])
def test_a_log_with_another_group_of_the_same_name_is_refused(log: ResultLog, other: GroupSpec) -> None:
    log.append([Entry(task(), 0, 0, episode(task()))])
    with pytest.raises(ResultLogError, match=r"has seed 0 and 2 attempts, in this run seed \d and"):
        TaskQueue(log).submit([other])


def test_memory_stays_bounded(queue: TaskQueue, monkeypatch: pytest.MonkeyPatch, log: ResultLog) -> None:
    monkeypatch.setattr(task_queue, "MAX_ENDED_LEASES", 20)
    monkeypatch.setattr(log, "append", lambda entries: None)
    seen = []
    for batch in range(100):
        queue.submit([task(batch=batch)])
        leases = queue.lease("ann", 2)
        seen += leases
        for lease in leases:
            assert send(queue, lease, version=5 + batch, env_id="memory") == "accepted"
        queue.wait([task(batch=batch).id])
        queue.publish(6 + batch)
    assert (len(queue._ended), len(queue._groups), len(queue._live)) == (20, 0, 0)
    gc.collect()
    kept = [one for one in gc.get_objects() if type(one) is Episode and one.env_id == "memory"]
    assert len(kept) < 5, "ended leases keep no episodes"
    assert [send(queue, seen[place]) for place in (0, -1)] == ["unknown", "duplicate"]
    queue.submit([task(batch=0)])
    assert queue.lease("ann", 1) == [], "what was trained on is never played again"


def test_eight_threads_lose_and_double_nothing(log: ResultLog) -> None:
    queue = TaskQueue(log, options=LeaseOptions(0.03, max_attempts=1_000))
    queue.publish(5)
    missing = {one.id: one for one in (task(place, batch=place // 10, size=4) for place in range(40))}
    queue.submit(list(missing.values()))
    accepted: list[tuple[str, int, str]] = []
    delivered: list[tuple[str, int, str]] = []

    def client(number: int) -> None:
        name, turn = f"client {number}", 0
        while missing:
            turn += 1
            queue.expire()
            for lease in queue.lease(name, 1 + number % 3):
                if (turn + number) % 5 == 0:
                    queue.release(name, [lease.lease], "now and then", failed=turn % 2 == 0)
                    continue
                if (turn + number) % 7 == 0:
                    time.sleep(0.04)
                reply = f"{name} turn {turn} {lease.lease}"
                outcomes = [send(queue, lease, name, reply=reply) for _ in range(2)]
                assert outcomes in (["accepted", "duplicate"], ["late", "late"])
                if outcomes[0] == "accepted":
                    accepted.append((lease.group, member_of(lease), reply))

    with ThreadPoolExecutor(8) as threads:
        clients = [threads.submit(client, number) for number in range(8)]
        try:
            while missing:
                for group in queue.wait(missing, timeout=300):
                    del missing[group.task.id]
                    replies = (one.turns[0].reply for one in group.episodes)
                    delivered += [(group.task.id, member, reply) for member, reply in enumerate(replies)]
        finally:
            missing.clear()
        for done in clients:
            done.result(60)
    on_disk = [(e.task.id, e.member, e.episode.turns[0].reply) for e in log.replay()]
    assert sorted(delivered) == sorted(accepted) == sorted(on_disk)
    assert len({(group, member) for group, member, _ in delivered}) == 160
