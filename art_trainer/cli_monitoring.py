"""``art-trainer sync`` and ``art-trainer config``: their flags. The work is in commands/monitoring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

_SYNC_EPILOG = (
    "Examples:\n\n`art-trainer sync runs/Email-v0-art-tiny-1 --to wandb` after a run that was offline.\n\n"
    "`art-trainer sync runs/Email-v0-art-tiny-1 --to tensorboard,mlflow` shows a run in sinks it never had."
)
_CONFIG_EPILOG = (
    "The environment wins over the file. Examples:\n\n`art-trainer config`.\n\n"
    "`art-trainer config --env-file secrets.env`."
)


def add_monitoring_commands(app: typer.Typer) -> None:
    """Add both commands to ``art-trainer``."""
    app.command(epilog=_SYNC_EPILOG)(sync)
    app.command("config", epilog=_CONFIG_EPILOG)(config_)


def sync(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.", exists=True, file_okay=False)],
    to: Annotated[
        list[str], typer.Option(metavar="SINKS", help="Sinks as in --log, with commas. Repeatable.")
    ],
    timeout: Annotated[int, typer.Option(min=1, help="Seconds after which a sink is given up.")] = 600,
) -> None:
    """Send to a sink what it missed of a run that has ended, or the whole run.

    The run's folder has everything: a sink that was offline, down or not asked for gets exactly the rest.
    """
    from art_trainer.commands.monitoring import run_sync

    run_sync(run, to, timeout, Console())


def config_(
    env_file: Annotated[
        Path, typer.Option(metavar="FILE", help="A file of NAME=value lines; it need not exist.")
    ] = Path(".env"),
) -> None:
    """Show which keys and addresses of services are in force, and from where; secrets are masked."""
    from art_trainer.commands.monitoring import run_config

    run_config(env_file, Console())
