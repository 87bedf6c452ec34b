"""``art-trainer export``: write a trained model as a normal Hugging Face folder, or push it to the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from art_trainer.cli.options import Flag, command


@command(
    "export",
    "`art-trainer export runs/Email-v0-art-tiny-1 mail-agent` writes the folder mail-agent.",
    "`art-trainer export runs/Email-v0-art-tiny-1 mail-agent --push-to-hub me/mail-agent`.",
)
def export(
    source: Annotated[Path, Flag(metavar="RUN_OR_CHECKPOINT")],
    folder: Path,
    *,
    push_to_hub: str | None = None,
) -> None:
    """Write a trained model as a normal Hugging Face folder: merged weights, tokenizer, model card.

    Flags:
        source: A run's folder (its newest checkpoint), a checkpoint's, or a name of `art-trainer models`.
        folder: Where to write; must not exist, or be empty.
        push_to_hub: Also push it to the Hugging Face Hub under this name.
    """
    import transformers

    from art_trainer.training.export import export_model, push_model

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    written = export_model(source, folder, name=push_to_hub)
    typer.echo(f"Model: {written}")
    if push_to_hub is not None:
        typer.echo(f"On the Hub: {push_model(written, push_to_hub)}")
