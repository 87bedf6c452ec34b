"""What does each sink cost a training step?

A few real steps are trained with the settings of `make train`: their time is what costs are held against, and
their metrics and episodes are what every sink is then handed, as often as a run has steps. Measured for each
sink: what the thread that trains spends (CPU-seconds, and seconds in which it waits), what the sink's own
thread and those of its library spend meanwhile (they share the interpreter's lock, so at worst that too is
added to a step), and what opening and closing take. W&B's uploads are in a process of its own and not
counted. Steps follow each other faster here than in training: what a sink does every so many seconds, it
does as often per step as it would then.

    python benchmarks/bench_sinks.py                     # all local sinks
    python benchmarks/bench_sinks.py --sinks wandb --json sinks.json
    python benchmarks/bench_sinks.py --check             # exits 1 where a sink costs 1% of a step or more
    python benchmarks/bench_sinks.py --quick             # few steps: shows that it runs
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import harness

LOCAL = ("tensorboard", "wandb", "trackio", "mlflow")
LIMIT = 0.01
"""The claim: the share of a step that all threads together spend on a sink is below this."""
_PAUSE = 0.2
"""Seconds between steps, in which a sink keeps up; a real step takes longer."""
_TABLE_SECONDS = 30.0
"""As W&B's sink has it by default."""


@dataclass(frozen=True)
class Step:
    """One trained step."""

    metrics: dict[str, float]
    groups: list  # type: ignore[type-arg]
    cpu_seconds: float


@dataclass(frozen=True)
class Cost:
    """What a sink costs; seconds a step, but for open and close."""

    sink: str
    steps: int
    training_cpu: float
    training_wall: float
    """In the calls of the thread that trains, waiting included."""
    slowest_call: float
    sink_cpu: float
    """In all other threads."""
    open_and_close_cpu: float
    failures: int
    backfills: int

    def share(self, step_seconds: float) -> float:
        """Of a step, for all threads; the thread that trains may also wait."""
        return (max(self.training_cpu, self.training_wall) + self.sink_cpu) / step_seconds


def real_steps(count: int) -> list[Step]:
    """Train some steps as `make train` does."""
    from art_trainer.cli.run_config import read_recipe
    from art_trainer.rollout.envs import env_maker
    from art_trainer.training.run_settings import Layer, merge_settings
    from art_trainer.training.run_setup import prepare_policy
    from art_trainer.training.trainer import GRPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        given = {"max_steps": count, "output_dir": folder, "threads": 1}
        settings = merge_settings([Layer("recipe", read_recipe("email")), Layer("benchmark", given)])
        policy = prepare_policy(settings, list, checkpoint=None)
        trainer = GRPOTrainer(policy, env_maker(settings.run.env, settings.run.env_args), settings.config)
        steps = []
        for _ in range(count):
            began = time.process_time()
            groups = trainer.collect_episodes()
            metrics = trainer.update_policy(groups)
            steps.append(Step(metrics, groups, time.process_time() - began))
        trainer.close()
    return steps


def measure(sink: str, steps: Sequence[Step], count: int) -> Cost:
    """Hand a sink so many steps, with pauses in which it can work, as a training run leaves it."""
    from art_trainer.tracking.sinks.base import RunInfo, make_sink
    from art_trainer.tracking.sinks.delivery import SinkDispatcher

    with tempfile.TemporaryDirectory() as name:
        config = {"env": "art/Email-v0", "model": "art-tiny", "max_steps": count}
        run = RunInfo(Path(name) / "run", config)
        begun = time.process_time()
        step_seconds = min(step.cpu_seconds for step in steps)
        settings = {"ART_LOG_TABLE_SECONDS": str(_TABLE_SECONDS * _PAUSE / step_seconds)}
        dispatcher = SinkDispatcher(run, [make_sink(sink, settings)], close_seconds=60.0)
        dispatcher.on_begin(0)
        dispatcher.on_logged({**steps[0].metrics, "step": 0.0}, steps[0].groups)
        time.sleep(5.0)  # imports, contact, and what a library does at its first event
        opened = time.process_time() - begun
        walls, cpu = [], 0.0
        all_cpu = time.process_time()
        for number in range(1, count + 1):
            step = steps[number % len(steps)]
            metrics = {**step.metrics, "step": float(number)}
            clock, own = time.perf_counter(), time.thread_time()
            dispatcher.on_logged(metrics, step.groups)
            cpu += time.thread_time() - own
            walls.append(time.perf_counter() - clock)
            time.sleep(_PAUSE)
        time.sleep(1.0)  # the last of it
        sink_cpu = time.process_time() - all_cpu - cpu
        closing = time.process_time()
        dispatcher.on_end("finished")
        ends = opened + time.process_time() - closing
        (status,) = dispatcher.statuses
    wall, slowest, sunk = sum(walls) / count, max(walls), sink_cpu / count
    return Cost(sink, count, cpu / count, wall, slowest, sunk, ends, status.failures, status.backfills)


def main() -> int:
    parser = harness.parser(__doc__, quick="2 real steps, 20 for each sink")
    parser.add_argument("--sinks", default=",".join(LOCAL), help="with commas")
    parser.add_argument("--steps", type=int, default=60, help="steps handed to each sink")
    parser.add_argument("--trained", type=int, default=4, help="real steps")
    options = parser.parse_args()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    scratch = tempfile.TemporaryDirectory()
    for variable in ("TRACKIO_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
        os.environ[variable] = scratch.name

    steps = real_steps(2 if options.quick else options.trained)
    step_seconds = min(step.cpu_seconds for step in steps)
    episodes = sum(len(group.episodes) for group in steps[0].groups)
    print(f"a step of make train: {step_seconds:.2f} CPU-s on one core, {episodes} episodes")
    print(f"{'sink':12} {'training thread':>28} {'other threads':>14} {'of a step':>10} {'ends':>7}")
    costs = []
    for sink in options.sinks.split(","):
        cost = measure(sink, steps, 20 if options.quick else options.steps)
        costs.append(cost)
        shown = f"{cost.training_cpu * 1e6:.0f} µs CPU, {cost.training_wall * 1e6:.0f} µs wall"
        print(
            f"{sink:12} {shown:>28} {cost.sink_cpu * 1e3:11.1f} ms {cost.share(step_seconds):10.2%} "
            f"{cost.open_and_close_cpu:5.1f} s"
        )
    figures = {"step_cpu_seconds": step_seconds, "episodes": episodes, "sinks": [asdict(c) for c in costs]}
    failures = [
        f"{c.sink} takes {c.share(step_seconds):.2%}" for c in costs if c.share(step_seconds) >= LIMIT
    ]
    failures += [f"{c.sink} had failures" for c in costs if c.failures or c.backfills]
    return harness.finish(options, figures, failures)


if __name__ == "__main__":
    sys.exit(main())
