"""Checkpoints: a folder with everything a run needs to resume, whole or not there at all.

::

    step-000100/
        model/                   save_pretrained: weights (only the adapter's for PEFT) and tokenizer
        optimizer.safetensors    AdamW's moments, by parameter name, and float32 copies of weights of 16 bits
        reference.safetensors    the frozen reference's weights, if there is one
        critic.safetensors       the value head and its optimizer, if there is one
        state.json               counters, generators, config; plain JSON
        manifest.json            size and sha256 of each file above

It is written under another name, flushed to the disk and renamed: what has the final name is complete. If one
of that name is replaced, or one is deleted, it gets another name first. So a process can be killed at any
moment and leave nothing half done that looks whole, nor lose a checkpoint before there is a newer one.
No pickle: loading a checkpoint runs no code.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from art_trainer.errors import CheckpointError, CheckpointWriteError
from art_trainer.formatting import fsync
from art_trainer.models.optim import needs_master, trained_parameters
from art_trainer.models.weights_io import (
    MASTER,
    copy_weights,
    load_model_weights,
    load_optimizer,
    optimizer_tensors,
    unshared_state_dict,
    without_progress_bars,
)
from art_trainer.tracking.run_dir import RETIRED, checkpoint_step, hidden_path, list_checkpoints
from art_trainer.training.learner import Learner

FORMAT = 2
_PARTIAL, _DELETED = ".partial", ".deleted"
_OPTIMIZER, _REFERENCE, _CRITIC = "optimizer.safetensors", "reference.safetensors", "critic.safetensors"


def write_checkpoint(
    path: Path, learner: Learner, tokenizer: Any, state: Mapping[str, Any] | None = None
) -> Path:
    """Write a checkpoint; one that is already at ``path`` is replaced.

    Each process has to call it; the main process writes, and the others return when the checkpoint is whole.

    Args:
        path: The checkpoint's folder.
        learner: Model, reference, critic and counters.
        tokenizer: Saved beside the model, so that ``path / "model"`` loads as any Hugging Face folder.
        state: Everything else, JSON-able.

    Raises:
        CheckpointWriteError: If it cannot, as on a full disk; an older one at ``path`` is as it was.
    """
    path = Path(path)
    optimizer = learner.full_optimizer()
    if learner.processes.is_main:
        with _replacing(path) as partial:
            _write_model(learner.model, tokenizer, partial / "model")
            save_file(optimizer_tensors(learner.model, optimizer), partial / _OPTIMIZER)
            if learner.reference is not None:
                save_file(unshared_state_dict(learner.reference), partial / _REFERENCE)
            if learner.critic is not None:
                save_file(learner.critic.tensors(), partial / _CRITIC)
            whole = {"format": FORMAT, "learner": learner.state(), **(state or {})}
            (partial / "state.json").write_text(json.dumps(whole), encoding="utf-8")
    learner.processes.gather(None)
    return path


def write_warm_start(path: Path, model: Any, tokenizer: Any, rounds: int) -> None:
    """Write the weights after so many rounds of a warm start, as a checkpoint is written."""
    with _replacing(path) as partial:
        _write_model(model, tokenizer, partial / "model")
        (partial / "state.json").write_text(json.dumps({"rounds": rounds}), encoding="utf-8")


def read_warm_start(path: Path, model: torch.nn.Module) -> int:
    """Load the weights of a warm start that was stopped; return its rounds, 0 if there are none."""
    if not path.exists():
        return 0
    verify_checkpoint(path)
    load_model_weights(model, path)
    return int(json.loads((path / "state.json").read_text(encoding="utf-8"))["rounds"])


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Give a folder to write into, which gets its manifest and the name ``path`` at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = hidden_path(path, _PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        yield partial
        manifest = {str(file.relative_to(partial)): _fingerprint(file) for file in _files(partial)}
        (partial / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        _flush(partial)
        _swap_in(partial, path)
    except (OSError, SafetensorError) as error:
        raise CheckpointWriteError(f"{path} cannot be written: {error}{_whole_ones(path.parent)}") from error
    finally:
        # Half a checkpoint must not take the room that the disk has no more.
        shutil.rmtree(partial, ignore_errors=True)


def _write_model(model: Any, tokenizer: Any, folder: Path) -> None:
    with without_progress_bars():
        model.save_pretrained(folder)
    if hasattr(model, "peft_config") and (own := folder / model.active_adapter).is_dir():
        # PEFT gives an adapter with a name of its own a folder, where nothing that reads a checkpoint looks.
        for file in own.iterdir():
            file.replace(folder / file.name)
        own.rmdir()
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        # If the disk is full, the tokenizers library raises this very class.
        if type(error) is Exception:
            raise OSError(str(error)) from error
        raise


def read_checkpoint(path: Path, learner: Learner) -> dict[str, Any]:
    """Check a checkpoint against its manifest, then load it into a learner in place.

    Returns:
        The ``state`` it was written with.

    Raises:
        CheckpointError: If it is incomplete, damaged or of another model; nothing is loaded then, and the
            message names the newest whole one beside it.
    """
    path = Path(path)
    verify_checkpoint(path)
    state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if state.pop("format") != FORMAT:
        raise CheckpointError(
            f"{path} was written by a version with another format of checkpoints. Its weights can start "
            f"a new run: --model {path / 'model'}"
        )
    tensors = load_file(path / _OPTIMIZER)
    names = set(trained_parameters(learner.model))
    found = {name.rpartition("/")[0] for name in tensors}
    if found and found != names:
        odd = sorted(found ^ names)[:3]
        raise CheckpointError(f"{path} is of another model: other trained weights ({', '.join(odd)}, …)")
    half = any(map(needs_master, trained_parameters(learner.model).values()))
    if found and half != any(name.endswith(f"/{MASTER}") for name in tensors):
        raise CheckpointError(
            f"{path} was written with{'out' if half else ''} float32 copies of weights of 16 bits: set "
            f"dtype={'float32' if half else 'bfloat16'}, or start a new run from its weights: "
            f"--model {path / 'model'}"
        )
    for file, part, name, setting in (
        (_REFERENCE, learner.reference, "reference model", "beta"),
        (_CRITIC, learner.critic, "value head", "advantage_estimator"),
    ):
        if (path / file).exists() != (part is not None):
            was = f"written with{'' if part is None else 'out'} a {name}"
            raise CheckpointError(f"{path} was {was}: set {setting} as it was in that run")
    optimizer = learner.full_optimizer()
    load_model_weights(learner.model, path)
    load_optimizer(learner.model, optimizer, tensors)
    learner.load_full_optimizer(optimizer)
    if learner.critic is not None:
        learner.critic.load_tensors(load_file(path / _CRITIC))
    if learner.reference is not None:
        copy_weights(learner.reference, load_file(path / _REFERENCE), path)
    learner.restore(state.pop("learner"))
    return state


def verify_checkpoint(path: Path, part: str = "") -> None:
    """Compare every file with the manifest.

    Raises:
        CheckpointError: Naming the file that is missing or damaged, and the newest checkpoint beside it that
            is whole.
    """
    fault = _fault(path, part)
    if fault is not None:
        raise CheckpointError(f"{fault}{_whole_ones(path.parent)}")


def _fault(path: Path, part: str = "") -> str | None:
    """Return what is wrong with a checkpoint's files, ``None`` if they are the manifest's."""
    manifest_file = path / "manifest.json"
    if not manifest_file.exists():
        known = "no such folder" if not path.exists() else "manifest.json is missing"
        return f"{path} is not a complete checkpoint: {known}"
    try:
        manifest = json.loads(manifest_file.read_text(encoding="utf-8"))
    except ValueError as error:
        return f"{manifest_file} is damaged: {error}"
    if not isinstance(manifest, dict) or "state.json" not in manifest:
        return f"{manifest_file} is damaged: it does not list the checkpoint's files"
    for name, wanted in manifest.items():
        if not Path(name).as_posix().startswith(part):
            continue
        file = path / name
        if not file.exists():
            return f"{path} is not a complete checkpoint: {name} is missing"
        if _fingerprint(file) != wanted:
            return f"{file} is damaged: its size or sha256 is not the manifest's"
    return None


def _whole_ones(folder: Path) -> str:
    """Name the newest whole checkpoint of a folder, for the end of an error."""
    whole = next((path for path in reversed(list_checkpoints(folder)) if _fault(path) is None), None)
    return "" if whole is None else f"; the newest whole one is {whole} (step {checkpoint_step(whole)})"


def checkpoint_to_resume(folder: Path, step: int | None = None) -> Path | None:
    """Return what a run resumes from.

    Returns:
        The checkpoint, ``None`` if there is none and none was asked for.

    Raises:
        CheckpointError: If there is no checkpoint of that step.
    """
    found = {checkpoint_step(path): path for path in list_checkpoints(folder)}
    if step is None:
        return found[max(found)] if found else None
    if step not in found:
        have = f"there are those of {', '.join(map(str, sorted(found)))}" if found else "there is none at all"
        raise CheckpointError(f"{folder} has no checkpoint of step {step}: {have}")
    return found[step]


def discard_checkpoints_after(folder: Path, step: int) -> None:
    """Delete the checkpoints of later steps, which a run that went back to this one does again."""
    for path in list_checkpoints(folder):
        if checkpoint_step(path) > step:
            _delete(path)


def prune_checkpoints(folder: Path, keep_last: int | None, best: int | None = None) -> None:
    """Delete all but the newest checkpoints and the best one, and what killed processes left behind."""
    for ending in (_PARTIAL, _DELETED):
        for path in folder.glob(f".step-*{ending}"):
            shutil.rmtree(path)
    if keep_last is not None:
        for path in list_checkpoints(folder)[:-keep_last]:
            if checkpoint_step(path) != best:
                _delete(path)


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file())


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def _flush(folder: Path) -> None:
    """Force a folder's files to the disk, so that the rename cannot overtake them."""
    for path in (*_files(folder), *(sub for sub in folder.rglob("*") if sub.is_dir()), folder):
        fsync(path)


def _swap_in(partial: Path, path: Path) -> None:
    """Give the folder its final name; an older checkpoint of that name is moved away first, then deleted."""
    retired = hidden_path(path, RETIRED)
    if path.exists():
        shutil.rmtree(retired, ignore_errors=True)
        path.rename(retired)
    partial.rename(path)
    fsync(path.parent)
    if retired.exists():
        _delete(retired)


def _delete(path: Path) -> None:
    """Delete a checkpoint, under a name that nobody takes for a whole one."""
    doomed = path.with_name(f".{path.name.removeprefix('.')}{_DELETED}")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed)


def result_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that stands for a run.

    Returns:
        The best one by the run's evaluations if its config has ``load_best_model_at_end``, else the newest;
        ``None`` if there is none.

    Raises:
        CheckpointError: If the newest one's state is damaged.
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
