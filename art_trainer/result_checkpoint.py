"""Which of a run's checkpoints is its result: the newest, or the best where the run says so."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from art_trainer.checkpoint import checkpoint_step, list_checkpoints, verify_checkpoint
from art_trainer.checkpoint_tensors import load_model
from art_trainer.errors import CheckpointError


def result_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that stands for a run.

    Args:
        folder: The run's checkpoints.

    Returns:
        The best one by the run's evaluations where its config has ``load_best_model_at_end``, else the
        newest; ``None`` where there is none.

    Raises:
        CheckpointError: Where the newest one's state is damaged.
    """
    found = list_checkpoints(folder)
    if not found:
        return None
    newest = found[-1]
    try:
        state = json.loads((newest / "state.json").read_text(encoding="utf-8"))
        wanted = bool(state.get("config", {}).get("load_best_model_at_end"))
        best = state.get("best", {}).get("best_step")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{newest / 'state.json'} is damaged: {error}") from error
    if not wanted:
        return newest
    return next((path for path in found if checkpoint_step(path) == best), newest)


def load_weights(path: Path, model: nn.Module) -> None:
    """Put a checkpoint's weights alone into a model.

    Raises:
        CheckpointError: Where it is incomplete, damaged or of another model.
    """
    verify_checkpoint(path)
    load_model(model, path)
