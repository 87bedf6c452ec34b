"""How long does analysing a run take, and how much memory, as the run grows?

Runs of few to many episodes are synthesised on disk as a trainer records them, email-like: three turns with
calls, errors, reward terms and tokens. Each is analysed in a process of its own; times are CPU-seconds, and
memory is the process's peak, with all libraries loaded.

    python benchmarks/bench_analyze.py                  # 20,000 and 200,000 episodes
    python benchmarks/bench_analyze.py --episodes 1000000
    python benchmarks/bench_analyze.py --json FILE
    python benchmarks/bench_analyze.py --check          # exits 1 if a claim does not hold
    python benchmarks/bench_analyze.py --quick          # small runs: it works
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import harness
import numpy as np

from art_trainer.tracking.episode_store import append_episodes, begin_episodes
from art_trainer.types import Ending, Episode, Group, Span, TokenHistory, Turn

SIZES = (20_000, 200_000)
QUICK = (4_000, 8_000)
MOST_SECONDS = 40.0
"""Claim: at most so many CPU-seconds for 100,000 episodes with their tokens."""
MOST_GROWTH_MB = 30.0
"""Claim: the largest run takes at most so much more memory than the smallest."""
GROUPS, SIZE = 32, 8
TOOLS = ("search", "read", "select")


@dataclass(frozen=True)
class Result:
    """One run analysed."""

    episodes: int
    cpu_seconds: float
    memory_mb: float
    megabytes_on_disk: float

    @property
    def per_100_000(self) -> float:
        return self.cpu_seconds * 100_000 / self.episodes


def make_episode(task: int, seed: int, progress: float, rng: np.random.Generator) -> Episode:
    """An attempt in three turns of twelve sampled and sixty read tokens."""
    success = bool(rng.random() < 0.2 + 0.5 * progress)
    spans, turns = [], []
    for place, tool in enumerate(TOOLS):
        sampled = rng.integers(4000, size=12)
        spans.append(Span(tuple(int(t) for t in rng.integers(4000, size=60))))
        spans.append(Span(tuple(int(t) for t in sampled), place, tuple(float(x) for x in -rng.random(12))))
        wrong = rng.random() < 0.1
        error = {"kind": "unknown_tool", "message": f"no tool `t{rng.integers(10**6)}`"} if wrong else None
        call = None if wrong else {"name": tool, "arguments": {"query": f"words {sampled[0]}"}}
        terms = {"correct": float(success), "quick": 0.05} if place == 2 else {"invalid_action": -0.1 * wrong}
        reply = " ".join(f"word{t % 97}" for t in sampled)
        turns.append(Turn(reply, "result " * 30, float(sum(terms.values())), terms, call, error))
    return Episode(
        "bench/Mail-v0", f"task-{task}", seed, "Find the mail. " * 20, tuple(turns),
        (TokenHistory(tuple(spans)),), Ending.TERMINATED, success, {"turns": 3.0},
    )  # fmt: skip


def make_run(folder: Path, episodes: int) -> None:
    """Write a run of so many episodes; after the first steps their turns are used again under other tasks."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    begin_episodes(folder, {}, 0)
    steps = max(1, episodes // (GROUPS * SIZE))
    batches = [[make_episode(0, 0, k / 9, rng) for _ in range(GROUPS * SIZE)] for k in range(min(10, steps))]
    with (folder / "metrics.jsonl").open("w") as metrics:
        for step in range(1, steps + 1):
            batch = batches[(step - 1) * len(batches) // steps]
            groups = []
            for g in range(GROUPS):
                task, seed = int(rng.integers(10**6)), int(rng.integers(2**31))
                members = batch[g * SIZE : (g + 1) * SIZE]
                groups.append(Group(tuple(_renamed(episode, task, seed) for episode in members)))
            append_episodes(folder, step, groups)
            mean = float(np.mean([episode.reward for episode in batch]))
            metrics.write(json.dumps({"step": float(step), "reward": mean, "entropy": 1.0}) + "\n")


def _renamed(episode: Episode, task: int, seed: int) -> Episode:

    return replace(episode, task_id=f"task-{task}", seed=seed)


def child(folder: Path) -> dict[str, float]:
    """Analyse in this process."""
    from art_trainer.analysis import analyze

    start = time.process_time()
    run = analyze(folder).runs[0]
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"episodes": run.episodes, "cpu_seconds": seconds, "memory_mb": peak}


def measure(episodes: int) -> Result:
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held) / "run"
        make_run(folder, episodes)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
        found = harness.child(__file__, {"folder": str(folder)})
    return Result(int(found["episodes"]), found["cpu_seconds"], found["memory_mb"], size)


def check(results: list[Result]) -> list[str]:
    """The claims that do not hold."""
    last, growth = results[-1], results[-1].memory_mb - results[0].memory_mb
    broken = []
    if last.per_100_000 > MOST_SECONDS:
        broken.append(f"{last.per_100_000:.1f} CPU-s for 100,000 episodes, more than {MOST_SECONDS:g}")
    if growth > MOST_GROWTH_MB:
        broken.append(f"memory grew by {growth:.0f} MB with the run, more than {MOST_GROWTH_MB:g}")
    return broken


def main() -> int:
    parser = harness.parser(__doc__, quick="small runs: it works")
    parser.add_argument("--episodes", type=int, nargs="+", help="how many episodes the runs have")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(child(Path(json.loads(options.child)["folder"]))))
        return 0
    results = [measure(episodes) for episodes in options.episodes or (QUICK if options.quick else SIZES)]
    rows = [
        [
            f"{found.episodes:,}",
            f"{found.cpu_seconds:.2f}",
            f"{found.per_100_000:.1f}",
            f"{found.memory_mb:.1f}",
            f"{found.megabytes_on_disk:.1f}",
        ]
        for found in results
    ]
    heads = ("episodes", "CPU-s", "CPU-s for 100k", "peak MB", "on disk MB")
    harness.show("Analysis of a run", heads, rows)
    return harness.finish(options, {"runs": [asdict(found) for found in results]}, check(results))


if __name__ == "__main__":
    sys.exit(main())
