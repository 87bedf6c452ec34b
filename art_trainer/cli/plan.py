"""``art-trainer train --dry-run``: what a run will do, need and take, without loading weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import typer
from rich.console import Console

from art_trainer.cli.console import make_table
from art_trainer.formatting import duration, in_bytes, short
from art_trainer.models.chat_template import ChatFormat
from art_trainer.models.loading import ModelOptions, default_threads
from art_trainer.models.memory import usable_memory
from art_trainer.rollout.envs import env_maker, train_split
from art_trainer.training.memory_plan import (
    MEASURED,
    EpisodeShape,
    TrainingPlan,
    episode_shape,
    plan_training,
)
from art_trainer.training.run_settings import LOCAL, Settings
from art_trainer.training.run_setup import (
    check_players,
    empty_run_model,
    model_options,
    reward_model,
    sized_for,
)
from art_trainer.training.time_plan import gpu_figures, gpu_seconds, measured_seconds, run_tokens


def print_plan(settings: Settings, console: Console, gpu: str | None = None) -> None:
    """Print the plan of a run.

    Args:
        settings: All settings.
        console: Where it is printed.
        gpu: Plan for this GPU, a name in :data:`.GPUS`, and not for this machine.

    Raises:
        ConfigError: If there is no such GPU, or it has no figures for the model.
    """
    options = model_options(settings.run)
    if gpu is not None:
        *_, memory = gpu_figures(gpu)
        options = replace(options, device="meta")
    settings = sized_for(settings, options.torch_device)
    run, config = settings.run, settings.config
    make_env = env_maker(run.env, run.all_env_args)
    check_players(run, make_env)
    with TemporaryDirectory() as folder:
        reward_model(run, Path(folder))  # what it raises, the run would raise
    model, tokenizer = empty_run_model(settings, options, make_env)
    form = ChatFormat(tokenizer, history_window=run.history_window)
    shape = episode_shape(form, make_env, split=train_split(make_env, config.train_split), seed=config.seed)
    plan = plan_training(model, config, options, shape, max_batch=run.max_batch)
    if gpu is None:
        rates, free, device = None, usable_memory(options.torch_device), str(options.torch_device)
    else:
        free, device = int(memory) * 9 // 10, f"one {gpu}"
        fitted = replace(plan, rows=plan.fitted(free)[0])
        seconds = gpu_seconds(gpu, model, config, options, fitted)
        rates = np.tile(seconds, (2, 1)) if plan.smallest <= free else None
    for line in _choices(plan, settings, device, model):
        typer.echo(line)
    table = make_table("Memory", ["part", "of what", "held"], ["size"])
    for part in plan.memory:
        table.add_row(part.name, part.how, part.phase, ("" if part.exact else "up to ") + in_bytes(part.size))
    table.add_row("at most", "without the libraries' own", "", f"up to {in_bytes(plan.total)}")
    console.print(table)
    typer.echo(_fit(plan, options, free, device))
    for line in _work(plan, settings, shape):
        typer.echo(line)
    if rates is not None:
        source = f"computed for one {gpu} by its data sheet and docs/speed.md, not measured"
    elif reason := _not_measured(plan, options, free):
        advice = " --gpu NAME computes it for a GPU." if gpu is None else ""
        typer.echo(f"Time: not estimated, {reason}.{advice}")
    else:
        console.print("Measuring how long a token takes …")
        source = f"measured on {device} with random weights"
        torch.set_num_threads(run.threads or default_threads(plan.parameters))
        rates = measured_seconds(model, config, options, shape, plan)
    for line in () if rates is None else _time(plan, settings, shape, rates, source):
        typer.echo(line)
    typer.echo("A dry run: nothing was loaded, trained or written.")


def _choices(plan: TrainingPlan, settings: Settings, device: str, model: torch.nn.Module) -> Sequence[str]:
    share = 100 * plan.trained / plan.parameters
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    cache = "kept from turn to turn" if plan.keeps_cache else "no: contexts are read again each turn"
    prefixes = "computed once, where the model's own forward agrees" if plan.shares_prefixes else "no"
    return [
        f"{settings.run.model} on {settings.run.env}: {plan.parameters:,} parameters, "
        f"{plan.trained:,} of them trained ({share:.3g}%)",
        f"device {device}, dtype {dtype}, keys and values {cache}, a group's prompt {prefixes}",
    ]


def _fit(plan: TrainingPlan, options: ModelOptions, free: int, device: str) -> str:
    """Whether the plan fits into the device's usable memory, and how a run would make it fit."""
    where = f"into the {in_bytes(free)} that a run uses of {device}, nine tenths of its free memory"
    if plan.total <= free:
        return f"It fits {where}."
    rows, tokens = plan.fitted(free)
    lowered = f"max_batch {rows} and tokens_per_microbatch {tokens:,}"
    if plan.smallest <= free:
        return f"It does not fit {where}: a run takes {lowered}, if nobody sets them."
    less = [name for name in ("gradient_checkpointing", "lora") if not getattr(options, name)]
    return (
        f"It does not fit {where}: one conversation at a time and micro-batches of one context need up to "
        f"{in_bytes(plan.smallest)}. Set {' or '.join((*less, 'another model', 'another device'))}."
    )


def _work(plan: TrainingPlan, settings: Settings, shape: EpisodeShape) -> Sequence[str]:
    config = settings.config
    kind = "a turn's context" if shape.windowed else "a context"
    optimizer_steps = config.max_steps * config.steps_per_generation * config.num_iterations
    return (
        f"A step: {config.groups_per_step} groups of {config.num_generations}, {plan.episodes:,} episodes of "
        f"at most {shape.turns} turns; {plan.episodes:,} to {plan.sampled_tokens:,} sampled tokens in "
        f"contexts of at most {plan.context_tokens:,}.",
        f"Tokens, as measured on {MEASURED} episodes: prompt up to {shape.prompt:,}, later observations up "
        f"to {shape.observation:,}, {kind} up to {plan.context:,}.",
        f"The run: {config.max_steps:,} steps, {config.max_steps * plan.episodes:,} episodes, "
        f"{optimizer_steps:,} optimizer steps.",
    )


def _time(
    plan: TrainingPlan, settings: Settings, shape: EpisodeShape, rates: np.ndarray, source: str
) -> Sequence[str]:
    """How long the run takes, what it costs, and where the figures come from."""
    run, config = settings.run, settings.config
    times = [float(rates[one] @ run_tokens(settings, plan, shape, longest=bool(one))) for one in (0, 1)]
    shortest, longest = (f"{duration(one)} ({short(one / 3600)} hours)" for one in times)
    sampled, read, trained = (f"{1000 * one:.2g} and {1000 * two:.2g} ms" for one, two in rates.T)
    most = config.max_completion_length
    lines = [
        f"Time, an estimate: {shortest} to {longest}. The first if all episodes are like the "
        f"shortest of {MEASURED} ({shape.fewest_turns} turns, {shape.reply} tokens a reply), the second if "
        f"all are as long as they can be ({shape.turns} turns, {most} tokens a reply).",
        f"It is {source}: {sampled} to sample a token, {read} to read one, {trained} to learn from one. Not "
        "in it: the environment, judges, loading, checkpoints, the rounds of an automatic warm start.",
    ]
    if run.engine is not None or run.backend != LOCAL:
        lines.append("It is for one process that samples and learns, without the engine or actors.")
    if run.price_per_hour is not None:
        low, high = (short(run.price_per_hour * one / 3600) for one in times)
        lines.append(f"Cost at {run.price_per_hour:g} an hour: {low} to {high}.")
    return lines


def _not_measured(plan: TrainingPlan, options: ModelOptions, free: int) -> str:
    """Why there is no measurement; empty if there can be one."""
    if plan.total > free:
        return "as the run does not fit into the memory"
    if options.load_in_4bit:
        return "as weights of 4 bits cannot be made without loading the model"
    return "" if plan.keeps_cache else "as the model's contexts are read again each turn"
