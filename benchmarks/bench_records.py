"""What does an episode cost on the disk, and how long does it take to write and to read?

Real episodes: the embedded model on the embedded mailbox, and scripted programmers on the coding tasks, in
the embedded model's tokens, with log-probabilities drawn at random (they compress as badly as real ones). All
that an update needs is kept: tokens, masks, log-probs, versions, rewards by term, judgements. Compared are
what the package writes (Zstandard JSONL, log-probs as base64), the same lines by gzip, the same with
log-probs as decimals, and Parquet with nested columns. Times are CPU-seconds of one core.

    python benchmarks/bench_records.py               # the table
    python benchmarks/bench_records.py --json FILE
    python benchmarks/bench_records.py --check       # exits 1 where a claim does not hold
    python benchmarks/bench_records.py --quick       # a few episodes: it works
"""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import gymnasium as gym
import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import art_gym  # noqa: F401 (registers the environments)
from art_trainer.inference.sampling import SamplingParams
from art_trainer.models.loading import ModelOptions
from art_trainer.rollout.envs import EnvPool
from art_trainer.rollout.episodes import group_specs, rollout_groups
from art_trainer.tracking.episode_schema import episode_from_json, episode_to_line
from art_trainer.tracking.episode_store import FILE, append_episodes, iter_episodes
from art_trainer.training.run_setup import local_policy
from art_trainer.training.sft import collect_demonstrations
from art_trainer.types import Episode, EpisodeSpec, Group, Span, TokenHistory

CHOSEN = "zstd JSONL"
CLAIMS = {"bytes": 2000.0, "write_us": 400.0, "read_us": 400.0}
"""At most so much an episode, of what the package writes."""
_SPAN = pa.struct(
    [("history", pa.int32()), ("turn", pa.int32()), ("version", pa.int64()), ("tokens", pa.list_(pa.int32())),
     ("logprobs", pa.list_(pa.float32()))]
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """An episode's, on average."""

    episodes: str
    way: str
    bytes: float
    write_us: float
    read_us: float


def email_groups(groups: int, size: int) -> list[Group]:
    """What the embedded model plays on the embedded mailbox."""
    policy = local_policy(
        "art-tiny", ModelOptions(), sampling=SamplingParams(temperature=1.0, max_new_tokens=48)
    )
    with EnvPool(lambda: gym.make("art/Email-v0")) as pool:
        options = {"split": "train"}
        return rollout_groups(
            policy, pool, group_specs(list(range(groups)), size, options=options, rng_seed=1)
        )


def coding_groups(groups: int, size: int) -> list[Group]:
    """What scripted programmers say, each attempt with mistakes of its own."""
    policy = local_policy("art-tiny", ModelOptions(), sampling=SamplingParams())
    starts = [
        EpisodeSpec(task, {"split": "train"}, task, (task, k)) for task in range(groups) for k in range(size)
    ]
    with EnvPool(lambda: gym.make("art/Coding-v0")) as pool:
        played = collect_demonstrations(policy, pool, "demonstrator", starts, noise=0.5, keep=lambda _: True)
    rng = np.random.default_rng(0)
    played = [_with_logprobs(episode, rng) for episode in played]
    return [Group(tuple(played[first : first + size])) for first in range(0, len(played), size)]


def _with_logprobs(episode: Episode, rng: np.random.Generator) -> Episode:
    def drawn(span: Span) -> Span:
        values = -rng.exponential(0.5, len(span.logprobs)).astype(np.float32)
        return replace(span, logprobs=tuple(values.tolist()))

    histories = [TokenHistory(tuple(map(drawn, history.spans))) for history in episode.histories]
    return replace(episode, histories=tuple(histories))


def package_cost(name: str, groups: Sequence[Group], steps: int) -> Cost:
    """As the trainer writes and everybody reads."""
    count = sum(len(group.episodes) for group in groups)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        write = _seconds(lambda: [append_episodes(run, step, groups) for step in range(steps)]) / steps
        size = (run / FILE).stat().st_size / steps
        read = _seconds(lambda: [None for _ in iter_episodes(folder)]) / steps
    return Cost(name, CHOSEN, size / count, 1e6 * write / count, 1e6 * read / count)


def gzip_cost(way: str, name: str, groups: Sequence[Group], steps: int) -> Cost:
    """Of JSON lines by gzip."""
    episodes = [episode for group in groups for episode in group.episodes]
    packed: list[bytes] = []

    def write() -> None:
        text = "".join(episode_to_line(episode, {}) + "\n" for episode in episodes)
        packed.append(gzip.compress(text.encode(), 6))

    def read() -> None:
        for line in gzip.decompress(packed[0]).splitlines():
            episode_from_json(json.loads(line))

    spent = _seconds(lambda: [write() for _ in range(steps)]) / steps
    again = _seconds(lambda: [read() for _ in range(steps)]) / steps
    count = len(episodes)
    return Cost(name, way, len(packed[0]) / count, 1e6 * spent / count, 1e6 * again / count)


def parquet_cost(name: str, groups: Sequence[Group], steps: int) -> Cost:
    """Of nested columns, one row group a step, Zstandard inside; what has no fixed form is JSON text.

    Read are its rows, which are no episodes yet.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    plain = [field.name for field in fields(Episode) if field.name != "histories"]
    schema = pa.schema([*((column, pa.string()) for column in plain), ("spans", pa.list_(_SPAN))])
    buffer = io.BytesIO()

    def row(episode: Episode) -> dict[str, object]:
        data = asdict(replace(episode, histories=()))
        spans = [
            {"history": index, "turn": span.turn, "version": span.policy_version,
             "tokens": span.token_ids, "logprobs": span.logprobs}
            for index, history in enumerate(episode.histories) for span in history.spans
        ]  # fmt: skip
        return {column: json.dumps(data[column]) for column in plain} | {"spans": spans}

    def write() -> None:
        with pq.ParquetWriter(buffer, schema, compression="zstd") as writer:
            for _ in range(steps):
                writer.write_table(pa.Table.from_pylist(list(map(row, episodes)), schema=schema))

    spent = _seconds(write)
    size = len(buffer.getvalue()) / steps
    again = _seconds(lambda: pq.read_table(io.BytesIO(buffer.getvalue())).to_pylist())
    count = len(episodes) * steps
    return Cost(name, "Parquet", size / len(episodes), 1e6 * spent / count, 1e6 * again / count)


def fsync_ms() -> float:
    """The median wait for the disk after a step of 200 kB, milliseconds of wall time."""
    waits = []
    with tempfile.TemporaryFile() as stream:
        for _ in range(20):
            stream.write(os.urandom(200_000))
            stream.flush()
            start = time.perf_counter()
            os.fsync(stream.fileno())
            waits.append(1e3 * (time.perf_counter() - start))
    return sorted(waits)[10]


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> int:
    parser = harness.parser(__doc__, quick="a few episodes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    groups, size, steps = (2, 2, 2) if arguments.quick else (16, 8, 8)
    costs = []
    for name, made in (("email", email_groups(groups, size)), ("coding", coding_groups(groups, size))):
        costs += [
            package_cost(name, made, steps),
            gzip_cost("gzip JSONL", name, made, steps),
            parquet_cost(name, made, steps),
        ]
    print(f"{'episodes':10s}{'way':16s}{'bytes':>8s}{'write µs':>10s}{'read µs':>10s}")
    for cost in costs:
        print(f"{cost.episodes:10s}{cost.way:16s}{cost.bytes:8.0f}{cost.write_us:10.0f}{cost.read_us:10.0f}")
    wait = fsync_ms()
    print(f"fsync of a step: {wait:.2f} ms")
    failures = [
        f"{cost.episodes}: {name} is {getattr(cost, name):.0f}, above {limit:.0f}"
        for cost in costs
        if cost.way == CHOSEN
        for name, limit in CLAIMS.items()
        if getattr(cost, name) > limit
    ]
    figures = {"costs": [asdict(cost) for cost in costs], "fsync_ms": wait}
    return harness.finish(arguments, figures, failures)


if __name__ == "__main__":
    sys.exit(main())
