"""``art-trainer serve``: its flags. The work lies in :mod:`art_trainer.commands.serving`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from art_trainer.cli_flags import (
    ConfigFile,
    EnvArgs,
    HeldOut,
    LoraRank,
    MaxSteps,
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

_EPILOG = (
    "Examples:\n\n`art-trainer serve` and, in other terminals, `art-trainer worker --server "
    "http://127.0.0.1:8270`.\n\n"
    "`ART_SERVER_TOKEN=… art-trainer serve --host 10.0.0.5 --lora 16 --model Qwen/Qwen3-0.6B` for workers on "
    "other machines.\n\n"
    "`art-trainer serve --resume runs/Email-v0-art-tiny-1` goes on where a server was stopped or lost."
)
_LAST_PORT = 65_535


def serve(
    env: TrainedEnv = None,
    env_args: EnvArgs = [],  # noqa: B006 (typer reads it, nobody changes it)
    model: ModelName = None,
    lora: LoraRank = None,
    max_steps: MaxSteps = None,
    max_staleness: Annotated[
        int | None,
        typer.Option(
            help="By how many updates the weights that played may be older than those that learn; above 0 "
            "workers play ahead. [default: 0]"
        ),
    ] = None,
    seed: RunSeed = None,
    eval_episodes: HeldOut = None,
    save_steps: SaveSteps = None,
    output_dir: OutputDir = None,
    resume: Resume = None,
    resume_step: ResumeStep = None,
    config: ConfigFile = None,
    set_: Overrides = [],  # noqa: B006
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any but this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port; 0 takes a free one. [default: the setting ART_SERVER_PORT, or 8270]"
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Holds the token that everybody has to bring. [default: the setting ART_SERVER_TOKEN]",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str],
        typer.Option(
            metavar="NAME", help="Another name that clients call this server by, without a port. Repeatable."
        ),
    ] = [],  # noqa: B006
    lease_seconds: Annotated[
        float, typer.Option(min=1, help="Episodes of a worker that is silent for so long go to others.")
    ] = 60.0,
    max_lease_seconds: Annotated[
        float, typer.Option(min=1, help="An episode that takes longer goes to another worker all the same.")
    ] = 3600.0,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long a server that stops waits for episodes under way.")
    ] = 30.0,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE.pem", help="Certificate; with it the server speaks TLS."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE.pem", help="The certificate's key.")] = None,
    no_api: Annotated[
        bool, typer.Option("--no-api", help="Do not answer OpenAI's API; saves a copy of the weights.")
    ] = False,
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="Show no page.")] = False,
) -> None:
    """Train with workers on other machines, or in other processes, as players.

    Does what `art-trainer train` does, but for the episodes of training: those are played by whoever comes
    with `art-trainer worker`. They may come and go; nothing they have played is lost. Ctrl-C, SIGTERM and
    `POST /shutdown` save a checkpoint.
    """
    from art_trainer.commands.certificates import certificate_of
    from art_trainer.commands.gathering import TrainRequest
    from art_trainer.commands.serving import DEFAULTS, ServeRequest, run_serve
    from art_trainer.commands.settings import parse_pairs
    from art_trainer.monitoring.settings import load_settings

    values = {
        "env": env,
        "model": model,
        "lora": lora,
        "max_steps": max_steps,
        "max_staleness": max_staleness,
        "seed": seed,
        "eval_episodes": eval_episodes,
        "save_steps": save_steps,
        "output_dir": output_dir,
    }
    flags = given(values, {"env_args": env_args})
    overrides = parse_pairs(set_, "--set", as_yaml=True)
    request = ServeRequest(
        TrainRequest(flags, overrides, config, resume, resume_step, defaults=DEFAULTS),
        host=host,
        port=load_settings().integer("ART_SERVER_PORT", _LAST_PORT) if port is None else port,
        token_file=token_file,
        allowed_hosts=tuple(allowed_host),
        lease_seconds=lease_seconds,
        max_lease_seconds=max_lease_seconds,
        drain_seconds=drain_seconds,
        api=not no_api,
        dashboard=not no_dashboard,
        certificate=certificate_of(tls_cert, tls_key),
    )
    run_serve(request, Console())


def add_serve_command(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command(epilog=_EPILOG)(serve)
