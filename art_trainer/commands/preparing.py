"""The policy that ``art-trainer train`` starts from: loaded or made, and warmed up where asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from art_trainer.commands.models import local_policy, model_options
from art_trainer.commands.policies import MakeEnv, baseline_names, train_split
from art_trainer.commands.settings import Settings
from art_trainer.imitation import ImitationConfig
from art_trainer.loading import equip
from art_trainer.sampler import SamplingParams
from art_trainer.scratch import NAME, ScratchSize, sample_texts, scratch_model
from art_trainer.threads import default_threads
from art_trainer.transformers_policy import TransformersPolicy
from art_trainer.warm_start import WarmStartConfig, warm_start


def prepare_policy(
    settings: Settings, texts: Callable[[], Sequence[str]], *, checkpoint: Path | None
) -> TransformersPolicy:
    """Load the model, or make it.

    Args:
        settings: All settings of the run.
        texts: What the environment says, from which a model made from scratch takes its words.
        checkpoint: What a resumed run goes on from, where it has one.

    Raises:
        ConfigError: Where there is no such model.
    """
    run, config = settings.run, settings.config
    options = model_options(run)
    torch.manual_seed(config.seed)  # a new LoRA adapter starts from torch's generator
    sampling = SamplingParams(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p or 0.0,
        max_new_tokens=config.max_completion_length,
    )
    if run.model == NAME and checkpoint is None:
        policy = _scratch_policy(settings, texts(), sampling)
    else:
        policy = local_policy(
            run.model if checkpoint is None or run.model != NAME else str(checkpoint),
            sampling=sampling,
            max_batch=run.max_batch,
            device=options.device,
            lora=options.lora,
            dtype=options.dtype,
            load_in_4bit=options.load_in_4bit,
            gradient_checkpointing=options.gradient_checkpointing,
            history_window=run.history_window,
        )
    weights = sum(parameter.numel() for parameter in policy.model.parameters())
    torch.set_num_threads(run.threads or default_threads(weights))
    return policy


def warm_up(policy: TransformersPolicy, settings: Settings, make_env: MakeEnv, console: Console) -> None:
    """Imitate the scripted player that the settings name, with a progress bar."""
    run, config = settings.run, settings.config
    assert run.warm_start is not None
    plan = WarmStartConfig(
        player=run.warm_start,
        episodes=run.warm_start_episodes,
        noise=run.warm_start_noise,
        imitation=ImitationConfig(
            epochs=run.warm_start_epochs,
            batch_size=run.warm_start_batch_size,
            learning_rate=run.warm_start_learning_rate,
        ),
    )
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        bar = progress.add_task("warm start", words=f"{plan.player} plays", total=None)

        def on_step(numbers: dict[str, float]) -> None:
            words = f"loss {numbers['loss']:.3f}"
            progress.update(bar, completed=numbers["step"], total=numbers["steps"], words=words)

        done = warm_start(
            policy,
            make_env,
            plan,
            split=train_split(make_env, config.train_split),
            seed=config.seed,
            on_step=on_step,
        )
    console.print(
        f"warm start: {done.replies} replies in {done.episodes} episodes of {plan.player} (mean reward "
        f"{done.mean_reward:.4g}), loss {done.losses[0]:.3f} to {done.losses[-1]:.3f}",
        highlight=False,
        soft_wrap=True,
    )


def env_texts(settings: Settings, make_env: MakeEnv) -> list[str]:
    """What an environment says to the players of a run.

    A player that searches for seconds a move need not be heard, unless it is to be imitated.
    """
    run, config = settings.run, settings.config
    heard = baseline_names(make_env) if run.baselines is None else run.baselines
    return sample_texts(
        make_env,
        [run.warm_start] if run.warm_start else heard or baseline_names(make_env),
        split=train_split(make_env, config.train_split),
        seed=config.seed,
    )


def _scratch_policy(settings: Settings, texts: Sequence[str], sampling: SamplingParams) -> TransformersPolicy:
    run, config = settings.run, settings.config
    model, tokenizer = scratch_model(texts, size=ScratchSize(**run.scratch), seed=config.seed)
    return TransformersPolicy(
        equip(model, model_options(run)),
        tokenizer,
        sampling=sampling,
        max_batch=run.max_batch,
        history_window=run.history_window,
        name=NAME,
    )
