"""``art-trainer export`` and ``export-data``: write a trained model, or the episodes it was trained on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from art_trainer.cli.options import Count, Flag, RunDir, command
from art_trainer.tracking.run_dir import RunFolder


@command(
    "export",
    "`art-trainer export runs/Email-v0-art-tiny-1 mail-agent` writes the folder mail-agent.",
)
def export(
    source: Annotated[Path, Flag(metavar="RUN_OR_CHECKPOINT")],
    folder: Path,
) -> None:
    """Write a trained model as a normal Hugging Face folder: merged weights, tokenizer, model card.

    Flags:
        source: A run's folder (its newest checkpoint), a checkpoint's, or a name of `art-trainer models`.
        folder: Where to write; must not exist, or be empty.
    """
    import transformers

    from art_trainer.training.export import export_model

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    typer.echo(f"Model: {export_model(source, folder)}")


@command(
    "export-data",
    "`art-trainer export-data runs/Email-v0-art-tiny-1 won.jsonl --min-reward 1`: replies with what was "
    "read before them, for TRL's SFTTrainer.",
)
def export_data(
    run: RunDir,
    file: Path,
    *,
    min_reward: float | None = None,
    from_step: Count = 1,
    duplicates: bool = False,
) -> None:
    """Write a run's training episodes as a data set for supervised training, in TRL's format.

    Flags:
        file: Where to write: ….jsonl.
        min_reward: Smallest reward of an attempt.
        from_step: Leave out episodes from before this step.
        duplicates: Keep attempts that equal another one word for word.
    """
    from art_trainer.tracking.datasets import export_data as export_episodes
    from art_trainer.training.run_setup import system_messages

    count = export_episodes(
        run,
        file,
        min_reward=min_reward,
        steps=range(from_step, sys.maxsize),
        duplicates=duplicates,
        systems=system_messages(RunFolder(run)),
    )
    typer.echo(f"{file}: {count} row{'' if count == 1 else 's'}")
