"""Read and write weights and optimizer state as named tensors (safetensors), without pickle."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.utils import logging as hf_logging

from art_trainer.errors import CheckpointError
from art_trainer.models.optim import master_weights, trained_parameters

MASTER = "master"
"""Key of a weight's float32 copy."""


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimizer's state as ``parameter/key`` to tensor."""
    tensors: dict[str, Any] = {}
    masters = master_weights(optimizer)
    for name, parameter in trained_parameters(model).items():
        master = masters[parameter]
        own = {} if master is parameter else {MASTER: master}
        tensors |= {f"{name}/{key}": value for key, value in (own | optimizer.state[master]).items()}
    # Some optimizers count their steps in a plain int.
    return {key: torch.as_tensor(value).detach().cpu().contiguous() for key, value in tensors.items()}


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Replace an optimizer's state by what :func:`optimizer_tensors` returned."""
    parameters, masters = trained_parameters(model), master_weights(optimizer)
    optimizer.state.clear()
    for name, value in tensors.items():
        parameter_name, _, key = name.rpartition("/")
        master = masters[parameters[parameter_name]]
        if key == MASTER:
            master.data.copy_(value)
            continue
        # The fused AdamW keeps its step counts on the weights' device.
        whole = value.ndim == 0 and value.dtype == torch.int64
        optimizer.state[master][key] = int(value) if whole else value.to(master.device)


def load_model_weights(model: nn.Module, path: Path) -> None:
    """Copy a checkpoint's weights into the model; the library that wrote them reads them."""
    source = path / "model"
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        adapted: Any = model
        name = adapted.active_adapter
        file = source / "adapter_model.safetensors"
        if not file.exists():
            raise CheckpointError(f"{path} has no adapter: its run trained all weights, leave lora out")
        tensors = load_file(file)
        _require_same(get_peft_model_state_dict(adapted, adapter_name=name), tensors, path)
        set_peft_model_state_dict(adapted, tensors, adapter_name=name)
        return
    hugging_face: Any = type(model)
    dtype = next(model.parameters()).dtype
    with without_progress_bars():
        saved = hugging_face.from_pretrained(source, dtype=dtype, use_safetensors=True)
    copy_weights(model, saved.state_dict(), path)


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Within, Transformers shows no progress bars."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def copy_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy weights into a model by name, all of them or none.

    Raises:
        CheckpointError: Naming ``path``, if a weight is missing or has another shape.
    """
    own = model.state_dict()
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    _require_same({name: own[name] for name in own if name in tensors or name not in tied}, tensors, path)
    with torch.no_grad():
        for name, value in own.items():
            if name in tensors:
                value.copy_(tensors[name])


def _require_same(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    for name, value in own.items():
        if name not in tensors:
            raise CheckpointError(f"{path} is of another model: it has no weight {name}")
        if tensors[name].shape != value.shape:
            shapes = f"{tuple(tensors[name].shape)}, the model's {tuple(value.shape)}"
            raise CheckpointError(f"{path} is of another model or rank: {name} has shape {shapes}")


def unshared_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights without shared memory: safetensors refuses two names for one tensor."""
    seen: dict[int, str] = {}
    tensors = {}
    for name, value in model.state_dict().items():
        tensors[name] = value.detach().cpu().contiguous()
        if seen.setdefault(value.data_ptr(), name) != name:
            tensors[name] = tensors[name].clone()
    return tensors


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
    """Number of updates."""
    adapter: bool
    """Whether they are a LoRA adapter's, not the whole model's."""


def save_weights(model: nn.Module, parent: Path, version: int) -> SavedWeights:
    """Write the weights of a model, or of its active PEFT adapter, into a new folder below ``parent``.

    The folder is written under another name and renamed, so that a server never reads half of it.
    """
    parent.mkdir(parents=True, exist_ok=True)
    partial = parent / f".art-v{version}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    adapter = hasattr(model, "peft_config")
    source = _save(model, partial, adapter=adapter)
    name = f"art-v{version}-{_digest(source)}"
    folder = parent / name
    # An existing folder of that name is complete and has the same content.
    if not folder.exists():
        source.rename(folder)
    shutil.rmtree(partial, ignore_errors=True)
    return SavedWeights(folder.resolve(), name, version, adapter)


def remove_weights(parent: Path, keep: str) -> None:
    """Delete the folders that :func:`save_weights` wrote below a folder, except one."""
    for folder in parent.iterdir():
        if _NAME.fullmatch(folder.name) and folder.name != keep:
            shutil.rmtree(folder)


def _save(model: nn.Module, folder: Path, *, adapter: bool) -> Path:
    """Return the weights' folder; PEFT puts every adapter but the default one into a folder of its own."""
    hugging_face: Any = model
    if not adapter:
        hugging_face.save_pretrained(folder)
        return folder
    active: str = hugging_face.active_adapter
    # "auto" would ask the Hub on every call whether the vocabulary has changed.
    hugging_face.save_pretrained(folder, selected_adapters=[active], save_embedding_layers=False)
    return folder if active == "default" else folder / active


def _digest(folder: Path) -> str:
    """Return a digest of the folder's JSON and safetensors files and their names."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in (".json", ".safetensors"):
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:_DIGITS]
