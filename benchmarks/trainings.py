"""Trainings side by side: some ways to train a task, over seeds, each a process, kept as each one ends."""

from __future__ import annotations

import json
import multiprocessing
import os
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
    """Settings over the recipe."""


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
    seconds: float
    """CPU-seconds of rollouts and updates, without warm start and evaluation."""

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
        settings = merge_settings([Layer("benchmark", layer) for layer in layers])
        run, config = settings.run, settings.config
        make_env = env_maker(run.env, {**run.env_args, **run.train_env_args})
        policy = prepare_policy(settings, lambda: env_texts(settings, make_env), checkpoint=None)
        if run.warm_start is not None:
            warm_up(policy, settings, make_env)
        began = time.process_time()
        if cell.way != BEFORE:
            _train(policy, make_env, config, judge_of(cell))
        seconds = time.process_time() - began
        policy.sampling = SamplingParams.for_evaluation(config)
        found = evaluate(policy, make_env, episodes=config.eval_episodes, seed=config.seed)
    return Outcome(
        held_out=[_value(result, task.measure) for result in found.results],
        tasks=[result.task_id for result in found.results],
        seconds=seconds,
    )


def _train(policy: Any, make_env: Any, config: Any, judge: Judge | None) -> None:
    """Train to the end."""
    from art_trainer.rollout.judge_rewards import JudgeRewards, RewardMix
    from art_trainer.training.trainer import GRPOTrainer

    reward = None if judge is None else JudgeRewards(RewardMix({"judge": 1.0}), {"judge": judge})
    trainer = GRPOTrainer(policy, make_env, config, reward=reward)
    while trainer.step < config.max_steps:
        trainer.update_policy(trainer.collect_episodes())
    trainer.close()
    if reward is not None:
        reward.close()


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
