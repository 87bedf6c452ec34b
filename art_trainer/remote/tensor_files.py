"""Tensors of a model as a safetensors file, and back: checked whole before the first one is copied."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from art_trainer.errors import TrainerError
from art_trainer.remote.messages import FileEntry

_SHOWN = 3
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class WeightError(TrainerError, RuntimeError):
    """Weights that cannot be written, or are damaged or another model's; the message names the file."""


def all_tensors(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and buffers, not copies; of tied ones the first name."""
    named: Iterable[tuple[str, Tensor]] = (*model.named_parameters(), *model.named_buffers())
    return {name: value.detach() for name, value in named}


def copy_tensors(own: Mapping[str, Tensor], file: Path, shown: str) -> None:
    """Copy a file's tensors into a model's, all of them or none.

    Args:
        own: The model's tensors.
        file: A safetensors file with the same names, shapes and types.
        shown: What messages call it.

    Raises:
        WeightError: Where it has others.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            _check_names(set(own), set(opened.keys()), shown)
            for name, value in own.items():
                _check_like(name, value, opened.get_slice(name), shown)
            with torch.no_grad():
                for name, value in own.items():
                    value.copy_(opened.get_tensor(name))
    except SafetensorError as fault:
        raise WeightError(f"{shown} is no safetensors file: {fault}") from fault


def file_entry(file: Path, name: str | None = None) -> FileEntry:
    """A file's size and sha256.

    Args:
        file: The file.
        name: What it will be called; ``None`` for what it is called.
    """
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileEntry(name=name or file.name, size=file.stat().st_size, sha256=digest)


def check_file(file: Path, wanted: FileEntry, shown: str) -> None:
    """Hold a file against what it should be.

    Raises:
        WeightError: Where its size or its hash is another.
    """
    try:
        found = file_entry(file, wanted.name)
    except OSError as fault:
        raise WeightError(f"{shown} cannot be read: {fault}") from fault
    if found.size != wanted.size:
        raise WeightError(f"{shown} is torn: it has {found.size} bytes, its manifest says {wanted.size}")
    if found.sha256 != wanted.sha256:
        raise WeightError(f"{shown} is damaged: its sha256 is not the manifest's")


def _check_names(own: set[str], found: set[str], shown: str) -> None:
    if own != found:
        missing, unknown = sorted(own - found)[:_SHOWN], sorted(found - own)[:_SHOWN]
        said = [f"it lacks {', '.join(missing)}"] if missing else []
        said += [f"it has {', '.join(unknown)}"] if unknown else []
        raise WeightError(f"{shown} is of another model: {'; '.join(said)}")


def _check_like(name: str, own: Tensor, found: Any, shown: str) -> None:
    shape, dtype = tuple(found.get_shape()), TYPES.get(found.get_dtype(), found.get_dtype())
    if (shape, dtype) != (tuple(own.shape), own.dtype):
        raise WeightError(
            f"{shown} is of another model: {name} is {dtype} {shape}, the model's {own.dtype} "
            f"{tuple(own.shape)}"
        )
