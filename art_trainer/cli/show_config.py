"""``art-trainer config``."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from art_trainer.cli.options import File, command
from art_trainer.tracking.env_vars import ENV_VARS, load_env_vars


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
