"""``art-trainer analyze``: its flags. The work lies in :mod:`art_trainer.commands.analyzing`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

_EPILOG = (
    "Examples:\n\n`art-trainer analyze runs/Email-v0-art-tiny-1`.\n\n"
    "`art-trainer analyze runs/honest runs/odd --compare --html both.html`.\n\n"
    "`art-trainer analyze runs/Email-v0-art-tiny-1 --between step-000050 step-000100` tells which tasks were "
    "won and lost from one checkpoint to another, in a run with `--eval-steps 50`.\n\n"
    "`art-trainer analyze runs/Email-v0-art-tiny-1 --price 0.60 --price-read 0.15 --json analysis.json`."
)


def add_analyze_command(app: typer.Typer) -> None:
    """Give the ``art-trainer`` command its ``analyze``."""
    app.command(epilog=_EPILOG)(analyze)


def analyze(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…", help="Folders of runs, finished or not.", exists=True, file_okay=False
        ),
    ],
    compare: Annotated[
        bool, typer.Option("--compare", help="Hold each later run's last evaluation against the first's.")
    ] = False,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="FIRST SECOND",
            help="Two evaluations of each run to tell apart, files of evaluations/, such as step-000010. "
            "[default: before after]",
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="What a million sampled tokens cost, for the run's cost.")
    ] = None,
    price_read: Annotated[float, typer.Option(min=0, help="What a million tokens read cost.")] = 0.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers here.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots here.")
    ] = None,
) -> None:
    """Say what runs did: did it learn, where does it fail, does it cheat?

    Success by stretch of steps, what each part of the reward brought, actions by turn, errors, tasks won and
    lost, tokens, and signs of a reward that pays for something else than success, each with its numbers.
    """
    from art_trainer.commands.analyzing import AnalyzeRequest, run_analyze

    run_analyze(AnalyzeRequest(runs, compare, between, price, price_read, json_file, html_file), Console())
