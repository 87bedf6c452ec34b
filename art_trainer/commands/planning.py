"""``art-trainer train --dry-run``: what a run will do and need, without a weight loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, PreTrainedTokenizerBase

from art_trainer.chat import ChatFormat
from art_trainer.commands.models import model_options, model_path
from art_trainer.commands.policies import MakeEnv, baseline_names, env_maker, train_split
from art_trainer.commands.preparing import env_texts
from art_trainer.commands.settings import Settings
from art_trainer.episodes import TokenHistory
from art_trainer.errors import ConfigError
from art_trainer.loading import ModelOptions
from art_trainer.plan import EpisodeShape, TrainingPlan, empty_model, plan_training
from art_trainer.policy import Conversation, Reply
from art_trainer.rollout import rollout
from art_trainer.scratch import NAME as SCRATCH
from art_trainer.scratch import ScratchSize, scratch_model
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.starts import Start
from art_trainer.tokenizer_loading import load_tokenizer

_EPISODES = 4
"""Episodes that are played to see how long observations are."""


def run_plan(settings: Settings, console: Console) -> TrainingPlan:
    """Print the plan of a run.

    Raises:
        ConfigError: Where the environment or the model does not exist.
    """
    run, config = settings.run, settings.config
    make_env = env_maker(run.env, {**run.env_args, **run.train_env_args})
    options = model_options(run)
    model, tokenizer = _empty(settings, options, make_env)
    form = ChatFormat(tokenizer, history_window=run.history_window)
    shape = episode_shape(form, make_env, split=train_split(make_env, config.train_split), seed=config.seed)
    plan = plan_training(model, config, options, shape, max_batch=run.max_batch)
    for line in _choices(plan, settings, options, model):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(_memory_table(plan))
    for line in _work(plan, settings, shape):
        console.print(line, highlight=False, soft_wrap=True)
    console.print("A dry run: nothing was loaded, trained or written.", highlight=False, soft_wrap=True)
    return plan


def episode_shape(form: ChatFormat, make_env: MakeEnv, *, split: str | None, seed: int) -> EpisodeShape:
    """Play a few episodes with one of the environment's players and measure what it says.

    Args:
        form: How messages become tokens.
        make_env: Makes one environment.
        split: Whose tasks are played; ``None`` leaves it to the environment.
        seed: Where the episodes start.
    """
    players = baseline_names(make_env)
    listener = _Listener(form, players[0] if players else None)
    options = None if split is None else {"split": split}
    starts = [Start(seed + number, options, rng_seed=(seed, number)) for number in range(_EPISODES)]
    episodes = rollout(listener, make_env, starts)
    env = make_env()
    turns = getattr(env.unwrapped, "max_turns", None) or (env.spec and env.spec.max_episode_steps)
    env.close()
    windowed = form.history_window is not None
    return EpisodeShape(
        prompt=max(listener.prompts),
        observation=max(listener.later, default=0),
        turns=int(turns or max(len(episode.turns) for episode in episodes)),
        windowed=windowed,
    )


class _Listener:
    """Plays one of the environment's players, or says nothing where it has none, and counts tokens."""

    def __init__(self, form: ChatFormat, player: str | None) -> None:
        self.name = player or "silence"
        self.version = 0
        self.prompts: list[int] = []
        self.later: list[int] = []
        self._form = form
        self._player = None if player is None else ScriptedPolicy(player)
        self._submitted: list[Conversation] = []

    def submit(self, conversation: Conversation) -> None:
        """Count the new tokens of the conversation and ask the player."""
        messages, tools = conversation.messages, conversation.tools
        first = sum(message["role"] == "user" for message in messages) == 1
        new = None if first else self._form.continuation(messages, tools)
        if new is None:
            self.prompts.append(len(self._form.prompt(messages, tools)))
        else:
            self.later.append(len(new))
        if self._player is None:
            self._submitted.append(conversation)
        else:
            self._player.submit(conversation)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Return the player's replies."""
        if self._player is not None:
            return self._player.collect()
        submitted, self._submitted = self._submitted, []
        for conversation in submitted:
            conversation.messages.append({"role": "assistant", "content": ""})
        return [(conversation, Reply("")) for conversation in submitted]

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Forget the conversation."""
        self._submitted = [other for other in self._submitted if other is not conversation]
        return () if self._player is None else self._player.release(conversation)


def _empty(
    settings: Settings, options: ModelOptions, make_env: MakeEnv
) -> tuple[torch.nn.Module, PreTrainedTokenizerBase]:
    """The model without content, and its tokenizer."""
    run = settings.run
    if run.model == SCRATCH:
        with torch.device("meta"):
            made, tokenizer = scratch_model(env_texts(settings, make_env), size=ScratchSize(**run.scratch))
        return empty_model(made.config, options), tokenizer
    path = model_path(run.model)
    if (Path(path) / "adapter_config.json").exists():
        raise ConfigError(f"{path} is an adapter: give --model the model below it, and --lora its rank")
    try:
        config = AutoConfig.from_pretrained(path)
        return empty_model(config, options), load_tokenizer(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no configuration of {run.model!r} here or on Hugging Face ({str(error).splitlines()[0]})"
        ) from error


def _choices(
    plan: TrainingPlan, settings: Settings, options: ModelOptions, model: torch.nn.Module
) -> Sequence[str]:
    share = 100 * plan.trained / plan.parameters
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    cache = "kept from turn to turn" if plan.keeps_cache else "no: contexts are read again each turn"
    prefixes = "computed once, where the model's own forward agrees" if plan.shares_prefixes else "no"
    lines = [
        f"{settings.run.model} on {settings.run.env}: {plan.parameters:,} parameters, "
        f"{plan.trained:,} of them trained ({share:.3g}%)",
        f"device {options.place}, dtype {dtype}, keys and values {cache}, a group's prompt {prefixes}",
    ]
    if dtype == "bfloat16" and options.lora is None:
        lines.append(
            "Steps smaller than 1/256 of a bfloat16 weight are lost: train an adapter (lora), whose weights "
            "are float32, or set dtype=float32."
        )
    return lines


def _memory_table(plan: TrainingPlan) -> Table:
    table = Table(title="Memory", title_justify="left", title_style="")
    table.add_column("part")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("of what", overflow="fold")
    for part in plan.memory:
        table.add_row(part.name, ("" if part.exact else "up to ") + in_bytes(part.size), part.how)
    table.add_row("together", f"up to {in_bytes(plan.total)}", "without the libraries' own")
    return table


def _work(plan: TrainingPlan, settings: Settings, shape: EpisodeShape) -> Sequence[str]:
    config = settings.config
    kind = "a turn's context" if shape.windowed else "a context"
    optimizer_steps = config.max_steps * config.steps_per_generation * config.num_iterations
    return (
        f"A step: {config.groups_per_step} groups of {config.num_generations}, {plan.episodes:,} episodes of "
        f"at most {shape.turns} turns; {plan.episodes:,} to {plan.sampled_tokens:,} sampled tokens in "
        f"contexts of at most {plan.context_tokens:,}.",
        f"Tokens, as measured on {_EPISODES} episodes: prompt up to {shape.prompt:,}, later observations up "
        f"to {shape.observation:,}, {kind} up to {plan.context:,}.",
        f"The run: {config.max_steps:,} steps, {config.max_steps * plan.episodes:,} episodes, "
        f"{optimizer_steps:,} optimizer steps.",
    )


def in_bytes(size: int) -> str:
    """A size in the largest binary unit that leaves at least one, as in ``1.25 GiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(int(np.log2(max(size, 1)) // 10), len(units) - 1)
    value = size / 1024**power
    return f"{value:.0f} B" if power == 0 else f"{value:.3g} {units[power]}"
