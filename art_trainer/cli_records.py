"""``art-trainer replay`` and ``art-trainer export-data``: their flags.

The work lies in :mod:`art_trainer.commands.records`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

_REPLAY_EPILOG = (
    "Examples:\n\n`art-trainer replay runs/Email-v0-art-tiny-1 --step 60`.\n\n"
    "`art-trainer replay runs/Email-v0-art-tiny-1 --step 60 --tolerance 1e-5` on another machine, where sums "
    "are rounded otherwise."
)
_EXPORT_EPILOG = (
    "Examples:\n\n`art-trainer export-data runs/Email-v0-art-tiny-1 won.jsonl --min-reward 1`: conversations "
    "for TRL's SFTTrainer.\n\n"
    "`art-trainer export-data runs/Email-v0-art-tiny-1 pairs.parquet --format dpo --min-gap 0.5`: pairs for "
    "its DPOTrainer.\n\n"
    "`art-trainer export-data runs/Email-v0-art-tiny-1 all.jsonl --format openpipe --split 0.1`."
)

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The run's folder.", exists=True, file_okay=False)
]


def replay(
    run: RunArgument,
    step: Annotated[int, typer.Option(min=1, help="The step whose update is done again.")],
    tolerance: Annotated[
        float,
        typer.Option(min=0, help="Largest relative difference that is equal; 0 asks for the same bits."),
    ] = 0.0,
) -> None:
    """Do a run's updates again from its records, and check that the numbers are those it logged.

    Starts from the newest checkpoint before the step, or where there is none from the start of the run.
    Prints what differs; the exit code is 1 where anything does.
    """
    from art_trainer.commands.records import run_replay

    run_replay(run, step, tolerance, Console())


def export_data(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write: ….jsonl or ….parquet.")],
    data_format: Annotated[
        str, typer.Option("--format", help="sft or dpo, TRL's formats, or openpipe.")
    ] = "sft",
    min_reward: Annotated[
        float | None, typer.Option(help="Leave out attempts with less. Of a pair: where the better one has.")
    ] = None,
    top_fraction: Annotated[
        float | None, typer.Option(help="Of the others keep this share with the highest rewards.")
    ] = None,
    min_gap: Annotated[
        float, typer.Option(min=0, help="dpo: how much more reward the better one has at least.")
    ] = 0.0,
    from_step: Annotated[int, typer.Option(min=1, help="Leave out what was played before this step.")] = 1,
    split: Annotated[
        float,
        typer.Option(help="Share of the tasks kept to test on: their rows go to FILE.test.jsonl."),
    ] = 0.0,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Also attempts that another one equals word for word.")
    ] = False,
) -> None:
    """Write a run's training episodes as a data set for supervised or preference training."""
    from art_trainer.commands.records import ExportDataRequest, run_export_data

    request = ExportDataRequest(
        run=run,
        file=file,
        data_format=data_format,
        min_reward=min_reward,
        top_fraction=top_fraction,
        min_gap=min_gap,
        from_step=from_step,
        split=split,
        duplicates=duplicates,
    )
    run_export_data(request, Console())


def add_records_commands(app: typer.Typer) -> None:
    """Add both commands to an app."""
    app.command(epilog=_REPLAY_EPILOG)(replay)
    app.command("export-data", epilog=_EXPORT_EPILOG)(export_data)
