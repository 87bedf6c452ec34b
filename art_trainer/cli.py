"""The ``art-trainer`` command: its flags. Each command's work lies in :mod:`art_trainer.commands`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
except ModuleNotFoundError as missing:
    raise SystemExit(f'art-trainer needs {missing.name}: pip install "art-gym[train]"') from missing

from art_trainer.cli_analysis import add_analyze_command
from art_trainer.cli_dash import add_dash_command
from art_trainer.cli_eval import add_eval_command
from art_trainer.cli_flags import (
    ConfigFile,
    EnvArgs,
    EnvId,
    HeldOut,
    LoraRank,
    MaxSteps,
    MaxTokens,
    ModelName,
    OutputDir,
    Overrides,
    Resume,
    ResumeStep,
    RunSeed,
    SaveSteps,
    TrainedEnv,
    given,
)
from art_trainer.cli_judge import judge_app
from art_trainer.cli_monitoring import add_monitoring_commands
from art_trainer.cli_records import add_records_commands
from art_trainer.cli_serve import add_serve_command
from art_trainer.cli_suites import add_suite_commands
from art_trainer.cli_supervise import add_supervise_command
from art_trainer.cli_worker import add_worker_command

_TRAIN_EPILOG = (
    "Examples:\n\n`art-trainer train` trains the embedded model on the embedded mailbox.\n\n"
    "`art-trainer train --model Qwen/Qwen3-0.6B --lora 16 --env-args difficulty=2 --learning-rate 1e-5`.\n\n"
    "`art-trainer train --config run.yaml --set loss_type=grpo` repeats a run with a change.\n\n"
    "`art-trainer train --resume runs/Email-v0-art-tiny-1` goes on where a run was stopped."
)
_EXPORT_EPILOG = (
    "Examples:\n\n`art-trainer export runs/Email-v0-art-tiny-1 mail-agent` writes the folder mail-agent.\n\n"
    "`art-trainer export runs/Email-v0-art-tiny-1 mail-agent --push-to-hub me/mail-agent`."
)
_SELF_PLAY_EPILOG = (
    "Examples:\n\n`art-trainer self-play` trains both seats of 2048Duel with one small model.\n\n"
    "`art-trainer self-play --env-args board_size=3 --env-args target=64 --opponent copy`: one model a seat."
    "\n\n"
    "`art-trainer self-play --opponent greedy --seat placer_1` against a scripted player."
)
_PLAY_EPILOG = (
    "Examples:\n\n`art-trainer play` lets you search the mailbox yourself.\n\n"
    "`art-trainer play --policy bm25 --seed 3` shows how a baseline does it."
)

app = typer.Typer(
    help="Train LLM agents on text environments with GRPO, evaluate them, play the environments yourself.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

SeedOption = Annotated[
    int, typer.Option(min=0, help="The same seed gives the same tasks and the same episodes.")
]
TemperatureOption = Annotated[float, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")]


@app.command(epilog=_TRAIN_EPILOG)
def train(
    env: TrainedEnv = None,
    env_args: EnvArgs = [],  # noqa: B006 (typer reads it, nobody changes it)
    train_env_args: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE", help="Argument of the environment in training alone. Repeatable."),
    ] = [],  # noqa: B006
    model: ModelName = None,
    lora: LoraRank = None,
    dtype: Annotated[
        str | None, typer.Option(help="Load weights as bfloat16, float32 or auto, as saved. [default: auto]")
    ] = None,
    load_in_4bit: Annotated[
        bool | None, typer.Option("--load-in-4bit", help="Load the weights below the adapter in 4 bits.")
    ] = None,
    gradient_checkpointing: Annotated[
        bool | None,
        typer.Option("--gradient-checkpointing", help="Compute layers again in the backward pass."),
    ] = None,
    history_window: Annotated[
        int | None, typer.Option(metavar="TURNS", help="How many turns the model sees. [default: all]")
    ] = None,
    warm_start: Annotated[
        str | None,
        typer.Option(metavar="PLAYER", help="First imitate this scripted player of the environment."),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            help="What training pays: env, rubric, ruler (a judge model), or a mix such as "
            "`0.7*ruler+0.3*env`. [default: env]"
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="openai:MODEL@URL", help="The judge model of the reward ruler."),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="SINKS",
            help="Where else to show the run, with commas: wandb, langfuse, tensorboard, trackio, mlflow, "
            "otel, openpipe. Keys come from the environment or .env, see `art-trainer config`.",
        ),
    ] = None,
    max_steps: MaxSteps = None,
    num_generations: Annotated[
        int | None, typer.Option(help="Attempts at one task: the group's size.")
    ] = None,
    groups_per_step: Annotated[int | None, typer.Option(help="Groups played per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    beta: Annotated[
        float | None, typer.Option(help="Weight of the KL to the model as it was at the start.")
    ] = None,
    seed: RunSeed = None,
    eval_episodes: HeldOut = None,
    eval_steps: Annotated[int | None, typer.Option(help="Also evaluate every so many steps.")] = None,
    save_steps: SaveSteps = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="Who plays: local, or ray for actors on a cluster. [default: local]")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="A Ray cluster's address. [default: one on this machine]")
    ] = None,
    ray_actors: Annotated[int | None, typer.Option(help="Ray actors that play. [default: 2]")] = None,
    output_dir: OutputDir = None,
    resume: Resume = None,
    resume_step: ResumeStep = None,
    config: ConfigFile = None,
    set_: Overrides = [],  # noqa: B006
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the run would do and need; load no weights.")
    ] = False,
) -> None:
    """Train a model with GRPO, and see by how much it got better.

    Evaluates the model and the environment's baselines on held-out tasks, trains, and evaluates again on the
    same tasks. Ctrl-C saves a checkpoint and a report. Everything lies in the run's folder.
    """
    values = dict(locals())
    for name in ("env_args", "train_env_args", "set_", "config", "resume", "resume_step", "dry_run"):
        del values[name]
    from art_trainer.commands.gathering import TrainRequest, gather_settings
    from art_trainer.commands.settings import parse_pairs
    from art_trainer.commands.training import run_train

    flags = given(values, {"env_args": env_args, "train_env_args": train_env_args})
    request = TrainRequest(flags, parse_pairs(set_, "--set", as_yaml=True), config, resume, resume_step)
    if not dry_run:
        run_train(request, Console())
        return
    from art_trainer.commands.planning import run_plan

    run_plan(gather_settings(request), Console())


@app.command("self-play", epilog=_SELF_PLAY_EPILOG)
def self_play(
    env: Annotated[
        str | None,
        typer.Option(help="Id of a PettingZoo AEC environment in text. [default: art/2048Duel-v0]"),
    ] = None,
    env_args: EnvArgs = [],  # noqa: B006
    model: Annotated[
        str | None,
        typer.Option(
            help="Hugging Face name or folder of any causal LM; scratch for a small one of random weights. "
            "[default: scratch]"
        ),
    ] = None,
    opponent: Annotated[
        str | None,
        typer.Option(
            help="self: the model plays all seats and learns from all; copy: a second model like it learns "
            "the other seats; or one that does not learn: a scripted player, or a policy as in eval. "
            "[default: self]"
        ),
    ] = None,
    seat: Annotated[
        str | None,
        typer.Option(help="The model's seat against one that does not learn. [default: the first]"),
    ] = None,
    max_steps: MaxSteps = None,
    seed: RunSeed = None,
    eval_episodes: Annotated[
        int | None, typer.Option(help="Games of each match against a scripted player, before and after.")
    ] = None,
    output_dir: OutputDir = None,
    resume: Resume = None,
    resume_step: ResumeStep = None,
    config: ConfigFile = None,
    set_: Overrides = [],  # noqa: B006
) -> None:
    """Train the players of a game against each other, and measure each seat against scripted players.

    Both sides of every game are learned from: each seat's attempts at one start are a group. The results of
    every seat stand beside those of the game's own players.
    """
    from art_trainer.commands.gathering import TrainRequest
    from art_trainer.commands.self_play import SelfPlayRequest, run_self_play
    from art_trainer.commands.settings import parse_pairs

    values = {
        "env": env,
        "model": model,
        "max_steps": max_steps,
        "seed": seed,
        "eval_episodes": eval_episodes,
        "output_dir": output_dir,
    }
    overrides = parse_pairs(set_, "--set", as_yaml=True)
    training = TrainRequest(given(values, {"env_args": env_args}), overrides, config, resume, resume_step)
    run_self_play(SelfPlayRequest(training, opponent, seat), Console())


add_serve_command(app)
add_worker_command(app)
add_supervise_command(app)
add_dash_command(app)
add_eval_command(app)


@app.command(epilog=_PLAY_EPILOG)
def play(
    env: EnvId = "art/Email-v0",
    env_args: EnvArgs = [],  # noqa: B006
    policy: Annotated[
        str | None, typer.Option(help="Watch this policy instead of playing yourself; as in eval.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Id of the task.")] = None,
    split: Annotated[str | None, typer.Option(help="Split the task is drawn from.")] = None,
    seed: SeedOption = 0,
    temperature: TemperatureOption = 0.0,
    max_tokens: MaxTokens = 256,
) -> None:
    """Play an environment in the terminal, or watch a policy play it.

    Each line you type is one reply; a line that opens a fence (three backticks) goes on to the closing one.
    """
    from art_trainer.commands.playing import PlayRequest, run_play
    from art_trainer.commands.settings import parse_pairs

    request = PlayRequest(
        env=env,
        env_args=parse_pairs(env_args, "--env-args"),
        policy=policy,
        task=task,
        split=split,
        seed=seed,
        temperature=temperature,
        max_tokens=max_tokens,
    )
    run_play(request, Console())


@app.command(epilog=_EXPORT_EPILOG)
def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT", help="A run's folder (its newest checkpoint) or a checkpoint's."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="Where to write; must not exist, or be empty.")],
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="NAME", help="Also push it to the Hugging Face hub by this name.")
    ] = None,
) -> None:
    """Write a trained model as a normal Hugging Face folder: merged weights, tokenizer, model card."""
    from art_trainer.commands.exporting import run_export

    run_export(source, folder, push_to_hub, Console())


add_analyze_command(app)
add_suite_commands(app)
add_records_commands(app)
add_monitoring_commands(app)
app.add_typer(judge_app, name="judge")


def main(arguments: list[str] | None = None) -> None:
    """Run ``art-trainer``; an error of the user's is one line and exit code 2, Ctrl-C is exit code 130."""
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    from art_gym.errors import ArtGymError
    from art_trainer.errors import TrainerError

    try:
        # Typer's own errors and exits come as exit codes.
        code: Any = app(args=arguments, prog_name="art-trainer", standalone_mode=True)
        return int(code or 0)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped.")
        return 130
    except (ArtGymError, TrainerError, FileNotFoundError) as error:
        Console(stderr=True).print(f"art-trainer: {error}", markup=False, highlight=False, soft_wrap=True)
        return getattr(error, "exit_code", 2)


if __name__ == "__main__":
    main()
