"""A training run in which your own program plays: ``art-trainer train --agent``."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from art_trainer.cli.console import episode_bar, print_settings, unless_quiet
from art_trainer.cli.live_view import TrainingProgress
from art_trainer.cli.training_run import (
    print_results,
    reported,
    run_trainer,
    write_evaluation,
    write_settings,
)
from art_trainer.errors import ConfigError, TrainerError
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.envs import choose_split, env_maker, train_split
from art_trainer.rollout.judge_rewards import ENV, RewardMix
from art_trainer.serving.agents.command import (
    CommandAgent,
    Program,
    RewardFunction,
    load_reward,
    read_tasks,
)
from art_trainer.serving.agents.rollouts import Agent, AgentBackend, AgentLimits
from art_trainer.serving.http.server import shorten_garbage_collections
from art_trainer.signals import sigterm_as_sigint
from art_trainer.tracking.run_dir import AFTER, BEFORE
from art_trainer.training.distributed import init_distributed
from art_trainer.training.run_settings import SCRATCH, RunSettings, Settings
from art_trainer.training.run_setup import (
    find_checkpoint,
    make_loggers,
    prepare_policy,
    reward_model,
    sized_for,
)
from art_trainer.training.trainer import EVALUATION_SEED, GRPOTrainer
from art_trainer.types import Episode

ATTEMPTS = "attempts"
"""Folder of a run with a folder for each attempt: what the program printed, and where it worked."""
_GRACE = 30.0
"""Seconds that an attempt may take beside the program: to begin, to end, and for its reward."""
_UNUSED = (
    "engine", "warm_start", "history_window", "baselines", "backend", "train_env_args", "opponent", "seat",
)  # fmt: skip
_OF_ENV, _OF_TASKS = ("env_args", "test_split"), ("eval_tasks",)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Job:
    """The program and its tasks."""

    program: Program
    agent: Agent
    tasks: Sequence[Any]
    eval_tasks: Sequence[Any]


def train_agent(settings: Settings, console: Console, *, dry_run: bool = False) -> None:
    """Train the model of a program that plays by itself; evaluate it before and after on held-out tasks.

    Args:
        settings: All settings.
        console: Where tables and progress are shown.
        dry_run: Only say what would be run.

    Raises:
        ConfigError: The settings contradict each other, or name a file that is missing or wrong.
        typer.Exit: With code 130 after Ctrl-C.
        StalledError: If the run cannot learn; a checkpoint and a report were written too.
    """
    _check(settings)
    job, loggers = _job(settings), make_loggers(settings)
    if dry_run:
        shown = shlex.join(job.program.arguments(job.tasks[0])) if settings.run.tasks else settings.run.agent
        typer.echo(f"{settings.episodes_per_step} attempts a step. The first task: {shown}")
        typer.echo("A dry run: nothing was loaded, trained or written.")
        return
    with init_distributed(settings.run.process_timeout) as processes, sigterm_as_sigint():
        if processes.size > 1:
            raise ConfigError("agent is set: start one process, an agent's attempts are not divided")
        folder, out = settings.folder, unless_quiet(console, settings)
        print_settings(settings, out)
        checkpoint = find_checkpoint(settings)
        policy = prepare_policy(settings, tuple, checkpoint=checkpoint)
        settings = sized_for(settings, policy.model.device)  # type: ignore[arg-type]
        if checkpoint is None:
            write_settings(settings)
        _log.info("Run folder: %s", folder.path)
        shorten_garbage_collections()
        with reported(folder, "train"), ExitStack() as stack:
            stack.callback(job.program.close)
            limits = AgentLimits(settings.run.agent_timeout + _GRACE, settings.run.agent_concurrency)
            backend = AgentBackend(job.agent, job.tasks, policy, eval_tasks=job.eval_tasks, limits=limits)
            stack.callback(backend.close)
            _evaluate(BEFORE, settings, policy, backend, out)
            progress = TrainingProgress(out, settings.episodes_per_step)
            reward = None if _reward_file(settings) else reward_model(settings.run, folder.path)
            callbacks = [progress, *loggers]
            trainer = GRPOTrainer(
                policy, None, settings.config, callbacks=callbacks, reward=reward, backend=backend
            )
            run_trainer(trainer, settings, progress, checkpoint)
            _evaluate(AFTER, settings, policy, backend, out)
        print_results(folder, console)


def _evaluate(
    name: str, settings: Settings, policy: TransformersPolicy, backend: AgentBackend, console: Console
) -> None:
    folder, config = settings.folder, settings.config
    if name != AFTER and folder.evaluation(name) is not None:
        return
    transcripts: list[Episode] = []
    with policy.evaluating(config), episode_bar(console, name, config.eval_episodes) as on_episode:

        def add(episode: Episode) -> None:
            transcripts.append(episode)
            on_episode(episode)

        found = backend.evaluate(
            episodes=config.eval_episodes, seed=config.seed + EVALUATION_SEED, on_episode=add
        )
    write_evaluation(folder, name, found, transcripts)
    if all(episode.failed for episode in transcripts):
        fault = f"every attempt of the agent failed. The first: {transcripts[0].error}"
        raise TrainerError(f"{fault}. What they printed is in {folder.path / ATTEMPTS}")


def _check(settings: Settings) -> None:
    run = settings.run
    if run.agent is None:
        raise ConfigError("tasks is set, but no agent: give the command that plays them, as --agent")
    if run.model == SCRATCH:
        raise ConfigError(f"agent is set, and model is {SCRATCH}: name a language model, as --model smollm2")
    plain, kind = RunSettings(), "environment" if run.tasks is None else "tasks"
    for name in (*_UNUSED, *(_OF_TASKS if run.tasks is None else _OF_ENV)):
        if getattr(run, name) != getattr(plain, name):
            raise ConfigError(f"{name} is set, which an agent's run on {kind} does not read: leave it out")
    if run.tasks is None and run.reward != ENV:
        raise ConfigError(f"reward is {run.reward}, but the environment gives the reward: leave it out")


def _job(settings: Settings) -> _Job:
    run = settings.run
    program = Program(str(run.agent), settings.folder.path / ATTEMPTS, timeout=run.agent_timeout)
    if run.tasks is not None:
        tasks, eval_tasks = _divided(Path(run.tasks), run.eval_tasks)
        for task in (*tasks, *eval_tasks):
            program.arguments(task)  # a missing entry is named before anything is loaded
        return _Job(program, CommandAgent(program, _reward(settings)), tasks, eval_tasks)
    from art_trainer.serving.agents.environment import EnvCommandAgent, SeededTasks

    make_env, config = env_maker(run.env, run.all_env_args), settings.config
    with closing(make_env()) as env:
        test = choose_split(env, run.test_split, ("test", "validation"))
    splits = train_split(make_env, config.train_split), test
    starts = [SeededTasks({} if split is None else {"split": split}) for split in splits]
    return _Job(program, EnvCommandAgent(program, make_env, run.env), *starts)


def _divided(file: Path, eval_file: str | None) -> tuple[list[Any], list[Any]]:
    """The tasks to train on, and those of evaluations."""
    tasks = read_tasks(file)
    if eval_file is not None:
        return tasks, read_tasks(Path(eval_file))
    held_out = max(1, len(tasks) // 5)
    if held_out == len(tasks):
        raise ConfigError(f"tasks {str(file)!r} has one task: add another to evaluate on, or set eval_tasks")
    _log.info("%d tasks to train on; the last %d are for evaluations.", len(tasks) - held_out, held_out)
    return tasks[:-held_out], tasks[-held_out:]


def _reward_file(settings: Settings) -> Path | None:
    return Path(settings.run.reward) if settings.run.reward.endswith(".py") else None


def _reward(settings: Settings) -> RewardFunction:
    if file := _reward_file(settings):
        return load_reward(file)
    if ENV in RewardMix.parse(settings.run.reward, ("rubric", "ruler")).weights:
        raise ConfigError(
            f"reward is {settings.run.reward}, but tasks have no environment: name a Python file with a "
            "function reward(attempt), as --reward my_reward.py, or a judge"
        )
    return lambda _: 0.0
