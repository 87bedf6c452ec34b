"""What does the training server cost? Episodes a second and latencies.

The real server (task queue, result log forced to the disk, strict messages, sockets) with simulated workers:
processes that speak the protocol and answer each lease at once with the same episode, without a model. So
what is measured is the server, and what its messages cost a worker.

    python benchmarks/bench_server.py                     # all parts
    python benchmarks/bench_server.py clients             # one
    python benchmarks/bench_server.py --check             # exits 1 where a claim does not hold
    python benchmarks/bench_server.py --quick             # little of each: shows that it runs

Parts: ``clients`` (1 to 64 of them), ``thousand`` (1,000 of them, whose episodes last ten seconds, and
somebody who watches ``/status``).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np

EPISODE_SECONDS = 10.0
"""What an episode of a real model takes at least: 6 turns of 50 tokens at 30 tokens a second."""
MOST_OVERHEAD = 0.05
MOST_STATUS_MS = 200.0
"""99th percentile of ``/status`` with a thousand workers."""
GROUP = 8
IN_FLIGHT = 4
"""Leases that a simulated worker holds at one time."""


@dataclass(frozen=True)
class Crowd:
    """So many workers at once."""

    clients: int
    episodes: int
    episodes_per_second: float
    lease_ms: tuple[float, float]
    """Median and 99th percentile, from the request to the lease."""
    result_ms: tuple[float, float]
    """Median and 99th percentile, from the result to its receipt, which is sent when it is on disk."""
    server_cpu_ms: float
    """Of this process, an episode."""
    worker_cpu_ms: float
    """Of the workers, an episode."""


def episode_json() -> dict[str, Any]:
    """An episode of the usual size: 6 turns, 600 tokens, about 12 kB."""
    from art_trainer.tracking.episode_schema import episode_to_json
    from art_trainer.types import Ending, Episode, Span, TokenHistory, Turn

    spans = []
    for turn in range(6):
        spans.append(Span(tuple(range(60)), policy_version=0))
        spans.append(Span(tuple(range(40)), turn, tuple(-0.1234567 - 0.001 * i for i in range(40)), 0))
    turns = tuple(Turn("said " * 20, "seen " * 120, 0.1, {"found": 0.1}) for _ in range(6))
    episode = Episode(
        "bench/Episode-v0", "task", 0, "seen " * 200, turns, (TokenHistory(tuple(spans)),), Ending.TERMINATED
    )
    return episode_to_json(episode)


class OneFile:
    """Weights that are one file, as the server's routes ask for them."""

    def __init__(self, file: Path) -> None:
        from art_trainer.distributed.protocol import FileEntry, ModelManifest, WeightManifest

        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        self._file = file
        entry = FileEntry(name="weights.safetensors", size=file.stat().st_size, sha256=digest)
        self._manifest = WeightManifest(policy_version=0, kind="full", file=entry)
        self._model = ModelManifest(files=[])

    def manifest(self, version: int | None = None) -> Any:
        return self._manifest

    def path(self, version: int) -> Path:
        return self._file

    def model(self) -> Any:
        return self._model

    def model_path(self, name: str) -> None:
        return None


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[Any, Any]]:
    """A server with a result log in a folder; yields it and its task queue."""
    from art_trainer.distributed.protocol import Limits, RunSpec
    from art_trainer.distributed.result_log import ResultLog
    from art_trainer.distributed.server import RunProgress, ServerOptions, TrainingServer
    from art_trainer.distributed.task_queue import TaskQueue
    from art_trainer.inference.sampling import SamplingParams
    from art_trainer.serving.http.server import shorten_garbage_collections

    file = folder / "weights"
    file.write_bytes(os.urandom(1000))
    servers: list[Any] = []
    log = ResultLog(folder / "journal")
    queue = TaskQueue(log, on_work=lambda: [server.connections.wake() for server in servers] and None)
    queue.publish(0)
    run = RunSpec(
        env="bench/Episode-v0", env_args={}, sampling=SamplingParams(), record_states=False,
        history_window=None, max_context=None, dtype="float32",
    )  # fmt: skip
    limits = Limits(messages_per_second=1e9, requests_per_second=1e9, burst=10**9)
    options = ServerOptions(limits=limits)
    server = TrainingServer(queue, OneFile(file), run, progress=RunProgress("bench", 1), options=options)
    servers.append(server)
    shorten_garbage_collections()  # as the command does
    try:
        with contextlib.closing(server):
            yield server, queue
    finally:
        queue.close()
        log.close()


class Trainer(threading.Thread):
    """Asks for groups, batch after batch, and takes them, as a trainer would that needs no time to learn."""

    def __init__(self, queue: Any, episodes: int, batch_groups: int) -> None:
        super().__init__(daemon=True)
        self._queue = queue
        self._batches = -(-episodes // (batch_groups * GROUP))
        self._batch_groups = batch_groups
        self.taken = 0

    def run(self) -> None:
        from art_trainer.types import GroupSpec

        def tasks(batch: int) -> list[GroupSpec]:
            return [GroupSpec(0, GROUP, (batch, place), None, batch) for place in range(self._batch_groups)]

        self._queue.submit(tasks(0))
        for batch in range(self._batches):
            if batch + 1 < self._batches:  # the next is there already when one ends
                self._queue.submit(tasks(batch + 1))
            missing = {task.id for task in tasks(batch)}
            while missing:
                for played in self._queue.wait(missing, timeout=60.0):
                    missing.discard(played.task.id)
                    self.taken += len(played.episodes)
            self._queue.discard_before(batch + 1)


def workers(url: str, count: int, name: str, results: Any, seconds: float) -> None:
    """Some simulated workers in one process, until they are told to stop."""

    async def all_of_them() -> list[dict[str, Any]]:
        each = (_worker(url, f"{name}-{i}", seconds, np.random.default_rng(i)) for i in range(count))
        return await asyncio.gather(*each)

    found = asyncio.run(all_of_them())
    merged = {key: [value for each in found for value in each[key]] for key in ("lease", "result")}
    results.put({**merged, "cpu": time.process_time()})


async def _worker(url: str, client_id: str, seconds: float, rng: np.random.Generator) -> dict[str, Any]:
    """Lease, play, answer, and note how long each took, until the socket is closed."""
    import websockets

    from art_trainer.distributed.protocol import EpisodeData, EpisodeResult

    raw = episode_json()
    times: dict[str, Any] = {"lease": [], "result": []}
    address = url.replace("http", "ws", 1) + f"/ws/{client_id}"
    with contextlib.suppress(websockets.ConnectionClosed):
        async with websockets.connect(address, max_size=2**24, compression=None) as socket:
            await socket.send(json.dumps({"type": "hello", "protocol": 1}))
            json.loads(await socket.recv())
            while True:
                asked = time.perf_counter()
                await socket.send(json.dumps({"type": "lease_request", "count": 1 if seconds else IN_FLIGHT}))
                leases = await _next(socket, "train_episodes")
                times["lease"].append(time.perf_counter() - asked)
                for lease in leases["leases"]:
                    await asyncio.sleep(rng.uniform(0, 2 * seconds))
                    # What a real worker does: from the episode to the wire.
                    data = EpisodeData.model_validate_json(json.dumps(raw))
                    result = EpisodeResult(lease=lease["lease"], token=lease["token"], episode=data)
                    sent = time.perf_counter()
                    await socket.send(result.model_dump_json())
                    receipt = await _next(socket, "result_receipt")
                    if receipt["outcome"] != "accepted":
                        raise RuntimeError(f"the server says {receipt}")
                    times["result"].append(time.perf_counter() - sent)
    return times


async def _next(socket: Any, kind: str) -> dict[str, Any]:
    while True:
        message: dict[str, Any] = json.loads(await socket.recv())
        if message["type"] == kind:
            return message
        if message["type"] not in ("update_model", "shutdown"):
            raise RuntimeError(f"the server says {message}")


def crowd(
    clients: int, episodes: int, *, batch_groups: int = 64, seconds: float = 0.0
) -> tuple[Crowd, list[float]]:
    """Let so many workers answer so many episodes, each of which lasts so long on average.

    Returns:
        What it took, and the milliseconds of requests for ``/status``.
    """
    context = multiprocessing.get_context("spawn")
    processes = 1 if clients < 8 else 2
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (server, tasks):
        queue = context.Queue()
        shares = [clients // processes + (i < clients % processes) for i in range(processes)]
        started = [
            context.Process(target=workers, args=(server.url, share, f"w{i}", queue, seconds), daemon=True)
            for i, share in enumerate(shares)
        ]
        for process in started:
            process.start()
        while len(server.connections.statuses({})) < clients:
            time.sleep(0.02)
        cpu, wall = time.process_time(), time.perf_counter()
        trainer, watcher = Trainer(tasks, episodes, batch_groups), Watcher(server.url)
        trainer.start()
        watcher.start()
        trainer.join()
        watcher.over.set()
        watcher.join()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        server.close()
        found = [queue.get(timeout=60) for _ in started]
        for process in started:
            process.join()
    lease = [1e3 * value for each in found for value in each["lease"]]
    result = [1e3 * value for each in found for value in each["result"]]
    taken, theirs = trainer.taken, sum(each["cpu"] for each in found)
    waits = median_and_worst(lease), median_and_worst(result)
    told = Crowd(clients, taken, taken / wall, *waits, 1e3 * cpu / taken, 1e3 * theirs / taken)
    return told, watcher.times


class Watcher(threading.Thread):
    """Asks for ``/status`` again and again, and notes how long it took, in milliseconds."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.times: list[float] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.1):
            began = time.perf_counter()
            with urllib.request.urlopen(f"{self._url}/status", timeout=60) as answer:
                answer.read()
            self.times.append(1e3 * (time.perf_counter() - began))


def median_and_worst(values: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    middle, worst = np.percentile(values, (50, 99))
    return float(middle), float(worst)


def part_clients(quick: bool) -> dict[str, Any]:
    """Episodes a second and latencies, by the number of workers."""
    counts, episodes = ((1, 8), 512) if quick else ((1, 2, 4, 8, 16, 32, 64), 4096)
    rows = [crowd(clients, episodes)[0] for clients in counts]
    lines = []
    for row in rows:
        waits = [f"{middle:.1f} ({worst:.1f})" for middle, worst in (row.lease_ms, row.result_ms)]
        used = [f"{row.server_cpu_ms:.2f}", f"{row.worker_cpu_ms:.2f}"]
        lines.append([str(row.clients), f"{row.episodes_per_second:.0f}", *waits, *used])
    heads = "clients,episodes/s,lease ms (p99),result ms (p99),server CPU ms,worker CPU ms"
    harness.show("CPU of an episode", heads.split(","), lines)
    one = rows[0]
    waited = (one.lease_ms[0] / IN_FLIGHT + one.result_ms[0]) / 1e3
    overhead, share = waited / EPISODE_SECONDS, f"of one of {EPISODE_SECONDS:g} s"
    print(f"One worker waits {1e3 * waited:.1f} ms an episode: {overhead:.2%} {share}.")
    return {"crowds": [asdict(row) for row in rows], "overhead": overhead}


def part_thousand(quick: bool) -> dict[str, Any]:
    """A thousand workers, and how long ``/status`` takes meanwhile."""
    row, status = crowd(1000, 2_000 if quick else 10_000, batch_groups=250, seconds=EPISODE_SECONDS)
    middle, worst = median_and_worst(status)
    print(
        f"{row.episodes_per_second:.0f} episodes/s, result {row.result_ms[0]:.0f} ms (p99 "
        f"{row.result_ms[1]:.0f}), /status {middle:.0f} ms (p99 {worst:.0f}, {len(status)} times)"
    )
    return {"crowd": asdict(row), "status_ms": middle, "status_p99_ms": worst}


PARTS = {"clients": part_clients, "thousand": part_thousand}


def failures(found: dict[str, Any]) -> list[str]:
    """The claims that do not hold, as text."""
    failed = []
    if "clients" in found and found["clients"]["overhead"] >= MOST_OVERHEAD:
        failed.append(f"overhead {found['clients']['overhead']:.2%}, claimed below {MOST_OVERHEAD:.0%}")
    if "thousand" in found and found["thousand"]["status_p99_ms"] >= MOST_STATUS_MS:
        p99 = found["thousand"]["status_p99_ms"]
        failed.append(f"/status takes {p99:.0f} ms (p99), claimed below {MOST_STATUS_MS:.0f}")
    return failed


def main() -> int:
    """Run the parts that are asked for."""
    parser = harness.parser(__doc__, quick="little of each: shows that it runs")
    parser.add_argument("parts", nargs="*", metavar="PART", help="which parts, by default all")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: choose among {', '.join(PARTS)}")
    found = {}
    for part in arguments.parts or PARTS:
        print(f"\n{part}", flush=True)
        found[part] = PARTS[part](arguments.quick)
    last = ""
    if "clients" in found:
        last = f"waiting, of an episode of {EPISODE_SECONDS:g} s: {found['clients']['overhead']:.2%}"
    return harness.finish(arguments, found, failures(found), last)


if __name__ == "__main__":
    sys.exit(main())
