"""Weights on their way to an engine: a folder of safetensors, there as a whole or not at all."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

_DIGITS = 12
_NAME = re.compile(rf"art-v\d+-[0-9a-f]{{{_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """A model's trained weights in a folder."""

    folder: Path
    """``save_pretrained``'s: only the adapter's weights for PEFT."""
    name: str
    """``art-vVERSION-DIGEST``; equal names are equal weights."""
    version: int
    """How many updates the weights have had."""
    adapter: bool
    """Whether they are a LoRA adapter's, not the whole model's."""


def save_weights(model: nn.Module, parent: Path, version: int) -> SavedWeights:
    """Write a model's weights into a new folder below ``parent``.

    The folder is written under another name and renamed, so that a server never reads half of it.

    Args:
        model: A Hugging Face model, or a PEFT model with one active adapter.
        parent: Where; made if it does not exist.
        version: How many updates the weights have had.
    """
    parent.mkdir(parents=True, exist_ok=True)
    partial = parent / f".art-v{version}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    adapter = hasattr(model, "peft_config")
    source = _save(model, partial, adapter=adapter)
    name = f"art-v{version}-{_digest(source)}"
    folder = parent / name
    # Of that name and complete, it has the same content.
    if not folder.exists():
        source.rename(folder)
    shutil.rmtree(partial, ignore_errors=True)
    return SavedWeights(folder.resolve(), name, version, adapter)


def remove_weights(parent: Path, keep: str) -> None:
    """Delete what :func:`save_weights` wrote below a folder, but for one name."""
    for folder in parent.iterdir():
        if _NAME.fullmatch(folder.name) and folder.name != keep:
            shutil.rmtree(folder)


def _save(model: nn.Module, folder: Path, *, adapter: bool) -> Path:
    """Return where the weights are; PEFT puts every adapter but the default one into a folder of its own."""
    hugging_face: Any = model
    if not adapter:
        hugging_face.save_pretrained(folder)
        return folder
    active: str = hugging_face.active_adapter
    # "auto" asks the hub on every call whether the vocabulary was changed.
    hugging_face.save_pretrained(folder, selected_adapters=[active], save_embedding_layers=False)
    return folder if active == "default" else folder / active


def _digest(folder: Path) -> str:
    """Of all the folder's JSON and safetensors files, with their names."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in (".json", ".safetensors"):
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:_DIGITS]
