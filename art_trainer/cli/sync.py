"""``art-trainer sync`` and ``art-trainer config``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from art_trainer.cli.options import Count, File, Flag, RunDir, command
from art_trainer.errors import ConfigError
from art_trainer.tracking.env_vars import ENV_VARS, load_env_vars


@command(
    "sync",
    "`art-trainer sync runs/Email-v0-art-tiny-1 --to wandb` after a run that was offline.",
    "`art-trainer sync runs/Email-v0-art-tiny-1 --to tensorboard,langfuse` sends a run to loggers that it "
    "did not have.",
)
def sync(run: RunDir, *, to: Annotated[Sequence[str], Flag(metavar="LOGGERS")], timeout: Count = 600) -> None:
    """Send a logger what it missed of a run that has ended, or the whole run.

    The run's folder has everything: a logger that was offline, down or not named gets exactly the rest.

    Flags:
        to: Comma-separated loggers as in --log.
        timeout: Seconds after which a logger is given up.
    """
    from art_trainer.tracking.sinks.base import make_sinks, sink_names
    from art_trainer.tracking.sinks.delivery import sync_run

    values = load_env_vars().values | {"ART_LOG_CLOSE_SECONDS": str(timeout)}
    sinks = make_sinks(sink_names(",".join(to)), values)
    if not sinks:
        raise ConfigError("--to names no logger, as in `--to wandb`")
    complete = True
    for sink in sinks:
        try:
            status, outcome = sync_run(run, sink, timeout=timeout)
        except (FileNotFoundError, ValueError) as error:
            raise ConfigError(str(error)) from error
        complete &= status.complete
        rest = "" if status.complete else f"; not everything: {status.problem}"
        events = "event" if status.delivered == 1 else "events"
        ended = "was interrupted" if outcome == "interrupted" else outcome
        typer.echo(f"{status.name}: sent {status.delivered} {events} of a run that {ended}{rest}")
    if not complete:
        raise typer.Exit(1)


@command("config", "`art-trainer config`.", "`art-trainer config --env-file secrets.env`.")
def show_config(*, env_file: File = Path(".env")) -> None:
    """Show the keys and addresses of services in effect, and their sources; secrets are masked.

    The environment overrides the file.

    Flags:
        env_file: A file of NAME=value lines; it need not exist.
    """
    from art_trainer.cli.console import make_table

    services = load_env_vars(file=env_file)
    table = make_table(None, ["setting", "value", "from", "for"], [])
    table.box, table.columns[0].no_wrap = None, True
    for known in ENV_VARS:
        setting = services.settings.get(known.name)
        shown = ("", "not set") if setting is None else (setting.shown, setting.source)
        table.add_row(known.name, *shown, known.meaning, style="dim" if setting is None else None)
    Console().print(table)
    for line in services.unknown.values():
        typer.echo(line)
