"""A training server and workers that play, break off, come again, lie, or talk nonsense, on real sockets."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from art_trainer.distributed import worker_connections
from art_trainer.distributed.protocol import Lease, Limits, TrainEpisodes
from art_trainer.distributed.result_log import ResultLog, ResultLogError
from art_trainer.distributed.server import RunProgress
from tests.art_trainer.distributed.played import task
from tests.art_trainer.distributed.server_helpers import Served, Wire, played, served
from tests.art_trainer.waiting import until


def closed(worker: Wire) -> tuple[int, str]:
    """How the server closes a socket, after what it still says."""
    try:
        while True:
            worker.hear()
    except ConnectionClosed as end:
        return (end.rcvd.code, end.rcvd.reason) if end.rcvd is not None else (1006, "")


def results(here: Served) -> dict[str, int]:
    return here.server.status().results


def seconds_left(here: Served, lease: dict[str, Any]) -> float | None:
    """How long a lease lasts yet; ``None`` if it is over."""
    return {each.lease: each.seconds_left for each in here.server.status().leases}.get(lease["lease"])


def test_two_workers_play_a_group_and_each_attempt_counts_once(tmp_path: Path) -> None:
    with served(tmp_path) as here, here.worker("a") as a, here.worker("b", software={"torch": "2"}) as b:
        for worker in (a, b):
            worker.say(type="lease_request", count=8)  # before there is anything
        until(lambda: len(here.server.connections._pending_requests) == 2)
        here.queue.submit([task(0, size=4)])
        granted = [(worker, worker.hear()["leases"]) for worker in (a, b)]
        assert [len(leases) for _, leases in granted] == [2, 2]
        assert {lease["group"] for _, leases in granted for lease in leases} == {task(0).id}
        status = here.server.status()
        assert (status.queue.leased, status.queue.waiting, len(status.leases)) == (4, 0, 4)
        shown = [(client.id, client.leases, client.connected, client.software) for client in status.clients]
        assert shown == [("a", 2, True, {}), ("b", 2, True, {"torch": "2"})]
        for worker, leases in granted:
            for lease in leases:
                assert worker.play(lease, reward=float(lease["rng_seed"][-1]))["outcome"] == "accepted"
        (group,) = here.queue.wait([task(0).id], 300)
        assert [episode.reward for episode in group.episodes] == [0, 1, 2, 3]
        assert a.play(granted[0][1][0])["outcome"] == "duplicate"
        assert results(here)["accepted"] == 4


def test_work_for_many_is_handed_out_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_connections, "_GRANTS", 1)
    with served(tmp_path) as here, here.worker("a") as a, here.worker("b") as b, here.worker("c") as c:
        for worker in (a, b, c):
            worker.say(type="lease_request", count=8)
        until(lambda: len(here.server.connections._pending_requests) == 3)
        here.queue.submit([task(0, size=6)])
        assert [len(worker.hear()["leases"]) for worker in (a, b, c)] == [2, 2, 2]


def test_who_can_get_nothing_does_not_keep_the_next_from_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_connections, "_GRANTS", 1)
    with served(tmp_path) as here, here.worker("a") as a, here.worker("b") as b:
        here.queue.submit([task(0, size=2)])
        (lease,), _ = a.lease(), b.lease()
        for place, worker in enumerate((a, b), 1):
            worker.say(type="lease_request", count=1)
            until(lambda place=place: len(here.server.connections._pending_requests) == place)
        a.say(type="release_leases", leases=[lease["lease"]], reason="broken", failed=True)
        assert [granted["rng_seed"] for granted in b.hear()["leases"]] == [lease["rng_seed"]]


def test_the_number_of_known_workers_is_limited(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(clients=2)) as here, here.worker("a"):
        with here.worker("b"), here.worker("c") as third:
            assert third.welcome["code"] == "too_many_clients"
        until(lambda: not here.server.status().clients[1].connected)
        with here.worker("c"):
            assert [client.id for client in here.server.status().clients] == ["a", "c"]


def test_the_newer_connection_of_a_client_takes_over(tmp_path: Path) -> None:
    with served(tmp_path) as here, here.worker("a") as old:
        old.say(type="lease_request", count=4)
        with here.worker("a", secret=old.welcome["secret"]) as new:
            assert closed(old)[0] == 1000
            here.queue.submit([task(0)])
            assert len(new.lease(2)) == 2
            assert [client.connected for client in here.server.status().clients] == [True]
        until(lambda: not here.server.status().clients[0].connected)


@pytest.mark.parametrize(
    ("hello", "code"), [({"secret": "guessed"}, "id_taken"), ({"protocol": 2}, "wrong_protocol")]
)
def test_a_refused_hello_takes_nothing_from_the_client(
    tmp_path: Path, hello: dict[str, Any], code: str
) -> None:
    with served(tmp_path) as here, here.worker("a") as worker:
        here.queue.submit([task(0)])
        lease = worker.lease()[0]
        with here.worker("a", leases=[lease["lease"]], **hello) as other:
            assert other.welcome["code"] == code
        assert worker.play(lease, token="forged")["outcome"] == "bad_token"
        assert worker.play(lease)["outcome"] == "accepted"


@pytest.mark.parametrize("fault", ["a message that is too large", "a full disk"])
def test_a_fault_costs_the_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def fail(self: ResultLog, entries: Any) -> None:
        raise ResultLogError("No space left on device")

    with served(tmp_path, limits=Limits(message_bytes=100_000)) as here:
        here.queue.submit([task(0)])
        with here.worker("a") as worker:
            lease = worker.lease()[0]
            if fault == "a full disk":
                with monkeypatch.context() as patch:
                    patch.setattr(ResultLog, "append", fail)
                    answer = worker.play(lease)
                assert (answer["code"], answer["fatal"], closed(worker)[0]) == ("not_logged", False, 1013)
            else:
                worker.say(**played(lease, more="x" * 100_000))
                assert closed(worker)[0] == 1009
        with here.worker("a", secret=worker.welcome["secret"], leases=[lease["lease"]]) as again:
            assert again.welcome["leases"] == [lease["lease"]]
            assert [again.play(lease)["outcome"] for _ in range(2)] == ["accepted", "duplicate"]
        assert results(here) == {"leased": 1, "accepted": 1, "duplicate": 1}


def test_invalid_client_ids_are_refused(tmp_path: Path) -> None:
    with served(tmp_path) as here:
        for name in ("-a", "..", ".hidden", "a" * 65, "a%20b", "a%00", "%C3%A4", "a%0a"):
            with here.worker(name) as worker:
                assert worker.welcome["code"] == "bad_client_id", name
        for name in ("..%2f..%2fetc", "a/b", ""):
            with pytest.raises(InvalidStatus) as caught, here.worker(name):
                pass
            assert caught.value.response.status_code in (403, 404), name
        assert here.server.status().clients == []


UPDATE = {"policy_version": 0, "episodes_played": 3, "episodes_per_second": 0.5, "last_error": "oh"}
NONSENSE = [
    "",
    "[]",
    '{"type": "reboot"}',
    '{"type": "lease_request", "count": "8"}',
    '{"type": "lease_request", "count": 0}',
    '{"type": "lease_request", "count": 1, "more": 2}',
    json.dumps({"type": "status_update", "leases": [], **UPDATE, "episodes_per_second": float("nan")}),
    json.dumps({"type": "release_leases", "leases": ["x"] * 5000, "reason": "", "failed": False}),
    '{"type": "hello", "protocol": 1}',
    "[" * 100_000 + "]" * 100_000,
    "\ud7ff" * 10,
]


def test_invalid_messages_are_answered_with_errors(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(malformed=100)) as here, here.worker() as worker:
        here.queue.submit([task(0)])
        lease = worker.lease()[0]
        result = json.dumps(played(lease))
        endless = result.replace('"reward": 1.0', '"reward": Infinity')
        nested = result.replace('"facts": {}', f'"facts": {{"a": {"[" * 400 + "]" * 400}}}')
        for text in (*NONSENSE, endless, nested):
            worker.socket.send(text)
            answer = worker.hear()
            assert (answer["type"], answer["code"], answer["fatal"]) == ("error", "malformed", False), text
            assert len(answer["message"]) < 300
        assert worker.play(lease)["outcome"] == "accepted"
        assert results(here)["malformed"] == len(NONSENSE) + 2


def test_too_many_invalid_messages_close_the_socket(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(malformed=3)) as here, here.worker() as worker:
        for _ in range(3):
            worker.socket.send(b"\x80\x04K\x01.")
        assert [worker.hear()["fatal"] for _ in range(3)] == [False, False, True]
        assert closed(worker) == (1008, "malformed")
        until(lambda: not here.server.status().clients[0].connected)


def test_the_first_message_is_a_hello(tmp_path: Path) -> None:
    with served(tmp_path) as here:
        for text in ('{"type": "lease_request", "count": 1}', "{"):
            with here.dial() as dialled:
                dialled.send(text)
                assert json.loads(dialled.recv(30))["fatal"]
        assert here.server.status().clients == []


def test_leases_expire_without_heartbeats(tmp_path: Path) -> None:
    now = [0.0]
    with (
        served(tmp_path, lease_seconds=10, clock=lambda: now[0]) as here,
        here.worker("alive") as alive,
        here.worker("hung") as hung,
    ):
        here.queue.submit([task(0)])
        kept, lost = alive.lease()[0], hung.lease()[0]
        for now[0] in (9.0, 18.0):
            alive.say(type="status_update", leases=[kept["lease"]], **UPDATE)
            until(lambda: seconds_left(here, kept) == 10)
        until(lambda: results(here).get("expired") == 1)
        assert seconds_left(here, lost) is None
        again = alive.lease()[0]
        assert again["rng_seed"] == lost["rng_seed"]
        assert [alive.play(lease)["outcome"] for lease in (kept, again)] == ["accepted"] * 2
        assert hung.play(lost)["outcome"] == "late"
        shown = here.server.status().clients[0]
        assert (shown.id, shown.episodes_played, shown.last_error) == ("alive", 3, "oh")


def test_a_worker_that_does_not_read_is_dropped_and_delays_nobody(tmp_path: Path) -> None:
    lease = Lease.of("l" * 200, "t" * 200, task(0), 0, 60.0)
    large = TrainEpisodes(policy_version=0, leases=[lease] * 4096)  # 2 MB
    limits = Limits(queued_messages=3, send_seconds=60)
    with served(tmp_path, limits=limits) as here, here.worker("reads") as reads, here.deaf() as outbox:
        for _ in range(12):
            here.server.connections._call_soon(lambda: outbox.put(large))
            here.server.connections.announce(5)
            assert reads.hear()["policy_version"] == 5
        assert outbox.closed
        assert outbox._queue.qsize() == 1  # why it is closed; what waited is given up


def test_a_worker_that_has_stopped_is_noticed_by_its_silence(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(ping_seconds=1)) as here, here.worker("alive"), here.deaf():
        for _ in range(4):
            here.server.connections.announce(5)  # so that its buffer is full, and pings are not read
        until(lambda: [client.connected for client in here.server.status().clients] == [True, False])


@pytest.mark.parametrize(("code", "kept"), [(1000, 0), (1001, 1)], ids=["done", "away for a moment"])
def test_only_a_worker_that_is_done_loses_its_leases_at_once(tmp_path: Path, code: int, kept: int) -> None:
    with served(tmp_path) as here, here.worker("a") as a:
        here.queue.submit([task(0, size=1)])
        a.lease()
        a.socket.close(code)
        until(lambda: not here.server.status().clients[0].connected)
        assert here.server.status().queue.leased == kept


def test_a_server_that_drains_takes_results_and_gives_out_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as here, here.worker("a") as a, here.worker("b") as b:
        here.queue.submit([task(0)])
        lease = a.lease()[0]
        with ThreadPoolExecutor(1) as thread:
            draining = thread.submit(here.server.drain, "the end", 60)
            for worker in (a, b):
                assert worker.hear() == {"type": "shutdown", "reason": "the end"}
            b.say(type="lease_request", count=1)  # in vain
            b.socket.close()
            assert a.play(lease)["outcome"] == "accepted"  # what was being played still counts
            with here.worker("late") as late:
                assert late.hear()["type"] == "shutdown"
            a.socket.close()
            draining.result(30)
        assert here.server.status().state == "draining"
        assert here.server.status().queue.leased == 0


def test_the_state_is_starved_without_workers(tmp_path: Path) -> None:
    progress = RunProgress("run", 10)
    with served(tmp_path, progress=progress) as here:
        assert here.server.status().state == "starting"
        progress.on_begin(2)
        assert here.server.status().state == "training"  # nothing is asked for yet
        here.queue.submit([task(0)])
        assert here.server.status().state == "starved"
        with here.worker():
            assert here.server.status().state == "training"
        until(lambda: here.server.status().state == "starved")


def test_time_left_follows_the_last_steps() -> None:
    now = [0.0]
    progress = RunProgress("run", 100, clock=lambda: now[0])
    assert progress.seconds_left is None
    progress.on_begin(0)
    for step in range(1, 31):
        now[0] += 10 if step <= 10 else 1
        progress.on_step({"step": float(step)})
    assert (progress.step, progress.seconds_left) == (30, pytest.approx(70))
    progress.on_end("finished")
    progress.draining()
    assert progress.state == "finished"
