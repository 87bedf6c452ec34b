"""``art-trainer train --dry-run``: what a run will do and need, without loading weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import typer
from rich.console import Console
from rich.table import Table

from art_trainer.cli.console import make_table
from art_trainer.models.chat_template import ChatFormat
from art_trainer.models.loading import ModelOptions
from art_trainer.models.memory import usable_memory
from art_trainer.rollout.envs import env_maker, train_split
from art_trainer.training.memory_plan import (
    MEASURED,
    EpisodeShape,
    TrainingPlan,
    episode_shape,
    plan_training,
)
from art_trainer.training.run_settings import Settings
from art_trainer.training.run_setup import empty_run_model, model_options, sized_for


def print_plan(settings: Settings, console: Console) -> None:
    """Print the plan of a run."""
    options = model_options(settings.run)
    settings = sized_for(settings, options.torch_device)
    run, config = settings.run, settings.config
    make_env = env_maker(run.env, run.all_env_args)
    model, tokenizer = empty_run_model(settings, options, make_env)
    form = ChatFormat(tokenizer, history_window=run.history_window)
    shape = episode_shape(form, make_env, split=train_split(make_env, config.train_split), seed=config.seed)
    plan = plan_training(model, config, options, shape, max_batch=run.max_batch)
    for line in _choices(plan, settings, options, model):
        typer.echo(line)
    console.print(_memory_table(plan))
    typer.echo(_fit(plan, options))
    for line in _work(plan, settings, shape):
        typer.echo(line)
    typer.echo("A dry run: nothing was loaded, trained or written.")


def _choices(
    plan: TrainingPlan, settings: Settings, options: ModelOptions, model: torch.nn.Module
) -> Sequence[str]:
    share = 100 * plan.trained / plan.parameters
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    cache = "kept from turn to turn" if plan.keeps_cache else "no: contexts are read again each turn"
    prefixes = "computed once, where the model's own forward agrees" if plan.shares_prefixes else "no"
    return [
        f"{settings.run.model} on {settings.run.env}: {plan.parameters:,} parameters, "
        f"{plan.trained:,} of them trained ({share:.3g}%)",
        f"device {options.torch_device}, dtype {dtype}, keys and values {cache}, a group's prompt {prefixes}",
    ]


def _memory_table(plan: TrainingPlan) -> Table:
    table = make_table("Memory", ["part", "of what", "held"], ["size"])
    for part in plan.memory:
        size = ("" if part.exact else "up to ") + in_bytes(part.size)
        table.add_row(part.name, part.how, part.phase, size)
    table.add_row("at most", "without the libraries' own", "", f"up to {in_bytes(plan.total)}")
    return table


def _fit(plan: TrainingPlan, options: ModelOptions) -> str:
    """Whether the plan fits into the device's free memory, and how a run would make it fit."""
    device = options.torch_device
    free = usable_memory(device)
    where = f"into the {in_bytes(free)} that a run uses of {device}, nine tenths of its free memory"
    if plan.total <= free:
        return f"It fits {where}."
    rows, tokens = plan.fitted(free)
    lowered = f"max_batch {rows} and tokens_per_microbatch {tokens:,}"
    if plan.smallest <= free:
        return f"It does not fit {where}: a run takes {lowered}, if nobody sets them."
    return (
        f"It does not fit {where}: one conversation at a time and micro-batches of one context need up to "
        f"{in_bytes(plan.smallest)}. Set gradient_checkpointing, lora, or another model or device."
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


def in_bytes(size: int) -> str:
    """A size in the largest binary unit that leaves at least one, as in ``1.25 GiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min((max(size, 1).bit_length() - 1) // 10, len(units) - 1)
    return f"{size} B" if power == 0 else f"{size / 1024**power:.3g} {units[power]}"
