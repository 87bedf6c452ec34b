"""How long does analysing a run take, and how much memory, as the run grows?

Runs of few to many episodes are synthesised on disk as a trainer records them, email-like: three turns with
calls, errors, reward terms and tokens. Each is analysed in a process of its own; times are CPU-seconds, and
memory is the process's peak, with all libraries loaded.

    python benchmarks/bench_analyze.py                  # 20,000 and 200,000 episodes
    python benchmarks/bench_analyze.py --episodes 1000000
    python benchmarks/bench_analyze.py --json FILE
    python benchmarks/bench_analyze.py --check          # exits 1 where a claim does not hold
    python benchmarks/bench_analyze.py --quick          # small runs: it works
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from art_trainer.episodes import Ending, Episode, Group, Span, TokenHistory, Turn
from art_trainer.records import EpisodeWriter

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
    writer = EpisodeWriter(folder)
    folder.mkdir(parents=True)
    writer.begin({}, 0, None)
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
            writer.write_step(step, groups)
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
        said = subprocess.run(
            [sys.executable, __file__, "--child", str(folder)], capture_output=True, text=True, check=False
        )
        if said.returncode:
            raise RuntimeError(f"the analysis of {episodes} episodes failed:\n{said.stderr[-2000:]}")
        found = json.loads(said.stdout.strip().splitlines()[-1])
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        print(json.dumps(child(given.child)))
        return
    results = []
    print(f"{'episodes':>10} {'CPU-s':>8} {'CPU-s/100k':>11} {'peak MB':>13} {'on disk MB':>11}")
    for episodes in given.episodes or (QUICK if given.quick else SIZES):
        results.append(found := measure(episodes))
        print(
            f"{found.episodes:>10,} {found.cpu_seconds:>8.2f} {found.per_100_000:>11.1f} "
            f"{found.memory_mb:>13.1f} {found.megabytes_on_disk:>11.1f}",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    if given.check and (broken := check(results)):
        print("\n".join(broken), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
