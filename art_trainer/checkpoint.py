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
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils import logging as hf_logging

from art_trainer.critic import Critic
from art_trainer.errors import CheckpointError
from art_trainer.optimization import trained_parameters

FORMAT = 1
_NAME = re.compile(r"step-(\d{6,})")
_PARTIAL, _RETIRED, _DELETED = ".partial", ".retired", ".deleted"


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
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _hidden(path, _PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    hugging_face: Any = model
    with _without_progress_bars():
        hugging_face.save_pretrained(partial / "model")
    tokenizer.save_pretrained(partial / "model")
    save_file(_optimizer_tensors(model, optimizer), partial / "optimizer.safetensors")
    if reference is not None:
        save_file(_unshared(reference), partial / "reference.safetensors")
    if critic is not None:
        save_file(critic.tensors(), partial / "critic.safetensors")
    (partial / "state.json").write_text(json.dumps({"format": FORMAT, **state}), encoding="utf-8")
    manifest = {str(file.relative_to(partial)): _fingerprint(file) for file in _files(partial)}
    (partial / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _flush(partial)
    _swap_in(partial, path)
    return path


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
        CheckpointError: Where it is incomplete, damaged or of another model; nothing is loaded then.
    """
    path = Path(path)
    verify_checkpoint(path)
    state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if state.pop("format") != FORMAT:
        raise CheckpointError(f"{path} was written in another format; this version reads format {FORMAT}")
    tensors = load_file(path / "optimizer.safetensors")
    names = list(trained_parameters(model))
    found = {name.rpartition("/")[0] for name in tensors}
    if found and found != set(names):
        odd = sorted(found ^ set(names))[:3]
        raise CheckpointError(f"{path} is of another model: other trained weights ({', '.join(odd)}, …)")
    if (path / "reference.safetensors").exists() != (reference is not None):
        raise CheckpointError(
            f"{path} was written with{'' if reference is None else 'out'} a reference model: "
            "set beta as it was in that run"
        )
    if (path / "critic.safetensors").exists() != (critic is not None):
        raise CheckpointError(
            f"{path} was written with{'' if critic is None else 'out'} a value head: "
            "set advantage_estimator as it was in that run"
        )
    _load_model(model, path)
    _load_optimizer(model, optimizer, tensors)
    if critic is not None:
        critic.load_tensors(load_file(path / "critic.safetensors"))
    if reference is not None:
        _load_state(reference, load_file(path / "reference.safetensors"), path)
    return state


def verify_checkpoint(path: Path) -> None:
    """Compare every file with the manifest.

    Raises:
        CheckpointError: Naming the file that is missing or damaged.
    """
    manifest_file = path / "manifest.json"
    if not manifest_file.exists():
        known = "no such folder" if not path.exists() else "manifest.json is missing"
        raise CheckpointError(f"{path} is not a complete checkpoint: {known}")
    try:
        manifest = json.loads(manifest_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{manifest_file} is damaged: {error}") from error
    for name, wanted in manifest.items():
        file = path / name
        if not file.exists():
            raise CheckpointError(f"{path} is not a complete checkpoint: {name} is missing")
        if _fingerprint(file) != wanted:
            raise CheckpointError(f"{file} is damaged: its size or sha256 is not the manifest's")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step belongs."""
    return folder / f"step-{step:06d}"


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


def prune_checkpoints(folder: Path, keep: int | None) -> None:
    """Delete all but the ``keep`` newest checkpoints of a folder, and what killed processes left there.

    Args:
        folder: The checkpoints' folder; nothing else may be writing there.
        keep: How many to keep; ``None`` keeps all.
    """
    for ending in (_PARTIAL, _DELETED):
        for path in folder.glob(f".step-*{ending}"):
            shutil.rmtree(path)
    if keep is not None:
        for path in list_checkpoints(folder)[:-keep]:
            _delete(path)


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    # Some optimizers count their steps in a plain int.
    return {
        f"{name}/{key}": torch.as_tensor(value).detach().cpu().contiguous()
        for name, parameter in trained_parameters(model).items()
        for key, value in optimizer.state[parameter].items()
    }


def _load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    parameters = trained_parameters(model)
    optimizer.state.clear()
    for name, value in tensors.items():
        parameter_name, _, key = name.rpartition("/")
        parameter = parameters[parameter_name]
        # AdamW keeps its step counts where it was told to: beside the weights for the fused kernel.
        whole = value.ndim == 0 and value.dtype == torch.int64
        optimizer.state[parameter][key] = int(value) if whole else value.to(parameter.device)


def _load_model(model: nn.Module, path: Path) -> None:
    """Copy the saved weights into the model; tensors are read by the library that wrote them."""
    source = path / "model"
    if hasattr(model, "peft_config"):
        from peft import set_peft_model_state_dict
        from peft.utils import load_peft_weights

        set_peft_model_state_dict(model, load_peft_weights(str(source), device="cpu"))
        return
    hugging_face: Any = type(model)
    dtype = next(model.parameters()).dtype
    with _without_progress_bars():
        saved = hugging_face.from_pretrained(source, dtype=dtype)
    _load_state(model, saved.state_dict(), path)


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Keep Transformers' bars out of the display of a run."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _load_state(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    own = model.state_dict()
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    for name, value in own.items():
        if name not in tensors:
            if name in tied:
                continue
            raise CheckpointError(f"{path} is of another model: it has no weight {name}")
        if tensors[name].shape != value.shape:
            shapes = f"{tuple(tensors[name].shape)}, the model's {tuple(value.shape)}"
            raise CheckpointError(f"{path} is of another model: {name} has shape {shapes}")
    with torch.no_grad():
        for name, value in own.items():
            if name in tensors:
                value.copy_(tensors[name])


def _unshared(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights, each stored once: safetensors refuses two names for one tensor."""
    seen: dict[int, str] = {}
    tensors = {}
    for name, value in model.state_dict().items():
        tensors[name] = value.detach().cpu().contiguous()
        if seen.setdefault(value.data_ptr(), name) != name:
            tensors[name] = tensors[name].clone()
    return tensors


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file())


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def _flush(folder: Path) -> None:
    """Force a folder's files to the disk, so that the rename cannot overtake them."""
    for path in (*_files(folder), *(sub for sub in folder.rglob("*") if sub.is_dir()), folder):
        _fsync(path)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap_in(partial: Path, path: Path) -> None:
    """Give the folder its final name; an older checkpoint of that name is moved away first, then deleted."""
    retired = _hidden(path, _RETIRED)
    if path.exists():
        shutil.rmtree(retired, ignore_errors=True)
        path.rename(retired)
    partial.rename(path)
    _fsync(path.parent)
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
