"""``art-trainer train``: evaluate, train, evaluate again on the same tasks, and report.

Under torchrun or ``accelerate launch`` all processes train, and the main one does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from art_trainer.cli.options import command
from art_trainer.errors import ConfigError
from art_trainer.training.run_settings import RAY, Settings

if TYPE_CHECKING:
    from art_trainer.inference.transformers_policy import TransformersPolicy
    from art_trainer.rollout.backend import RolloutSetup, RolloutSetupFactory

FLAGS = (
    "env env_args agent tasks eval_tasks train_env_args model lora dtype load_in_4bit gradient_checkpointing "
    "history_window warm_start reward judge log max_steps num_generations groups_per_step learning_rate beta "
    "seed eval_episodes eval_steps save_steps keep_going threads backend ray_address ray_actors "
    "price_per_hour output_dir"
)


@command(
    "train",
    "`art-trainer train` trains a small model with the settings of the default recipe.",
    "`art-trainer train --recipe frozen-lake --seed 1` trains with the settings of another recipe.",
    "`art-trainer train --env art/Email-v0 --model Qwen/Qwen3-0.6B --lora 16 --learning-rate 1e-5`.",
    "`art-trainer train --config run.yaml --set loss_type=grpo` repeats a run with one change.",
    '`art-trainer train --agent "python my_agent.py {task}" --tasks tasks.jsonl --reward my_reward.py '
    "--model Qwen/Qwen3-0.6B` trains the model of your own agent.",
    "`art-trainer train --resume runs/Email-v0-art-tiny-1` resumes a run from its last checkpoint.",
    settings=FLAGS.split(),
)
def train(settings: Settings, *, dry_run: bool = False, gpu: str | None = None) -> None:
    """Train a model with GRPO and measure how much it improves.

    Evaluates the model and the environment's baselines on held-out tasks, trains, and evaluates again on the
    same tasks. Ctrl-C saves a checkpoint and a report. All results are in the run's folder.

    Flags:
        dry_run: Print what the run would do and need, and about how long it would take; load no weights.
        gpu: With --dry-run: plan memory and time for this GPU, such as H100, by its data sheet.
            [default: measured on this machine]
    """
    if gpu is not None and (not dry_run or settings.run.agent is not None):
        raise ConfigError(f"gpu is {gpu}, which only --dry-run without an agent reads: leave gpu out")
    from art_trainer.rollout.envs import env_maker

    console = Console()
    if settings.run.agent is not None or settings.run.tasks is not None:
        from art_trainer.cli.agent_run import train_agent

        train_agent(settings, console, dry_run=dry_run)
        return
    env_maker(settings.run.env, settings.run.all_env_args)  # a wrong argument is named before PyTorch loads
    from art_trainer.training.run_setup import fit_to_env

    settings = fit_to_env(settings)
    if dry_run:
        from art_trainer.cli.plan import print_plan

        print_plan(settings, console, gpu)
        return
    from art_trainer.cli.training_run import run_training

    run_training(settings, console, ray_setup(settings) if settings.run.backend == RAY else None)


def ray_setup(settings: Settings) -> RolloutSetupFactory:
    """Return what makes actors of a Ray cluster play the groups of training."""
    from art_trainer.distributed.ray.cluster import ActorResources, require_ray

    require_ray()
    from art_trainer.distributed.ray.backend import RayBackend
    from art_trainer.rollout.backend import RolloutSetup
    from art_trainer.training.distributed import current_process_group

    run = settings.run
    resources = ActorResources(run.ray_actor_cpus, run.ray_actor_gpus)
    if run.engine is not None:
        raise ConfigError("backend is ray, whose actors sample themselves: leave engine out")
    if run.load_in_4bit:
        raise ConfigError("backend is ray, whose actors hold no 4-bit weights: leave load_in_4bit out")
    if settings.config.sharding != "none" and current_process_group().size > 1:
        raise ConfigError("backend is ray, which sends whole weights to its actors: set sharding=none")

    @contextmanager
    def make(policy: TransformersPolicy) -> Iterator[RolloutSetup]:
        backend = RayBackend(
            policy,
            run.env,
            run.all_env_args,
            settings.config,
            address=run.ray_address,
            actors=run.ray_actors,
            resources=resources,
        )
        with closing(backend):
            where = "a new cluster on this machine" if run.ray_address is None else run.ray_address
            if not settings.quiet:
                typer.echo(f"Ray actors: {run.ray_actors}, in {where}.")
            yield RolloutSetup(backend)

    return make
