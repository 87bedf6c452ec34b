"""``art-trainer supervise``: its flags. The work lies in :mod:`art_trainer.commands.supervising`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

_EPILOG = (
    "Examples:\n\n`art-trainer supervise -- art-trainer train --max-steps 200`.\n\n"
    "`art-trainer supervise -- torchrun --nproc-per-node 2 -m art_trainer train --set sharding=fsdp2`.\n\n"
    "`art-trainer supervise --hang-seconds 1800 -- art-trainer serve --host 10.0.0.5 --token-file token`."
)


def supervise(
    context: typer.Context,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND",
            help="`art-trainer train` or `serve` with its flags; torchrun may start it.",
        ),
    ],
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Most restarts in a row without a new step or checkpoint.")
    ] = 5,
    hang_seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Kill the run and begin it again when nothing in its folder has changed for so long: more "
            "than loading, a step or an evaluation takes, and than workers may be away. [default: never]",
        ),
    ] = None,
) -> None:
    """Run a training command, and begin it again from its checkpoint whenever it dies.

    Not after the end of training, a wrong setting (code 2), Ctrl-C or SIGTERM: those go to the command, which
    saves a checkpoint; a second one kills it. All its processes go together. Each restart is written to the
    run's `restarts.jsonl`.
    """
    from art_trainer.commands.supervising import SuperviseRequest, run_supervise

    root: Any = context.find_root().command
    request = SuperviseRequest(command, max_restarts, hang_seconds)
    raise typer.Exit(run_supervise(request, root.commands, Console()))


def add_supervise_command(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command(epilog=_EPILOG)(supervise)
