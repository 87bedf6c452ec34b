"""The ledger: leases, results, groups whole and once; what clients may not do; threads, crashes, books."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from art_trainer.episodes import Ending, Episode, Group
from art_trainer.remote import lease_book
from art_trainer.remote.journal import Journal, JournalError
from art_trainer.remote.journal_lines import Entry
from art_trainer.remote.ledger import BackendClosed, GrantedLease, Ledger, LedgerStatus
from art_trainer.remote.messages import Lease
from art_trainer.starts import GroupTask
from tests.art_trainer.remote.played import TIMING, episode, task


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal")
    yield opened
    opened.close()


@pytest.fixture
def ledger(journal: Journal, clock: Clock) -> Ledger:
    made = Ledger(journal, max_staleness=1, lease_seconds=10, clock=clock)
    made.publish(5)
    return made


def send(ledger: Ledger, lease: GrantedLease, client: str = "ann", **changes: Any) -> str:
    changes = dict[str, Any]({"reply": f"attempt {lease.member}", "version": 5}) | changes
    return ledger.result(client, lease.id, lease.token, episode(lease.task, **changes), TIMING)[0]


def play(ledger: Ledger, *tasks: GroupTask) -> None:
    ledger.submit(tasks)
    wanted = sum(task.size for task in tasks)
    assert [send(ledger, lease) for lease in ledger.lease("ann", wanted)] == ["accepted"] * wanted


def test_a_group_is_leased_played_and_handed_out_once_in_the_order_of_its_attempts(ledger: Ledger) -> None:
    of = task(size=3)
    ledger.submit([of, of])
    leases = ledger.lease("ann", 10)
    assert [(lease.task, lease.member, lease.seconds) for lease in leases] == [
        (of, m, 10.0) for m in range(3)
    ]
    assert len({lease.id for lease in leases} | {lease.token for lease in leases}) == 6
    assert Lease.of(leases[1].id, leases[1].token, of, 1, 10.0).rng_seed == [7, 3, 0, 0, 1]
    for lease in reversed(leases):
        assert ledger.wait([of.id], timeout=0) == []
        assert send(ledger, lease) == "accepted"
    (played,) = ledger.wait([of.id])
    assert played.task == of
    assert [one.turns[0].reply for one in played.episodes] == ["attempt 0", "attempt 1", "attempt 2"]
    assert played.timings == (TIMING,) * 3
    assert Group(played.episodes).whole
    with pytest.raises(ValueError, match="nothing to wait for: all of these groups have been handed out"):
        ledger.wait([of.id], timeout=0)
    ledger.submit([of, task(1, size=1)])
    assert ledger.wait([of.id, task(1).id], timeout=0) == [], "not again"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ledger.wait, [of.id, task(1).id])
        time.sleep(0.02)
        assert [send(ledger, lease) for lease in ledger.lease("ann", 10)] == ["accepted"]
        try:
            assert [played.task for played in waiting.result(60)] == [task(1, size=1)]
        finally:
            ledger.close()  # lets a thread go that nothing has woken


def test_nothing_is_leased_before_weights_are_published_or_after_the_end(journal: Journal) -> None:
    ledger = Ledger(journal)
    ledger.submit([task()])
    assert ledger.lease("ann", 1) == []
    ledger.publish(0)
    assert len(ledger.lease("ann", 1)) == 1
    ledger.close()
    assert ledger.lease("ann", 1) == []


def test_the_oldest_batch_goes_first_and_of_its_groups_those_that_fit_in_whole(ledger: Ledger) -> None:
    ledger.submit([task(0, batch=1, size=4), task(1, batch=1, size=2)])
    ledger.submit([task(0, batch=0, size=3), task(1, batch=0, size=2), task(2, batch=0, size=1)])

    def leased(count: int) -> list[tuple[int, int, int]]:
        return [(e.task.batch, e.task.rng_seed[-1], e.member) for e in ledger.lease("ann", count)]

    assert leased(0) == leased(-1) == []
    assert leased(2) == [(0, 1, 0), (0, 1, 1)], "it fits, the group before does not"
    assert leased(2) == [(0, 2, 0), (0, 0, 0)], "the rest is filled up"
    assert leased(4) == [(0, 0, 1), (0, 0, 2), (1, 1, 0), (1, 1, 1)]
    assert leased(9) == [(1, 0, member) for member in range(4)]


def test_each_fault_of_a_result_has_its_name_and_changes_nothing_for_others(ledger: Ledger) -> None:
    of = task(size=4)
    ledger.submit([of])
    first, second, third, fourth = ledger.lease("ann", 4)
    assert ledger.result("ann", "no such", first.token, episode(of, version=5))[0] == "unknown"
    assert ledger.result("bob", first.id, first.token, episode(of, version=5))[0] == "foreign"
    for token in ("", first.token[:-1], first.token + "x", second.token, "é", "\ud800"):
        assert ledger.result("ann", first.id, token, episode(of, version=5))[0] == "forged"
    assert send(ledger, first) == "accepted"
    assert send(ledger, first) == "duplicate"
    assert ledger.result("bob", first.id, first.token, episode(of, version=5))[0] == "foreign"
    outcome, words = ledger.result("ann", second.id, second.token, episode(of, version=[5, 3]))
    assert outcome == "stale"
    assert words.startswith(
        "it was sampled by weights of version 3; the newest are 5, and 1 older is the most"
    )
    outcome, words = ledger.result("ann", third.id, third.token, episode(of, version=6))
    assert (outcome, words) == ("invalid", "it has tokens of version 6, the newest is 5")
    outcome, words = ledger.result("ann", fourth.id, fourth.token, episode(of, version=5, task_id="b"))
    assert outcome == "invalid"
    assert words.startswith(
        "the episode is of task 'b' in 'made/Env-v0', another attempt of its group of 'task-0'"
    )
    assert send(ledger, fourth) == "late"
    again = ledger.lease("bob", 4)
    assert [lease.member for lease in again] == [1, 2, 3]
    other = ledger.result("bob", again[0].id, again[0].token, episode(task(seed=9), version=5))
    assert other == ("invalid", "the episode has seed 9, the lease seed 0")
    assert send(ledger, again[1], "bob", env_id="another") == "invalid"
    assert send(ledger, again[2], "bob", version=[4, 5]) == "accepted"
    assert ledger.status().results == {
        "leased": 7, "accepted": 2, "unknown": 1, "foreign": 2, "forged": 6, "duplicate": 1,
        "stale": 1, "invalid": 4, "late": 1,
    }  # fmt: skip


def test_of_two_attempts_that_disagree_about_their_task_the_first_counts_even_while_it_is_saved(
    ledger: Ledger, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = task()
    ledger.submit([of])
    one, two = ledger.lease("ann", 2)
    append = journal.append
    seen = []

    def meanwhile(entries: Any) -> None:
        monkeypatch.setattr(journal, "append", append)
        seen.append(send(ledger, two, task_id="b"))
        append(entries)

    monkeypatch.setattr(journal, "append", meanwhile)
    assert send(ledger, one, task_id="a") == "accepted"
    assert seen == ["invalid"]


def test_an_attempt_that_failed_before_it_knew_its_task_is_handed_out_with_the_groups_name(
    ledger: Ledger,
) -> None:
    of = task(size=3)
    ledger.submit([of])
    leases = ledger.lease("ann", 3)
    assert send(ledger, leases[0], ending=Ending.ENV_ERROR, task_id="seed-0") == "accepted"
    assert send(ledger, leases[1], task_id="real") == "accepted"
    assert send(ledger, leases[2], ending=Ending.ENV_ERROR, task_id="seed-0") == "accepted"
    group = Group(ledger.wait([of.id])[0].episodes)
    assert group.task_id == "real"
    assert not group.whole


def test_a_lease_that_is_not_renewed_goes_to_someone_else_and_its_result_is_late(
    ledger: Ledger, clock: Clock
) -> None:
    ledger.submit([task()])
    one, two = ledger.lease("ann", 2)
    assert ledger.next_deadline() == 60.0
    clock.now += 9
    assert ledger.renew("ann", [two.id, "no such"]) == [two.id]
    assert ledger.renew("bob", [two.id]) == []
    assert ledger.expire() == []
    clock.now += 1
    assert ledger.expire() == [one.id]
    assert ledger.next_deadline() == 69.0
    (taken,) = ledger.lease("bob", 5)
    assert taken.member == one.member
    assert send(ledger, one) == "late"
    assert ledger.renew("ann", [one.id, two.id]) == [two.id]
    assert send(ledger, taken, "bob") == "accepted"
    assert send(ledger, one) == "late"
    assert ledger.next_deadline() == 70.0


def test_a_lease_without_end_is_lost_however_well_its_client_says_it_is(
    journal: Journal, clock: Clock
) -> None:
    ledger = Ledger(journal, lease_seconds=10, max_lease_seconds=25, clock=clock)
    ledger.publish(5)
    ledger.submit([task()])
    (hung, *_) = ledger.lease("ann", 1)
    for _ in range(3):
        clock.now += 8
        assert ledger.renew("ann", [hung.id]) == [hung.id]
        assert ledger.expire() == []
    assert ledger.next_deadline() == 75.0
    clock.now += 1
    assert ledger.expire() == [hung.id]
    assert ledger.renew("ann", [hung.id]) == []
    (taken,) = [lease for lease in ledger.lease("bob", 5) if lease.member == hung.member]
    assert send(ledger, hung) == "late"
    assert send(ledger, taken, "bob") == "accepted"


def test_a_client_heard_of_too_late_may_go_on_while_nobody_else_has_its_attempt(
    ledger: Ledger, clock: Clock
) -> None:
    ledger.submit([task()])
    leases = ledger.lease("ann", 2)
    for _ in range(5):  # each time as if it had never happened
        clock.now += 10
        assert len(ledger.expire()) == 2
        assert ledger.renew("ann", [leases[0].id]) == [leases[0].id]
        assert send(ledger, leases[1], version=6) == "invalid"
        leases[1] = ledger.lease("ann", 1)[0]
        if ledger.status().results.get("invalid") == 2:
            break
    clock.now += 10
    assert len(ledger.expire()) == 2
    assert send(ledger, leases[0]) == "accepted"
    counts = ledger.status().results
    assert (counts["expired"], counts["revived"], counts["accepted"]) == (6, 5, 1)


def test_only_the_last_lease_of_an_attempt_that_is_still_wanted_can_come_alive_again(
    ledger: Ledger, clock: Clock, journal: Journal
) -> None:
    of = task(size=1)
    ledger.submit([of])
    (first,) = ledger.lease("ann", 1)
    clock.now += 10
    ledger.expire()
    (second,) = ledger.lease("bob", 1)
    ledger.release("bob", [second.id], "stopping", failed=False)
    assert send(ledger, first) == "late"
    (third,) = ledger.lease("bob", 1)
    clock.now += 10
    ledger.expire()
    ledger.release("bob", [third.id], "stopping after all", failed=False)
    assert send(ledger, third, "bob") == "late"
    (fourth,) = ledger.lease("cy", 1)
    assert send(ledger, fourth, "cy") == "accepted"
    ledger.wait([of.id])
    ledger.requeue(of.id, [0], "too old")
    assert [send(ledger, first), send(ledger, third, "bob"), send(ledger, fourth, "cy")] == [
        "late", "late", "duplicate",
    ]  # fmt: skip
    for client in ("ann", "bob", "cy"):
        (last,) = ledger.lease(client, 1)
        clock.now += 10
        ledger.expire()
    assert send(ledger, last, "cy") == "late", "it has ended as one that nobody could play"
    assert ledger.renew("cy", [last.id]) == []
    assert ledger.wait([of.id])[0].episodes[0].ending is Ending.POLICY_ERROR
    assert [(entry.round, entry.episode is None) for entry in journal.replay()] == [(0, False), (1, True)]
    ledger.requeue(of.id, [0], "once more")
    assert send(ledger, last, "cy") == "late", "that was another round"
    assert len(ledger.lease("cy", 1)) == 1


def test_what_is_given_back_is_free_at_once_and_only_failures_count_as_tries(ledger: Ledger) -> None:
    of = task(size=1)
    ledger.submit([of])
    for _ in range(5):
        (lease,) = ledger.lease("ann", 1)
        ledger.release("bob", [lease.id], "not mine", failed=True)
        assert ledger.lease("bob", 1) == []
        ledger.release("ann", [lease.id, "no such"], "stopping", failed=False)
        assert send(ledger, lease) == "late"
    for tries in range(1, 4):
        assert ledger.wait([of.id], timeout=0) == []
        (lease,) = ledger.lease(f"c{tries}", 1)
        ledger.release(f"c{tries}", [lease.id], "out of memory", failed=True)
    assert ledger.lease("ann", 1) == []
    (played,) = ledger.wait([of.id])
    assert played.episodes == (
        Episode(
            "", "seed-0", 0, "", (), (), Ending.POLICY_ERROR,
            error="nobody could play it in 3 tries; the last time client c3 gave it back: out of memory",
        ),
    )  # fmt: skip
    assert ledger.status().results["unplayable"] == 1


def test_a_client_that_fails_at_once_does_not_use_up_all_the_tries_while_others_ask(
    ledger: Ledger, clock: Clock
) -> None:
    ledger.submit([task(place, size=4) for place in range(3)])
    busy = ledger.lease("ann", 1)
    for _ in range(20):
        ledger.release("bad", [lease.id for lease in ledger.lease("bad", 4)], "broken", failed=True)
    assert ledger.status().results["failed"] == 11
    assert ledger.status().queue.waiting == 11
    assert len(ledger.lease("ann", 20)) == 11
    ledger.release("ann", [lease.id for lease in busy], "stopping", failed=False)
    (one,) = ledger.lease("bad", 5)
    ledger.release("bad", [one.id], "broken", failed=True)
    assert ledger.lease("bad", 5) == []
    clock.now += 10
    ledger.expire()
    assert len(ledger.lease("bad", 20)) == 12, "nobody else has asked for a while"


def test_a_result_that_cannot_be_journalled_is_no_result_and_can_be_sent_again(
    ledger: Ledger, journal: Journal, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.submit([task(size=1)])
    (lease,) = ledger.lease("ann", 1)
    append = journal.append

    def full(entries: Any) -> None:
        clock.now += 30
        assert ledger.expire() == [], "what is being saved does not run out"
        ledger.release("ann", [lease.id], "meanwhile", failed=True)
        raise JournalError("no space")

    monkeypatch.setattr(journal, "append", full)
    with pytest.raises(JournalError):
        send(ledger, lease)
    assert ledger.expire() == []
    assert ledger.lease("bob", 1) == []
    assert ledger.next_deadline() == clock.now + 10
    monkeypatch.setattr(journal, "append", append)
    assert send(ledger, lease) == "accepted"
    assert len(ledger.wait([task().id])) == 1


@pytest.mark.parametrize("works", [True, False])
def test_a_second_result_waits_for_the_first_to_be_saved_and_counts_where_that_one_could_not_be(
    ledger: Ledger, journal: Journal, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    ledger.submit([task(size=1)])
    (lease,) = ledger.lease("ann", 1)
    saving, go_on = threading.Event(), threading.Event()
    append = journal.append

    def slow(entries: Any) -> None:
        monkeypatch.setattr(journal, "append", append)
        saving.set()
        assert go_on.wait(60)
        if not works:
            raise JournalError("no space")
        append(entries)

    monkeypatch.setattr(journal, "append", slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(send, ledger, lease, reply="first")
        assert saving.wait(60)
        second = threads.submit(send, ledger, lease, reply="second")
        time.sleep(0.05)
        assert not second.done(), "nobody knows yet"
        go_on.set()
        assert second.result(60) == ("duplicate" if works else "accepted")
        assert (first.exception(60) is None) == works
    (played,) = ledger.wait([task().id])
    assert played.episodes[0].turns[0].reply == ("first" if works else "second")
    assert len(list(journal.replay())) == 1


def test_attempts_too_old_when_wanted_are_played_again_and_the_group_is_handed_out_again(
    ledger: Ledger,
) -> None:
    of = task(size=3)
    play(ledger, of)
    with pytest.raises(ValueError, match=r"group 7\.3\.0\.0 cannot be played again: it is not handed out"):
        ledger.requeue(of.id, [0], "too old")
    ledger.wait([of.id])
    ledger.requeue(of.id, [2, 0, 2], "too old")
    leases = ledger.lease("bob", 5)
    assert [lease.member for lease in leases] == [0, 2]
    assert [send(ledger, lease, "bob", reply="new") for lease in leases] == ["accepted"] * 2
    (played,) = ledger.wait([of.id])
    assert [one.turns[0].reply for one in played.episodes] == ["new", "attempt 1", "new"]
    ledger.requeue(of.id, [], "the step was broken off")
    assert ledger.wait([of.id]) == [played]
    ledger.publish(6)
    with pytest.raises(ValueError, match="not handed out"):
        ledger.requeue(of.id, [0], "too old")


def test_a_forgotten_batch_is_wanted_no_more_on_disk_and_by_nobody(ledger: Ledger, journal: Journal) -> None:
    old, new = task(batch=3, size=2), task(batch=4, size=1)
    ledger.submit([old, new])
    one, two, three = ledger.lease("ann", 3)
    assert send(ledger, one) == "accepted"
    assert send(ledger, three) == "accepted"
    ledger.forget(4)
    assert send(ledger, two) == "late"
    assert send(ledger, one) == "duplicate"
    assert ledger.renew("ann", [two.id]) == []
    assert [entry.task for entry in journal.replay()] == [new]
    with pytest.raises(ValueError, match=r"group 7\.3\.3\.0 was never submitted, or has been forgotten"):
        ledger.wait([old.id], timeout=0)
    assert len(ledger.wait([new.id])) == 1
    assert ledger.status().queue.groups_waiting == 0
    play(ledger, old)
    assert len(ledger.wait([old.id])) == 1


def test_a_batch_forgotten_while_its_result_is_saved_makes_it_late(
    ledger: Ledger, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.submit([task(size=1)])
    (lease,) = ledger.lease("ann", 1)
    append = journal.append

    def forgotten(entries: Any) -> None:
        ledger.forget(1)
        append(entries)

    monkeypatch.setattr(journal, "append", forgotten)
    assert send(ledger, lease) == "late"
    assert ledger.status().queue.leased == 0


def test_after_a_crash_what_was_accepted_is_taken_up_and_the_rest_is_played(
    ledger: Ledger, journal: Journal, tmp_path: Path
) -> None:
    whole, half, again, used = task(0), task(1), task(2), task(0, batch=1)
    play(ledger, whole, again, used)
    ledger.submit([half])
    leases = ledger.lease("ann", 2)
    assert send(ledger, leases[0]) == "accepted"
    ledger.wait([again.id, used.id])
    ledger.requeue(again.id, [1], "too old")
    (lease,) = ledger.lease("ann", 1)
    assert send(ledger, lease, reply="newer") == "accepted"
    journal.close()

    journal = Journal(tmp_path / "journal")
    ledger = Ledger(journal)
    ledger.publish(5)
    ledger.submit([whole, half, again])
    assert send(ledger, leases[1]) == "unknown"
    ready = ledger.wait([whole.id, half.id, again.id])
    assert [played.task for played in ready] == [whole, again]
    assert [one.turns[0].reply for one in ready[1].episodes] == ["attempt 0", "newer"]
    assert ready[0].timings == (TIMING, TIMING)
    assert ledger.status().results["resumed"] == 5
    (lease,) = ledger.lease("ann", 5)
    assert (lease.task, lease.member) == (half, 1)
    assert send(ledger, lease) == "accepted"
    ledger.submit([used])
    assert len(ledger.wait([half.id, used.id])) == 2
    journal.close()


def test_a_batch_of_the_journal_is_read_once_and_only_when_it_is_asked_for(
    ledger: Ledger, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(ledger, task(), task(batch=1))
    read = []
    replay = journal.replay

    def noted(batch: int) -> Iterator[Entry]:
        read.append(batch)
        return replay(batch)

    monkeypatch.setattr(journal, "replay", noted)
    ledger = Ledger(journal)
    ledger.submit([task(), task(1)])
    ledger.submit([task(2), task(batch=2)])
    assert read == [0, 2]
    assert [len(ledger.wait([task().id])), ledger.status().results["resumed"]] == [1, 2]


def test_what_nobody_could_play_is_journalled_before_it_is_handed_out(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(journal, max_attempts=1)
    ledger.publish(5)
    ledger.submit([task()])
    one, two = ledger.lease("ann", 2)
    ledger.release("ann", [one.id], "it crashes", failed=True)
    assert send(ledger, two) == "accepted"
    with monkeypatch.context() as patch:
        patch.setattr(journal, "append", lambda entries: (_ for _ in ()).throw(JournalError("no space")))
        with pytest.raises(JournalError):
            ledger.wait([task().id])
    before = ledger.wait([task().id])
    journal.close()
    journal = Journal(tmp_path / "journal")
    ledger = Ledger(journal)
    ledger.submit([task()])
    assert ledger.wait([task().id], timeout=0) == before
    assert before[0].episodes[0].error == (
        "nobody could play it in 1 tries; the last time client ann gave it back: it crashes"
    )
    assert before[0].episodes[0].task_id == before[0].episodes[1].task_id
    journal.close()


@pytest.mark.parametrize("other", [task(seed=8), task(size=4)])
def test_a_journal_of_a_run_with_other_settings_is_refused(
    ledger: Ledger, journal: Journal, tmp_path: Path, other: GroupTask
) -> None:
    play(ledger, task())
    journal.close()
    journal = Journal(tmp_path / "journal")
    with pytest.raises(JournalError, match=r"has seed 0 and 2 attempts, in this run seed \d and"):
        Ledger(journal).submit([other])
    journal.close()


def test_closing_wakes_whoever_waits_and_results_under_way_still_count(
    ledger: Ledger, journal: Journal
) -> None:
    ledger.submit([task()])
    leases = ledger.lease("ann", 2)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ledger.wait, [task().id])
        time.sleep(0.02)
        assert not waiting.done()
        ledger.close()
        with pytest.raises(BackendClosed, match="nobody plays any more"):
            waiting.result(60)
    assert [send(ledger, lease) for lease in leases] == ["accepted"] * 2
    assert len(list(journal.replay())) == 2
    with pytest.raises(BackendClosed):
        ledger.wait([task().id], timeout=0)


def test_whoever_hands_out_work_is_told_when_there_is_some(journal: Journal, clock: Clock) -> None:
    told: list[LedgerStatus] = []

    def tell() -> None:
        told.append(talking.status())

    talking = Ledger(journal, lease_seconds=10, clock=clock, on_work=tell)
    talking.publish(5)
    assert told == []
    talking.submit([task()])
    assert told.pop().queue.waiting == 2
    one, two = talking.lease("ann", 2)
    assert send(talking, one) == "accepted"
    assert told == []
    talking.release("ann", [two.id], "stopping", failed=False)
    assert told.pop().queue.waiting == 1
    (two,) = talking.lease("ann", 2)
    assert send(talking, two, version=6) == "invalid"
    assert told.pop().queue.waiting == 1
    talking.lease("ann", 2)
    clock.now += 10
    talking.expire()
    assert told.pop().queue.waiting == 1


def test_the_status_says_where_everything_is(ledger: Ledger, clock: Clock) -> None:
    ledger.submit([task(size=150), task(1, size=2), task(0, batch=1, size=3)])
    early = ledger.lease("ann", 2)
    clock.now += 1
    ledger.lease("bob", 150)
    send(ledger, early[0])
    status = ledger.status()
    assert status.queue.model_dump() == {"waiting": 3, "leased": 151, "finished": 1, "groups_waiting": 3}
    assert status.held == {"ann": 1, "bob": 150}
    assert len(status.leases) == 100
    assert status.leases[0].model_dump() == {
        "lease": early[1].id, "client": "ann", "group": task(1).id, "attempt": 1, "seconds_left": 9.0,
    }  # fmt: skip
    assert {lease.seconds_left for lease in status.leases[1:]} == {10.0}


def test_books_stay_small_however_long_a_run_is_without_a_checkpoint(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, journal: Journal
) -> None:
    monkeypatch.setattr(lease_book, "ENDED_LEASES", 20)
    monkeypatch.setattr(journal, "append", lambda entries: None)
    seen = []
    for batch in range(100):
        ledger.submit([task(batch=batch)])
        leases = ledger.lease("ann", 2)
        seen += leases
        assert [send(ledger, lease, version=5 + batch) for lease in leases] == ["accepted"] * 2
        ledger.wait([task(batch=batch).id])
        ledger.publish(6 + batch)
    book = ledger._book
    assert len(book.leases) == 20
    assert (len(book.groups), len(book.live), len(book.queue)) == (0, 0, 0)
    assert [send(ledger, seen[place]) for place in (0, -1)] == ["unknown", "duplicate"]
    ledger.submit([task(batch=0)])
    assert ledger.lease("ann", 1) == [], "but what was learned from is never played again"


def test_eight_threads_of_clients_and_a_trainer_lose_and_double_nothing(
    journal: Journal, tmp_path: Path
) -> None:
    ledger = Ledger(journal, lease_seconds=0.03, max_attempts=1_000)
    ledger.publish(5)
    tasks = [task(place, batch=place // 10, size=4) for place in range(40)]
    stop = threading.Event()
    accepted: list[list[tuple[str, int, str]]] = [[] for _ in range(8)]

    def client(number: int) -> None:
        name, turn = f"client {number}", 0
        while not stop.is_set():
            turn += 1
            ledger.expire()
            for lease in ledger.lease(name, 1 + number % 3):
                if (turn + number) % 5 == 0:
                    ledger.release(name, [lease.id], "now and then", failed=turn % 2 == 0)
                    continue
                if (turn + number) % 7 == 0:
                    time.sleep(0.04)
                reply = f"{name} turn {turn} {lease.id}"
                outcomes = [send(ledger, lease, name, reply=reply) for _ in range(2)]
                assert outcomes in (["accepted", "duplicate"], ["late", "late"])
                if outcomes[0] == "accepted":
                    accepted[number].append((lease.task.id, lease.member, reply))

    got = _trained(ledger, tasks, client, stop)
    assert sorted(got) == sorted(entry for of_client in accepted for entry in of_client)
    assert len({(group, member) for group, member, _ in got}) == len(got) == 160
    on_disk = [(e.task.id, e.member, e.episode.turns[0].reply) for e in journal.replay() if e.episode]
    assert sorted(on_disk) == sorted(got)
    counts = ledger.status().results
    assert counts["accepted"] == counts["duplicate"] == 160


def _trained(
    ledger: Ledger, tasks: list[GroupTask], client: Callable[[int], None], stop: threading.Event
) -> list[tuple[str, int, str]]:
    """Everything handed out while eight clients play."""
    got = []
    with ThreadPoolExecutor(8) as threads:
        clients = [threads.submit(client, number) for number in range(8)]
        try:
            for batch in range(4):
                wanted = [task for task in tasks if task.batch == batch]
                ledger.submit([*wanted, *(task for task in tasks if task.batch == batch + 1)])
                missing = {task.id for task in wanted}
                while missing:
                    played = ledger.wait(missing, timeout=60)
                    assert played, "nothing came"
                    for group in played:
                        missing.remove(group.task.id)
                        replies = [one.turns[0].reply for one in group.episodes]
                        got += [(group.task.id, member, reply) for member, reply in enumerate(replies)]
        finally:
            stop.set()
        for done in clients:
            done.result(60)
    return got
