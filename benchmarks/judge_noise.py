"""What is training worth under a judge that is wrong by a known amount, and under a rubric?

Each cell is one training of art-tiny by GRPO on the embedded mailbox, with the settings of its preset but
fewer steps; what it pays is the environment's own reward, the rubric's score (with and without the facts that
tell what was right), or the score of a judge that ranks by the true reward and shuffles a share of the groups
(`art_trainer/noisy_judge.py`). What is measured is always true success on held-out tasks, before and after.
The 95% intervals are over tasks; the luck of training shows between the seeds.

    python benchmarks/judge_noise.py --json noise.json         # 9 rewards, 3 seeds; goes on where it stopped
    python benchmarks/judge_noise.py --json noise.json --plot noise.svg --at-once 2
    python benchmarks/judge_noise.py --noise 0,1 --rewards ""  # some of them
    python benchmarks/judge_noise.py --check                   # exits 1 where the claim does not hold
    python benchmarks/judge_noise.py --quick                   # one seed, 2 steps: shows that it runs
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from art_gym.wrappers.judging import Judge, RubricJudge
from art_trainer.commands.policies import env_maker
from art_trainer.commands.settings import PRESETS, Layer, Settings, merge_settings
from art_trainer.judging import RewardMix, RewardModel
from art_trainer.noisy_judge import NoisyJudge
from art_trainer.plots import COLOURS, Panel, page
from art_trainer.rank_agreement import kendall_tau_b
from art_trainer.run_folder import write_text
from art_trainer.statistics import Interval, paired_difference, wilson_interval
from art_trainer.without_facts import WithoutFacts

ENV, MODEL = "art/Email-v0", "art-tiny"
NOISE = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
BEFORE, NOISY = "before", "noisy:"
REWARDS = ("env", "rubric", "rubric-without-facts")

RISE = 0.5
"""The claim: with a judge that is never wrong, success rises by more than this in every seed."""
CHANCE = 0.05
"""The claim: a fall of success with noise like the one measured has a smaller chance of being luck."""
_SHUFFLES = 10_000


@dataclass(frozen=True)
class Plan:
    """What all cells share."""

    steps: int
    episodes: int
    env_args: Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One training; with the reward `before`, none."""

    reward: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.reward}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What a cell came to, episode by episode; all cells of a seed share their starts, in this order."""

    successes: list[bool]
    tasks: list[str]
    curve: list[float]
    """The share of successes among the episodes sampled at each training step."""
    cpu_seconds: float


def run_cell(cell: Cell, plan: Plan) -> Outcome:
    """Train as the cell says, and evaluate."""
    # Torch takes seconds to import, which the process that only waits need not.
    from art_trainer.commands.preparing import prepare_policy
    from art_trainer.evaluation import evaluate
    from art_trainer.sampler import SamplingParams

    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        settings = cell_settings(cell, plan, folder)
        config = settings.config
        make_env = env_maker(ENV, plan.env_args)
        policy = prepare_policy(settings, list, checkpoint=None)
        curve = [] if cell.reward == BEFORE else train(cell, policy, make_env, config)
        policy.sampling = SamplingParams(
            temperature=config.eval_temperature, max_new_tokens=config.max_completion_length
        )
        found = evaluate(policy, make_env, split="test", episodes=config.eval_episodes, seed=config.seed)
    successes = [bool(result.success) for result in found.results]
    tasks = [result.task_id for result in found.results]
    return Outcome(successes, tasks, curve, time.process_time() - began)


def cell_settings(cell: Cell, plan: Plan, folder: str) -> Settings:
    changes = {
        "env": ENV,
        "env_args": dict(plan.env_args),
        "model": MODEL,
        "seed": cell.seed,
        "max_steps": plan.steps,
        "eval_episodes": plan.episodes,
        "output_dir": folder,
        "threads": 1,
    }
    return merge_settings([Layer(f"preset of {MODEL}", PRESETS[MODEL]), Layer("benchmark", changes)])


def train(cell: Cell, policy: Any, make_env: Any, config: Any) -> list[float]:
    """GRPO by the cell's reward; returns the true success of the sampled episodes, step by step."""
    from art_trainer.trainer import GRPOTrainer

    judge = judge_of(cell)
    reward = None if judge is None else RewardModel(RewardMix({"judge": 1.0}), {"judge": judge})
    trainer = GRPOTrainer(policy, make_env, config, reward=reward)
    curve = []
    while trainer.step < config.max_steps:
        groups = trainer.collect_episodes()
        sampled = [bool(episode.success) for group in groups for episode in group.episodes]
        curve.append(sum(sampled) / len(sampled))
        trainer.update_policy(groups)
    trainer.close()
    if reward is not None:
        reward.close()
    return curve


def judge_of(cell: Cell) -> Judge | None:
    """Who pays in this cell; nobody but the environment for `env`."""
    if cell.reward == "env":
        return None
    if cell.reward == "rubric":
        return RubricJudge()
    if cell.reward == "rubric-without-facts":
        return WithoutFacts(RubricJudge())
    return NoisyJudge(float(cell.reward.removeprefix(NOISY)), cell.seed)


class Results:
    """The cells done so far, in a file that is written as each ends."""

    def __init__(self, file: Path | None, plan: Plan) -> None:
        self._file = file
        self._plan = {**asdict(plan), "preset": dict(PRESETS[MODEL])}
        self.done: dict[Cell, Outcome] = {}
        if file is not None and file.exists():
            self._read(file)

    def _read(self, file: Path) -> None:
        data = json.loads(file.read_text())
        if data["plan"] != self._plan:
            raise SystemExit(
                f"{file} holds cells of another plan: {data['plan']}, not {self._plan}. Name another file."
            )
        for record in data["cells"]:
            cell = Cell(record.pop("reward"), record.pop("seed"))
            self.done[cell] = Outcome(**record)

    def add(self, cell: Cell, outcome: Outcome) -> None:
        self.done[cell] = outcome
        if self._file is not None:
            cells = [{**asdict(one), **asdict(found)} for one, found in self.done.items()]
            write_text(self._file, json.dumps({"plan": self._plan, "cells": cells}) + "\n")


def run_all(cells: Sequence[Cell], plan: Plan, results: Results, at_once: int) -> None:
    """Run the cells that are not done, some at a time, a core each."""
    waiting = [cell for cell in cells if cell not in results.done]
    if not waiting:
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes inherit it
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(at_once, mp_context=context)
    try:
        asked: dict[Future[Outcome], Cell] = {pool.submit(run_cell, cell, plan): cell for cell in waiting}
        for number, future in enumerate(as_completed(asked), start=1):
            cell, outcome = asked[future], future.result()
            results.add(cell, outcome)
            print(
                f"[{number}/{len(waiting)}] {cell.name}: success "
                f"{np.mean(outcome.successes):.3f}, {outcome.cpu_seconds:.0f} CPU-seconds",
                flush=True,
            )
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Row:
    """What one reward came to, over all seeds."""

    reward: str
    after: Interval
    rise: Interval
    by_seed: tuple[float, ...]
    rises: tuple[Interval, ...]

    @property
    def noise(self) -> float | None:
        return float(self.reward.removeprefix(NOISY)) if self.reward.startswith(NOISY) else None


def row_of(reward: str, seeds: Sequence[int], done: Mapping[Cell, Outcome]) -> Row:
    """Gather a reward's seeds; the intervals of their mean draw tasks again, not seeds."""
    outcomes = [done[Cell(reward, seed)] for seed in seeds]
    starts = [done[Cell(BEFORE, seed)] for seed in seeds]
    rises = tuple(difference([one], [other]) for one, other in zip(starts, outcomes, strict=True))
    pooled = [success for outcome in outcomes for success in outcome.successes]
    return Row(
        reward,
        wilson_interval(sum(pooled), len(pooled)),
        difference(starts, outcomes),
        tuple(float(np.mean(outcome.successes)) for outcome in outcomes),
        rises,
    )


def difference(before: Sequence[Outcome], after: Sequence[Outcome]) -> Interval:
    """The rise of success, start by start."""
    tasks = [task for outcome in after for task in outcome.tasks]
    assert tasks == [task for outcome in before for task in outcome.tasks]
    return paired_difference(
        [float(success) for outcome in before for success in outcome.successes],
        [float(success) for outcome in after for success in outcome.successes],
        np.random.default_rng(0),
        clusters=tasks,
    )


def trend(rows: Sequence[Row]) -> tuple[float, float] | None:
    """Kendall's tau-b of final success with noise over all cells, and the chance of one as low by luck.

    The chance is that of a permutation test, whatever the distribution.
    """
    noisy = [(row.noise, success) for row in rows if row.noise is not None for success in row.by_seed]
    noise, success = [p for p, _ in noisy], [s for _, s in noisy]
    tau = kendall_tau_b(noise, success)
    if tau is None:
        return None
    rng = np.random.default_rng(0)
    shuffled = (kendall_tau_b(noise, list(rng.permutation(success))) for _ in range(_SHUFFLES))
    as_low = sum(other is not None and other <= tau + 1e-12 for other in shuffled)
    return tau, (as_low + 1) / (_SHUFFLES + 1)


def show(rows: Sequence[Row], seeds: Sequence[int], before: Sequence[float]) -> None:
    heads = "".join(f"  seed {seed}" for seed in seeds)
    print(f"\n{'reward':22s}  success [95%]           rise [95%], points    {heads}")
    starts = "".join(f"{value:8.3f}" for value in before)
    print(f"{BEFORE:22s}  {np.mean(before):.3f}{'':41s}{starts}")
    for row in rows:
        ends = f"[{row.after.low:.3f}, {row.after.high:.3f}]"
        rise = f"{100 * row.rise.value:+.1f} [{100 * row.rise.low:+.1f}, {100 * row.rise.high:+.1f}]"
        each = "".join(f"{value:8.3f}" for value in row.by_seed)
        print(f"{row.reward:22s}  {row.after.value:.3f} {ends:16s}  {rise:22s}{each}")


def failures_of(rows: Sequence[Row], seeds: Sequence[int], found: tuple[float, float] | None) -> list[str]:
    """What of the claim does not hold, in words."""
    failures = []
    perfect = next((row for row in rows if row.noise == 0), None)
    if perfect is None:
        return ["no cell has a judge without noise"]
    for seed, rise in zip(seeds, perfect.rises, strict=True):
        if not (rise.value > RISE and rise.low > 0):
            failures.append(
                f"seed {seed}: without noise success rose by {rise.value:.3f} (low {rise.low:.3f}), "
                f"not by more than {RISE}"
            )
    if found is None or not (found[0] < 0 and found[1] < CHANCE):
        failures.append(f"success does not fall as noise grows: (tau, chance) is {found}")
    return failures


def plot(rows: Sequence[Row], before: float) -> str:
    """Final success over noise, a dot a seed, beside the other rewards as lines across."""
    noisy = [row for row in rows if row.noise is not None]
    levels = [row.noise for row in noisy if row.noise is not None]
    x_range = (0.0, max([*levels, 1.0]))
    panel = Panel(
        f"{MODEL} on {ENV}, paid by a noisy judge",
        "share of the groups that the judge shuffles",
        "true success after training",
        x_range,
        (0.0, 1.0),
    )
    blue, *others = COLOURS
    for row, level in zip(noisy, levels, strict=True):
        panel.interval(level, row.after.low, row.after.high, blue)
        panel.points([level] * len(row.by_seed), row.by_seed, blue, opacity=0.5)
    if noisy:
        panel.line(levels, [row.after.value for row in noisy], blue)
    flat = [(BEFORE, before)] + [(row.reward, row.after.value) for row in rows if row.noise is None]
    lines = [(name, value, colour) for (name, value), colour in zip(flat, others, strict=False)]
    for _, value, colour in lines:
        panel.line(x_range, (value, value), colour, dashed=True)
    panel.legend([("judge", blue), *((name, colour) for name, _, colour in lines)])
    return page([panel])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--noise", default=",".join(f"{p:g}" for p in NOISE), help="shares of groups shuffled"
    )
    parser.add_argument(
        "--rewards", default=",".join(REWARDS), help=f"other rewards, of {', '.join(REWARDS)}"
    )
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each reward")
    parser.add_argument("--steps", type=int, default=30, help="training steps")
    parser.add_argument("--episodes", type=int, default=256, help="held-out episodes of an evaluation")
    parser.add_argument("--difficulty", type=int, default=1, help="of the environment's questions")
    parser.add_argument("--at-once", type=int, default=1, help="cells at the same time, a core each")
    parser.add_argument("--quick", action="store_true", help="2 noise levels, 1 seed, 2 steps")
    parser.add_argument("--json", type=Path, help="keep finished cells here, and go on from them")
    parser.add_argument("--plot", type=Path, help="draw the curve here, as SVG")
    parser.add_argument("--check", action="store_true", help="exit 1 where the claim does not hold")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.noise, arguments.rewards, arguments.seeds = "0,1", "rubric", 1
        arguments.steps, arguments.episodes = 2, 16
    wanted = [name for name in arguments.rewards.split(",") if name]
    for name in wanted:
        if name not in REWARDS:
            parser.error(f"no reward {name!r}: there are {', '.join(REWARDS)}")
    levels = sorted(float(p) for p in arguments.noise.split(",") if p)
    arguments.rewards = [*wanted, *(f"{NOISY}{p:g}" for p in levels)]
    return arguments


def main() -> int:
    """Command line."""
    arguments = parsed()
    plan = Plan(arguments.steps, arguments.episodes, {"difficulty": arguments.difficulty})
    seeds = range(arguments.seeds)
    cells = [Cell(reward, seed) for seed in seeds for reward in (BEFORE, *arguments.rewards)]
    results = Results(arguments.json, plan)
    run_all(cells, plan, results, arguments.at_once)
    rows = [row_of(reward, seeds, results.done) for reward in arguments.rewards]
    before = [float(np.mean(results.done[Cell(BEFORE, seed)].successes)) for seed in seeds]
    show(rows, seeds, before)
    found = trend(rows)
    if found is not None:
        print(f"Kendall's tau-b of success with noise: {found[0]:+.2f}, by luck with chance {found[1]:.4f}")
    if arguments.plot:
        write_text(arguments.plot, plot(rows, float(np.mean(before))))
    failures = failures_of(rows, seeds, found)
    for failure in failures:
        print(failure)
    cpu = math.fsum(results.done[cell].cpu_seconds for cell in cells)
    print(f"CPU-seconds in all: {cpu:.0f}")
    figures = [f"{row.reward} {row.after.value:.3f}" for row in rows]
    print(f"success {np.mean(before):.3f} -> {', '.join(figures)}")
    return 1 if arguments.check and failures else 0


if __name__ == "__main__":
    sys.exit(main())
