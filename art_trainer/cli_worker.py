"""``art-trainer worker``: its flags. The work lies in :mod:`art_trainer.commands.working`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

_EPILOG = (
    "Examples:\n\n`art-trainer worker --server http://127.0.0.1:8270`.\n\n"
    "`ART_SERVER_TOKEN=… art-trainer worker --server https://trainer.example --workers 4 --capacity 16`.\n\n"
    "`art-trainer worker --server http://10.0.0.5:8270 --token-file token --inference server` plays on a "
    "machine without compute."
)


class Inference(enum.StrEnum):
    """Who samples."""

    OWN = "own"
    SERVER = "server"


def worker(
    server: Annotated[str, typer.Option(metavar="URL", help="The training server's address.")],
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Holds the server's token. [default: the setting ART_SERVER_TOKEN]"
        ),
    ] = None,
    capacity: Annotated[int, typer.Option(min=1, help="Most episodes that one worker plays at a time.")] = 32,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many processes; one that dies is started again. [default: the setting "
            "ART_CLIENT_WORKERS, or 1]",
        ),
    ] = None,
    inference: Annotated[
        Inference, typer.Option(help="Sample with a model of one's own, or have the server do it.")
    ] = Inference.OWN,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="NAME", help="The worker's name. [default: a new one]")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where fetched files are kept. [default: ~/.cache/art-gym/worker]"),
    ] = None,
    allow_module: Annotated[
        list[str],
        typer.Option(
            metavar="MODULE",
            help="A Python module that the server may have imported, as in MODULE:Env-v0. Repeatable.",
        ),
    ] = [],  # noqa: B006 (typer reads it, nobody changes it)
    device: Annotated[
        str | None, typer.Option(help="Where the model lives. [default: the first GPU, else the CPU]")
    ] = None,
    env_threads: Annotated[
        int, typer.Option(min=0, help="Threads that step environments while the model samples.")
    ] = 0,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds without a server after which the worker gives up.")
    ] = 600.0,
) -> None:
    """Play episodes for a training server: with its weights, in environments of this machine.

    Ctrl-C and SIGTERM give what is not played back to the server. The exit code is 0 where the server said
    that it is over, 1 where it is gone, 2 where it refused this worker, or the worker what it wants.
    """
    from art_trainer.commands.working import WorkerRequest, run_worker
    from art_trainer.monitoring.settings import load_settings

    request = WorkerRequest(
        server=server,
        token_file=token_file,
        capacity=capacity,
        workers=load_settings().integer("ART_CLIENT_WORKERS") if workers is None else workers,
        inference=inference.value,
        client_id=id_,
        cache=cache,
        allow_modules=tuple(allow_module),
        device=device,
        env_threads=env_threads,
        patience=patience,
    )
    raise typer.Exit(run_worker(request, Console()))


def add_worker_command(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command(epilog=_EPILOG)(worker)
