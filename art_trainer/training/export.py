"""Export a trained model as a Hugging Face folder: merged weights, tokenizer, model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import nn
from transformers import AutoModelForCausalLM

from art_gym.terminal import visible
from art_trainer.analysis.report import headline
from art_trainer.errors import TrainerError
from art_trainer.formatting import number, percent
from art_trainer.models.known_models import KNOWN_MODELS, known_model_path
from art_trainer.models.loading import load_tokenizer, without_peft_warning
from art_trainer.tracking.run_dir import AFTER, BEFORE, RunFolder, require_writable
from art_trainer.training.checkpoint import result_checkpoint, verify_checkpoint

_CURVE_ROWS = 10
_CURVE = ("step", "reward", "success", "entropy", "eval_reward", "eval_success")
_LOCAL = ("output_dir", "threads", "device", "max_batch", "judge", "judge_args")
"""Settings that say something of a machine or an account, not of the model."""


class ExportError(TrainerError, RuntimeError):
    """A model that cannot be exported; the message says what is missing."""


def find_checkpoint(path: Path) -> tuple[Path, RunFolder]:
    """Return the checkpoint that is a run's result, or that lies at the path, and its run.

    Raises:
        ExportError: If the folder is neither a run nor a checkpoint.
        CheckpointError: If the checkpoint is incomplete or damaged.
    """
    if not path.is_dir():
        raise ExportError(f"no run or checkpoint at {path}: there is no such folder")
    if (path / "manifest.json").exists():
        checkpoint, run = path, path.resolve().parent.parent
    else:
        found = result_checkpoint(RunFolder(path).checkpoints)
        if found is None:
            raise ExportError(
                f"{path} holds no checkpoint: give a run's folder, as in runs/Email-v0-art-tiny-1, or a "
                "checkpoint below it, as in …/checkpoints/step-000060"
            )
        checkpoint, run = found, path
    verify_checkpoint(checkpoint)
    return checkpoint, RunFolder(run)


def export_model(source: Path | str, folder: Path | str, *, name: str | None = None) -> Path:
    """Write a model as a folder that any Hugging Face program loads.

    An adapter is merged into the weights it was trained on, which are loaded from where the run had them. The
    folder appears when it is complete.

    Args:
        source: A run's folder, whose newest checkpoint is taken, a checkpoint's, or a name in
            :data:`.KNOWN_MODELS`, which is copied.
        folder: Where to write; must not exist, or be empty.
        name: What the card calls the model and its example loads; by default the folder's path.

    Returns:
        The folder.

    Raises:
        ConfigError: If the folder cannot be written.
        ExportError: If there is no checkpoint, no base model to merge into, or something at ``folder``.
        CheckpointError: If the checkpoint is incomplete or damaged.
    """
    target, known = Path(folder), str(source) in KNOWN_MODELS and not Path(source).exists()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportError(f"{target} is there already and not empty: give another folder")
    require_writable(target, folder=True)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if known:
            shutil.copytree(known_model_path(str(source)), partial)
        else:
            _write_trained(*find_checkpoint(Path(source)), partial, name or str(folder))
        if target.exists():
            target.rmdir()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _write_trained(checkpoint: Path, run: RunFolder, folder: Path, name: str) -> None:
    model: Any = _merged(checkpoint / "model")
    parameters = sum(p.numel() for p in model.parameters())
    card = model_card(checkpoint, run, name=name, parameters=parameters)
    model.save_pretrained(folder)
    load_tokenizer(checkpoint / "model").save_pretrained(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _merged(folder: Path) -> nn.Module:
    """Load a checkpoint's model, its adapter merged into the weights below it."""
    if not (folder / "adapter_config.json").exists():
        whole: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        return whole
    from peft import PeftModel

    described = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    below = described["base_model_name_or_path"]
    try:
        base = AutoModelForCausalLM.from_pretrained(below, dtype="auto")
    except (OSError, ValueError) as error:
        raise ExportError(
            f"{folder} is an adapter on {below!r}, which cannot be loaded ({str(error).splitlines()[0]}): "
            "put it back there"
        ) from error
    with without_peft_warning():
        adapted: Any = PeftModel.from_pretrained(base, folder)
    merged: nn.Module = adapted.merge_and_unload()
    return merged


def model_card(checkpoint: Path, run: RunFolder, *, name: str, parameters: int) -> str:
    """Return the text of a model's ``README.md``, from whatever files its run left."""
    settings = run.settings()
    before, after = run.evaluation(BEFORE), run.evaluation(AFTER)
    environment = Environment(
        loader=PackageLoader("art_trainer.training"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = cell
    step = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))["learner"]["step"]
    players = [(f"baseline {name}", found) for name, found in run.baselines().items()]
    players += [(name, found) for name, found in (("before", before), ("after", after)) if found is not None]
    curve_names, curve = _curve(run.metrics().records, step)
    return environment.get_template("model_card.md.j2").render(
        name=name,
        title=name.rstrip("/").rpartition("/")[2],
        parameters=f"{parameters:,}",
        step=step,
        env_id=settings.get("env") or "an environment",
        base=settings.get("model"),
        settings={key: json.dumps(value) for key, value in settings.items() if key not in _LOCAL},
        env_args=json.dumps(settings.get("env_args") or {}),
        seed=settings.get("seed"),
        headline=headline(before, after),
        # Success and mean reward with 95% intervals, and episodes.
        evaluations=[
            (player, percent(found.success), number(found.reward), len(found.counted))
            for player, found in players
        ],
        curve_names=curve_names,
        curve=curve,
        max_new_tokens=settings.get("max_completion_length", 256),
    )


def _curve(records: Sequence[Mapping[str, Any]], last_step: int) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return names and rows of a table of at most ten steps, the first and last among them."""
    records = [record for record in records if record.get("step", 0) <= last_step]
    names = tuple(name for name in _CURVE if any(name in record for record in records))
    count = min(_CURVE_ROWS, len(records))
    chosen = [records[round(i * (len(records) - 1) / max(count - 1, 1))] for i in range(count)]
    rows = [[f"{record[key]:.4g}" if key in record else "–" for key in names] for record in chosen]
    return names, rows


def cell(value: object) -> str:
    """Foreign text as a cell of a Markdown table: on one line, and with nothing that Markdown would obey."""
    text = " ".join(visible(str(value)).split())
    for mark in "\\`*_|<>[]":
        text = text.replace(mark, f"\\{mark}")
    return text
