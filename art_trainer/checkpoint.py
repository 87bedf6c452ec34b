"""Checkpoints: a folder with everything a run needs to go on, whole or not there at all.

::

    step-000100/
        model/                   save_pretrained: weights (only the adapter's for PEFT) and tokenizer
        optimizer.safetensors    AdamW's moments, by parameter name
        reference.safetensors    the frozen reference's weights, where there is one
        critic.safetensors       the value head and its optimizer, where there is one
        state.json               counters, generators, config; plain JSON
        manifest.json            size and sha256 of each file above

It is written under another name, flushed to the disk and renamed: what has the final name is complete. Where
one of that name is replaced, or one is deleted, it gets another name first. So a process can be killed at any
moment and leave nothing half done that looks whole, nor lose a checkpoint before there is a newer one.
No pickle: loading a checkpoint runs no code.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from art_trainer.checkpoint_tensors import (
    load_model,
    load_optimizer,
    load_state,
    optimizer_tensors,
    unshared,
    without_progress_bars,
)
from art_trainer.critic import Critic
from art_trainer.disk import fsync
from art_trainer.errors import CheckpointError
from art_trainer.optimization import trained_parameters

FORMAT = 1
_NAME = re.compile(r"step-(\d{6,})")
_PARTIAL, _RETIRED, _DELETED = ".partial", ".retired", ".deleted"
_OPTIMIZER, _REFERENCE, _CRITIC = "optimizer.safetensors", "reference.safetensors", "critic.safetensors"


def write_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    reference: nn.Module | None = None,
    critic: Critic | None = None,
    state: Mapping[str, Any],
) -> Path:
    """Write a checkpoint; one that is already at ``path`` is replaced.

    Args:
        path: The checkpoint's folder.
        model: A Hugging Face model, maybe with PEFT adapters.
        tokenizer: Saved beside it, so that ``path / "model"`` loads as any Hugging Face folder.
        optimizer: Over the model's trained parameters.
        reference: Frozen weights to keep, if any.
        critic: A value head to keep, if any.
        state: Everything else, JSON-able.

    Returns:
        ``path``.

    Raises:
        CheckpointError: Where it cannot be written, as on a full disk; an older one at ``path`` is as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _hidden(path, _PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        _write_files(partial, model, tokenizer, optimizer, reference, critic)
        (partial / "state.json").write_text(json.dumps({"format": FORMAT, **state}), encoding="utf-8")
        manifest = {str(file.relative_to(partial)): _fingerprint(file) for file in _files(partial)}
        (partial / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        _flush(partial)
        _swap_in(partial, path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be written: {error}{_whole_ones(path.parent)}") from error
    finally:
        # Half a checkpoint must not take the room that the disk has no more.
        shutil.rmtree(partial, ignore_errors=True)
    return path


def _write_files(
    folder: Path,
    model: nn.Module,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    reference: nn.Module | None,
    critic: Critic | None,
) -> None:
    """Write everything that is made of tensors, and what a Hugging Face folder has beside them."""
    hugging_face: Any = model
    with without_progress_bars():
        hugging_face.save_pretrained(folder / "model")
    _save_tokenizer(tokenizer, folder / "model")
    save_file(optimizer_tensors(model, optimizer), folder / _OPTIMIZER)
    if reference is not None:
        save_file(unshared(reference), folder / _REFERENCE)
    if critic is not None:
        save_file(critic.tensors(), folder / _CRITIC)


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        # Where the disk is full, the tokenizers library raises this very class.
        if type(error) is Exception:
            raise OSError(str(error)) from error
        raise


def read_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    reference: nn.Module | None = None,
    critic: Critic | None = None,
) -> dict[str, Any]:
    """Check a checkpoint against its manifest, then load it into model, optimizer and the rest in place.

    Returns:
        The ``state`` it was written with.

    Raises:
        CheckpointError: Where it is incomplete, damaged or of another model; nothing is loaded then, and the
            message names the newest whole one beside it.
    """
    path = Path(path)
    verify_checkpoint(path)
    state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if state.pop("format") != FORMAT:
        raise CheckpointError(f"{path} was written in another format; this version reads format {FORMAT}")
    tensors = load_file(path / _OPTIMIZER)
    names = list(trained_parameters(model))
    found = {name.rpartition("/")[0] for name in tensors}
    if found and found != set(names):
        odd = sorted(found ^ set(names))[:3]
        raise CheckpointError(f"{path} is of another model: other trained weights ({', '.join(odd)}, …)")
    if (path / _REFERENCE).exists() != (reference is not None):
        raise CheckpointError(
            f"{path} was written with{'' if reference is None else 'out'} a reference model: "
            "set beta as it was in that run"
        )
    if (path / _CRITIC).exists() != (critic is not None):
        raise CheckpointError(
            f"{path} was written with{'' if critic is None else 'out'} a value head: "
            "set advantage_estimator as it was in that run"
        )
    load_model(model, path)
    load_optimizer(model, optimizer, tensors)
    if critic is not None:
        critic.load_tensors(load_file(path / _CRITIC))
    if reference is not None:
        load_state(reference, load_file(path / _REFERENCE), path)
    return state


def verify_checkpoint(path: Path, part: str = "") -> None:
    """Compare every file with the manifest.

    Args:
        path: The checkpoint.
        part: Only files whose names begin with this, such as ``model/``.

    Raises:
        CheckpointError: Naming the file that is missing or damaged, and the newest checkpoint beside it that
            is whole.
    """
    fault = _fault(path, part)
    if fault is not None:
        raise CheckpointError(f"{fault}{_whole_ones(path.parent)}")


def _fault(path: Path, part: str = "") -> str | None:
    """Return what is wrong with a checkpoint's files, ``None`` where they are the manifest's."""
    manifest_file = path / "manifest.json"
    if not manifest_file.exists():
        known = "no such folder" if not path.exists() else "manifest.json is missing"
        return f"{path} is not a complete checkpoint: {known}"
    try:
        manifest = json.loads(manifest_file.read_text(encoding="utf-8"))
    except ValueError as error:
        return f"{manifest_file} is damaged: {error}"
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


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step belongs."""
    return folder / f"step-{step:06d}"


def checkpoint_step(path: Path) -> int:
    """Return the step that a checkpoint's name says.

    Raises:
        ValueError: For another name than :func:`checkpoint_path` and :func:`list_checkpoints` give.
    """
    match = _NAME.fullmatch(path.name.removeprefix(".").removesuffix(_RETIRED))
    if match is None:
        raise ValueError(f"{path.name} is not the name of a checkpoint, as in step-000100")
    return int(match[1])


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest step first.

    One that was being replaced when its process was killed is among them, under the name it was given then.
    """
    if not folder.exists():
        return []
    found: dict[int, Path] = {}
    for path in folder.iterdir():
        name = path.name.removeprefix(".").removesuffix(_RETIRED)
        match = _NAME.fullmatch(name)
        if match is None or not path.is_dir():
            continue
        if path.name == name or (path == _hidden(folder / name, _RETIRED) and not (folder / name).exists()):
            found[int(match[1])] = path
    return [found[step] for step in sorted(found)]


def checkpoint_to_resume(folder: Path, step: int | None = None) -> Path | None:
    """Return what a run goes on from.

    Args:
        folder: The checkpoints' folder.
        step: Go on from this step's checkpoint; ``None`` from the newest, which must then be whole: nobody
            goes back to an older one without being told.

    Returns:
        The checkpoint, ``None`` where there is none and none was asked for.

    Raises:
        CheckpointError: Where there is no checkpoint of that step.
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
    """Delete all but the newest checkpoints of a folder and the best, and what killed processes left there.

    Args:
        folder: The checkpoints' folder; nothing else may be writing there.
        keep_last: How many of the newest to keep; ``None`` keeps all.
        best: The step of one that is kept in any case.
    """
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
    retired = _hidden(path, _RETIRED)
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


def _hidden(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}{ending}")
