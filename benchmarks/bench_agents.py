"""What does the server of agents add to a reply? 500 attempts at once, each with a URL of its own.

The real server (sockets, parsing, chat template, recording of tokens) in this process, and in another process
scripted agents over OpenAI's API: six requests each, in a conversation that grows. In place of a model, each
reply comes after four seconds, as long as one takes in a batch of 500, and the attempts begin spread over
that time. So what a client waits beyond the four seconds is the server's, the connection's and its own.

    python benchmarks/bench_agents.py
    python benchmarks/bench_agents.py --check     # exits 1 where a claim does not hold
    python benchmarks/bench_agents.py --quick     # 20 attempts: shows that it runs
"""

from __future__ import annotations

import asyncio
import collections
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import harness
import numpy as np
import psutil

REQUESTS = 6
SAMPLING_SECONDS = 4.0
SAID = "call number one of the search for the budget of the northern office"
OBSERVATION = "subject the budget of the northern office from ann on monday " * 4
MOST_MS = 20.0
MOST_KIB = 512.0


@dataclass(frozen=True)
class Load:
    """So many attempts at once."""

    attempts: int
    requests: int
    lost: int
    """Replies that were received and not recorded, or the other way round."""
    overhead_ms: tuple[float, float]
    """Median and 99th percentile of what a client waits beyond the sampling."""
    server_cpu_ms: float
    """Of this process, a request."""
    kib_an_attempt: float
    """What the server's memory grew by, an attempt."""


def make_server() -> Any:
    """The agent server of a small model, whose replies come after their time without it being asked."""
    from art_trainer.inference.transformers_policy import TransformersPolicy
    from art_trainer.serving.agents import AgentServer
    from art_trainer.serving.dialects.batch_scheduler import BatchScheduler as Scheduler
    from art_trainer.serving.dialects.batch_scheduler import GenerationJob, GenerationOutput, TokenRun
    from art_trainer.training.scratch_model import ScratchSize, scratch_model

    size = ScratchSize(hidden_size=32, heads=2, vocabulary_size=400, max_context=4096)
    policy = TransformersPolicy(*scratch_model([SAID, OBSERVATION] * 2, size=size), name="policy")

    class Waiting(Scheduler):
        """Answers each job after the same time."""

        def __init__(self) -> None:
            super().__init__(policy)
            self._due: collections.deque[tuple[float, GenerationJob]] = collections.deque()
            self._reply = [*policy.tokenizer(SAID)["input_ids"], policy.format.end_of_turn]
            threading.Thread(target=self._answer, daemon=True).start()

        def submit(self, jobs: Sequence[GenerationJob]) -> None:
            self._due.extend((time.perf_counter() + SAMPLING_SECONDS, job) for job in jobs)

        def _answer(self) -> None:
            while True:
                now = time.perf_counter()
                while self._due and self._due[0][0] <= now:
                    _, job = self._due.popleft()
                    run = TokenRun(list(self._reply), [-0.5] * len(self._reply), [])
                    output = GenerationOutput(run, stopped=True, hit_stop_string=False, version=0)
                    job.started_version = 0
                    job.result.set_result(output)
                time.sleep(max(0.001, self._due[0][0] - now) if self._due else 0.01)

    server = AgentServer(policy)
    server.scheduler.close()
    server.scheduler = Waiting()
    return server


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str, body: bytes) -> Any:
    """Send one request over an open connection; return the reply's message. Client libraries cost more."""
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    answered = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    content = await reader.readexactly(int(answered.partition("content-length:")[2].split()[0]))
    if " 200 " not in answered[:20]:
        raise RuntimeError(f"{answered}{content.decode()}")
    return json.loads(content)["choices"][0]["message"]


async def attempt(url: str, token: str, delay: float = 0.0) -> list[float]:
    """Play one attempt after a delay; return what it waited beyond the sampling, a request."""
    await asyncio.sleep(delay)
    address, _, path = url.removeprefix("http://").partition("/")
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST /{path}/chat/completions HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n"
        "content-type: application/json\r\n"
    )
    messages: list[dict[str, Any]] = [{"role": "user", "content": OBSERVATION}]
    waits = []
    for _ in range(REQUESTS):
        body, started = json.dumps({"messages": messages}).encode(), time.perf_counter()
        said = await ask(reader, writer, head, body)
        waits.append(time.perf_counter() - started - SAMPLING_SECONDS)
        messages += [said, {"role": "user", "content": OBSERVATION}]
    writer.close()
    return waits


def play(places: Sequence[tuple[str, str]]) -> list[list[float]]:
    """Play all attempts; they begin spread over the time of one reply."""

    async def all_of_them() -> list[list[float]]:
        delays = np.random.default_rng(0).uniform(0, SAMPLING_SECONDS, len(places))
        return await asyncio.gather(*map(attempt, *zip(*places, strict=True), delays))

    return asyncio.run(all_of_them())


def measure(attempts: int) -> Load:
    """Play attempts against one server, after one that is not counted."""
    from art_trainer.serving.http.server import shorten_garbage_collections

    memory_of = psutil.Process().memory_info
    with make_server() as server:
        first = server.open()
        asyncio.run(attempt(server.base_url(first), first.token))
        shorten_garbage_collections()  # as the command does
        sessions = [server.open(number) for number in range(attempts)]
        places = [(server.base_url(session), session.token) for session in sessions]
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as agents:
            playing = agents.submit(play, places)
            began, memory = time.process_time(), memory_of().rss
            waits = np.array(playing.result())
            used, grown = time.process_time() - began, memory_of().rss - memory
        recorded = sum(len(session.recording.turns(0.0)) for session in sessions)
        whole = sum(len(session.recording.histories()) == 1 for session in sessions)
    lost = abs(waits.size - recorded) + attempts - whole
    overhead = float(np.median(waits) * 1e3), float(np.percentile(waits, 99) * 1e3)
    return Load(attempts, waits.size, lost, overhead, 1e3 * used / waits.size, grown / 1024 / attempts)


def main() -> int:
    """Measure, print the table, and check the claims."""
    arguments = harness.parser(__doc__).parse_args()
    loads = [measure(count) for count in ((20,) if arguments.quick else (50, 500))]
    rows = [
        [str(one.attempts), str(one.requests), str(one.lost), f"{one.overhead_ms[0]:.1f}",
         f"{one.overhead_ms[1]:.1f}", f"{one.server_cpu_ms:.1f}", f"{one.kib_an_attempt:.0f}"]
        for one in loads
    ]  # fmt: skip
    headings = ["attempts", "requests", "lost", "median ms", "99% ms", "CPU ms a request", "KiB an attempt"]
    harness.show("Beside sampling, an agent waits", headings, rows)
    most = loads[-1]
    claims = {
        "no reply is lost": most.lost == 0,
        f"99% of the replies come within {MOST_MS:g} ms": most.overhead_ms[1] < MOST_MS,
        f"an attempt takes less than {MOST_KIB:g} KiB": most.kib_an_attempt < MOST_KIB,
    }
    failures = [claim for claim, holds in claims.items() if not holds]
    last = f"{most.attempts} attempts at once: {most.overhead_ms[1]:.1f} ms beside sampling (99th percentile)"
    return harness.finish(arguments, {"loads": [asdict(one) for one in loads]}, failures, last)


if __name__ == "__main__":
    sys.exit(main())
