"""Trainings side by side: some ways to train a task, over seeds, each a process, kept as each one ends."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from art_gym.wrappers.judging import Judge
from art_trainer.cli.run_config import read_recipe
from art_trainer.rollout.envs import env_maker
from art_trainer.rollout.statistics import paired_difference, rate_interval
from art_trainer.tracking.run_dir import write_text
from art_trainer.training.run_settings import Layer, merge_settings
from art_trainer.types import Interval

BEFORE = "before"
"""The way that trains nothing."""
WINDOW = 3
"""Training steps whose mean counts as the level reached: one step's batch is luck to a part."""
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Two-sided 95% quantiles of Student's t, by the number of seeds."""


@dataclass(frozen=True)
class Task:
    """A recipe, and what is measured of an episode."""

    recipe: str
    measure: str
    """``"success"`` or ``"reward"``."""
    steps: int
    episodes: int
    """Held-out episodes of an evaluation."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings over the recipe, for all ways."""
    ways: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings over that, by the way."""
    threshold: float = math.inf
    """The level whose reaching is timed; about half way up."""


@dataclass(frozen=True)
class Cell:
    """One training; none with the way :data:`BEFORE`."""

    task: str
    way: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What a cell came to; all cells of a task and seed share their starts, in this order."""

    held_out: list[float]
    """The measure, episode by episode."""
    tasks: list[str]
    curve: list[float]
    """The measure's mean over the episodes sampled at each training step."""
    episodes: int
    tokens: int
    seconds: float
    """CPU-seconds of rollouts and updates, without warm start and evaluation."""
    explained_variance: float | None = None
    """How much of the last step's returns the value head explained beforehand."""

    @property
    def level(self) -> float:
        return float(np.mean(self.held_out))


@dataclass(frozen=True)
class Row:
    """One way on one task, over all seeds."""

    way: str
    outcomes: tuple[Outcome, ...]
    final: Interval
    rise: Interval
    """Over the starts, drawing tasks again, not seeds."""
    rises: tuple[Interval, ...]
    """Seed by seed."""

    @property
    def by_seed(self) -> list[float]:
        return [outcome.level for outcome in self.outcomes]

    @property
    def spread(self) -> float:
        return statistics.stdev(self.by_seed) if len(self.outcomes) > 1 else math.nan

    def mean(self, name: str) -> float:
        """The mean over the seeds of a field of :class:`Outcome`."""
        return statistics.fmean(getattr(outcome, name) for outcome in self.outcomes)


def row_of(task: str, way: str, seeds: Sequence[int], done: Mapping[Cell, Outcome]) -> Row:
    """Gather a way's seeds."""
    before = [done[Cell(task, BEFORE, seed)] for seed in seeds]
    after = [done[Cell(task, way, seed)] for seed in seeds]
    pooled = [value for outcome in after for value in outcome.held_out]
    return Row(
        way,
        tuple(after),
        rate_interval(pooled, np.random.default_rng(0)),
        _difference(before, after),
        tuple(_difference([one], [other]) for one, other in zip(before, after, strict=True)),
    )


def _difference(before: Sequence[Outcome], after: Sequence[Outcome]) -> Interval:
    tasks = [task for outcome in after for task in outcome.tasks]
    assert tasks == [task for outcome in before for task in outcome.tasks]
    values = [[value for outcome in part for value in outcome.held_out] for part in (before, after)]
    return paired_difference(values[0], values[1], np.random.default_rng(0), clusters=tasks)


def run_cell(cell: Cell, tasks: Mapping[str, Task], judge_of: Callable[[Cell], Judge | None]) -> Outcome:
    """Train as the cell says, and play the held-out starts."""
    # Torch takes seconds to import, which the process that only waits need not.

    from art_trainer.inference.sampling import SamplingParams
    from art_trainer.rollout.evaluate import evaluate
    from art_trainer.training.run_setup import env_texts, prepare_policy, warm_up

    task = tasks[cell.task]
    given = {"seed": cell.seed, "max_steps": task.steps, "eval_episodes": task.episodes, "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        layers = [read_recipe(task.recipe), {**given, "output_dir": folder}, task.changes]
        layers += [task.ways.get(cell.way, {})]
        settings = merge_settings([Layer("benchmark", layer) for layer in layers])
        run, config = settings.run, settings.config
        make_env = env_maker(run.env, {**run.env_args, **run.train_env_args})
        policy = prepare_policy(settings, lambda: env_texts(settings, make_env), checkpoint=None)
        if run.warm_start is not None:
            warm_up(policy, settings, make_env)
        began = time.process_time()
        steps = [] if cell.way == BEFORE else _train(policy, make_env, config, task.measure, judge_of(cell))
        seconds = time.process_time() - began
        policy.sampling = SamplingParams.for_evaluation(config)
        found = evaluate(policy, make_env, episodes=config.eval_episodes, seed=config.seed)
    return Outcome(
        held_out=[_value(result, task.measure) for result in found.results],
        tasks=[result.task_id for result in found.results],
        curve=[step["measure"] for step in steps],
        episodes=config.groups_per_step * config.num_generations * len(steps),
        tokens=int(sum(step["num_tokens"] for step in steps)),
        seconds=seconds,
        explained_variance=steps[-1].get("explained_variance") if steps else None,
    )


def _train(
    policy: Any, make_env: Any, config: Any, measure: str, judge: Judge | None
) -> list[dict[str, float]]:
    """Train to the end; returns each step's metrics, with the measure's mean."""
    from art_trainer.rollout.judge_rewards import JudgeRewards, RewardMix
    from art_trainer.training.trainer import GRPOTrainer

    reward = None if judge is None else JudgeRewards(RewardMix({"judge": 1.0}), {"judge": judge})
    trainer = GRPOTrainer(policy, make_env, config, reward=reward)
    steps = []
    while trainer.step < config.max_steps:
        groups = trainer.collect_episodes()
        sampled = [_value(episode, measure) for group in groups for episode in group.episodes]
        steps.append({**trainer.update_policy(groups), "measure": float(np.mean(sampled))})
    trainer.close()
    if reward is not None:
        reward.close()
    return steps


def _value(result: Any, measure: str) -> float:
    return float(getattr(result, measure) or 0.0)


def no_judge(cell: Cell) -> Judge | None:
    """The environment pays."""
    return None


def run_cells(
    cells: Sequence[Cell],
    tasks: Mapping[str, Task],
    *,
    at_once: int,
    file: Path | None,
    judge_of: Callable[[Cell], Judge | None] = no_judge,
) -> dict[Cell, Outcome]:
    """Run the cells that a file does not hold yet, each in a process with one thread.

    Args:
        cells: Those wanted.
        tasks: By the cells' names.
        at_once: How many run at the same time.
        file: Written whenever a cell ends; cells of other tasks are refused. ``None``: nothing is kept.
        judge_of: Who pays in a cell; a function of a module.
    """
    named = {name: {**asdict(task), "settings": read_recipe(task.recipe)} for name, task in tasks.items()}
    plan = json.loads(json.dumps(named))
    done: dict[Cell, Outcome] = {}
    if file is not None and file.exists():
        data = json.loads(file.read_text())
        if data["plan"] != plan:
            raise SystemExit(f"{file} holds cells of another plan, {data['plan']}: name another file")
        done = {Cell(**one["cell"]): Outcome(**one["outcome"]) for one in data["cells"]}
    waiting = [cell for cell in cells if cell not in done]
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes inherit it
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_once, mp_context=spawn, max_tasks_per_child=1) as pool:
        work = partial(run_cell, tasks=tasks, judge_of=judge_of)
        asked = {pool.submit(work, cell): cell for cell in waiting}
        for number, future in enumerate(as_completed(asked), start=1):
            cell, outcome = asked[future], future.result()
            done[cell] = outcome
            if file is not None:
                kept = [{"cell": asdict(c), "outcome": asdict(o)} for c, o in done.items()]
                write_text(file, json.dumps({"plan": plan, "cells": kept}) + "\n")
            name = f"{cell.task}, {cell.way}, seed {cell.seed}"
            level = f"{outcome.level:.4g}, {outcome.seconds:.0f} CPU-seconds of training"
            print(f"[{number}/{len(waiting)}] {name}: {level}", flush=True)
    return done


# What the curves of several seeds say.


def smoothed(curve: Sequence[float]) -> list[float]:
    """The mean of each step and those just before it, ``WINDOW`` in all."""
    return [statistics.fmean(curve[max(i + 1 - WINDOW, 0) : i + 1]) for i in range(len(curve))]


def steps_to(curve: Sequence[float], threshold: float) -> int | None:
    """The first training step, from 1, at which the level reached the threshold; ``None`` if none did."""
    levels = smoothed(curve)[WINDOW - 1 :]
    return next((i + WINDOW for i, level in enumerate(levels) if level >= threshold), None)


def fell_back(curve: Sequence[float]) -> bool:
    """Whether a training lost half of what it had gained, if that was a tenth of its start or more."""
    levels = smoothed(curve)
    gained, kept = max(levels) - levels[0], levels[-1] - levels[0]
    return gained > 0.1 * abs(levels[0]) and kept < gained / 2


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean with Student's 95% interval; of more than ten seeds the normal one.

    One seed says nothing of the spread: both ends are NaN.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, math.nan, math.nan, len(values))
    half = STUDENT.get(len(values), 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))
