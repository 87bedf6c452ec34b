"""What our adapters for TRL's GRPOTrainer cost and gain.

Two questions. How much sooner is a step of TRL's trainer done with this project's ``GymRollout``, which keeps
the cache from turn to turn, than with TRL's own loop over an ``environment_factory``, on workload W of
``learner_workload.py``? The two take turns, each in a process of its own. And what does a tool call through
``environment_factory`` cost beside ``env.step`` with the same reply? All times are CPU-seconds, medians.

    python benchmarks/bench_trl.py                # both, about two minutes
    python benchmarks/bench_trl.py --check        # exits 1 where a claim does not hold
    python benchmarks/bench_trl.py --quick        # two steps, once each: it works
    python benchmarks/bench_trl.py --json FILE
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium as gym

sys.path.insert(0, str(Path(__file__).parent))
from bench_learner import Result, measure
from learner_workload import W

import art_gym  # noqa: F401 (registers the environments)
from art_trainer.trl import environment_factory, task_dataset

CLAIMS = {"step": 1.6, "overhead_us": 100.0}
"""At least so many times the rate of TRL's own loop; at most so many microseconds a tool call."""

_ENV = "art/2048-v0"
_MOVES = ("left", "down", "right", "up")
_CALLS = 400


def step_times(*, quick: bool, threads: int) -> list[Result]:
    """TRL's loop and our rollout inside TRL's trainer, on workload W."""
    steps, rounds = (2, 1) if quick else (5, 2)
    return measure(W, steps, threads, ("trl", "trl+kv"), rounds)


def call_times(*, quick: bool) -> tuple[float, float]:
    """CPU-microseconds of ``env.step`` and of a tool call, in turn, on episodes of the same moves."""
    rows = task_dataset(_ENV, size=2 if quick else 20)
    env, environment = gym.make(_ENV), environment_factory(_ENV)()
    alone: list[float] = []
    inside: list[float] = []
    for row in rows:
        env.reset(seed=row["seed"])
        environment.reset(**row)
        for call in range(_CALLS):
            move = _MOVES[call % len(_MOVES)]
            said = json.dumps({"name": "move", "arguments": {"direction": move}})
            reply = f"<tool_call>\n{said}\n</tool_call>"
            # Whichever comes second finds the parser's caches warm, so they take turns at that.
            if call % 2:
                seconds, (_, _, terminated, truncated, _) = _timed(env.step, reply)
                inside.append(_timed(environment.move, direction=move)[0])  # type: ignore[attr-defined]
            else:
                inside.append(_timed(environment.move, direction=move)[0])  # type: ignore[attr-defined]
                seconds, (_, _, terminated, truncated, _) = _timed(env.step, reply)
            alone.append(seconds)
            if terminated or truncated:
                break
    return statistics.median(alone) * 1e6, statistics.median(inside) * 1e6


def _timed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[float, Any]:
    start = time.process_time()
    result = function(*args, **kwargs)
    return time.process_time() - start, result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="two steps, once each")
    parser.add_argument("--check", action="store_true", help="exit 1 where a claim does not hold")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    alone, inside = call_times(quick=arguments.quick)
    print(f"{_ENV}: env.step {alone:.0f} us, a tool call {inside:.0f} us, {inside - alone:+.0f} us")
    theirs, ours = step_times(quick=arguments.quick, threads=arguments.threads)
    names = {"environment_factory": theirs, "rollout_func": ours}
    print(f"{'way':22}{'step':>8}{'generation':>12}{'memory MB':>11}")
    for name, result in names.items():
        seconds = result.seconds
        print(f"{name:22}{seconds['step']:8.3f}{seconds['generation']:12.3f}{result.memory_mb:11.0f}")
    ratio = theirs.seconds["step"] / ours.seconds["step"]
    print(f"a step: {ratio:.2f} times the rate, the claim is {CLAIMS['step']:g}")
    print(f"a call: {inside - alone:.0f} us more, the claim is at most {CLAIMS['overhead_us']:g}")
    if arguments.json:
        facts = {
            "machine": platform.platform(),
            "processors": os.cpu_count(),
            "threads": arguments.threads,
            "results": {name: asdict(result) for name, result in names.items()},
            "ratios": {"step": ratio},
            "microseconds": {"env.step": alone, "tool call": inside},
        }
        arguments.json.write_text(json.dumps(facts, indent=1))
    good = ratio >= CLAIMS["step"] and inside - alone <= CLAIMS["overhead_us"]
    return 1 if arguments.check and not good else 0


if __name__ == "__main__":
    sys.exit(main())
