"""``art-trainer dash``: its flags. The work lies in :mod:`art_trainer.commands.dashboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from art_trainer.errors import ConfigError

_EPILOG = (
    "Examples:\n\n`art-trainer dash --open` shows all runs below the folder runs, new ones too.\n\n"
    "`art-trainer dash runs/Email-v0-art-tiny-1 runs/Email-v0-art-tiny-2` compares two.\n\n"
    "`art-trainer dash --host 10.0.0.5 --token-file token.txt` for colleagues on the same network."
)


def dash(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN_DIR…", help="Folders of runs, or folders of such. [default: runs]"),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any but this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8275,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Holds the token that readers must bring. [default: $ART_SERVER_TOKEN]"
        ),
    ] = None,
    allowed_host: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Another name that readers may call this server by. Repeatable."),
    ] = [],  # noqa: B006 (typer reads it, nobody changes it)
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE.pem", help="Certificate; with it the dashboard speaks TLS."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE.pem", help="The certificate's key.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show runs in a browser: curves, warnings, evaluations, every recorded episode; live while they go.

    It only reads the runs' folders, so it can be started and stopped at any time.
    """
    try:
        from art_trainer.commands.certificates import certificate_of
        from art_trainer.commands.dashboard import DashRequest, run_dash
    except ModuleNotFoundError as error:
        raise ConfigError(f'the dashboard needs {error.name}: pip install "art-gym[serve]"') from error

    request = DashRequest(
        folders=tuple(runs or [Path("runs")]),
        host=host,
        port=port,
        token_file=token_file,
        allowed_hosts=tuple(allowed_host),
        open_browser=open_,
        certificate=certificate_of(tls_cert, tls_key),
    )
    run_dash(request, Console())


def add_dash_command(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command(epilog=_EPILOG)(dash)
