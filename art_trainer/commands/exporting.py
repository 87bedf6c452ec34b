"""``art-trainer export``: a trained model as a normal Hugging Face folder, and to the hub where asked."""

from __future__ import annotations

from pathlib import Path

import transformers
from rich.console import Console

from art_trainer.export import export_model, push_model


def run_export(source: Path, folder: Path, push_to_hub: str | None, console: Console) -> Path:
    """Write the folder, push it where a name is given, and say where things lie.

    Raises:
        ExportError: Where there is nothing to export, something in the way, or nobody logged in to the hub.
        CheckpointError: Where the checkpoint is incomplete or damaged.
    """
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    written = export_model(source, folder, name=push_to_hub)
    console.print(f"Model: {written}", highlight=False, soft_wrap=True)
    if push_to_hub is not None:
        page = push_model(written, push_to_hub)
        console.print(f"On the hub: {page}", highlight=False, soft_wrap=True)
    return written
