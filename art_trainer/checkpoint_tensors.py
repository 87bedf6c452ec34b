"""Weights and optimizer state to tensors with names, and back; without a pickle on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.utils import logging as hf_logging

from art_trainer.errors import CheckpointError
from art_trainer.optimization import trained_parameters


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimizer's state as ``parameter/key`` to tensor."""
    # Some optimizers count their steps in a plain int.
    return {
        f"{name}/{key}": torch.as_tensor(value).detach().cpu().contiguous()
        for name, parameter in trained_parameters(model).items()
        for key, value in optimizer.state[parameter].items()
    }


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put what :func:`optimizer_tensors` returned in place of an optimizer's state."""
    parameters = trained_parameters(model)
    optimizer.state.clear()
    for name, value in tensors.items():
        parameter_name, _, key = name.rpartition("/")
        parameter = parameters[parameter_name]
        # AdamW keeps its step counts where it was told to: beside the weights for the fused kernel.
        whole = value.ndim == 0 and value.dtype == torch.int64
        optimizer.state[parameter][key] = int(value) if whole else value.to(parameter.device)


def load_model(model: nn.Module, path: Path) -> None:
    """Copy the saved weights into the model; tensors are read by the library that wrote them."""
    source = path / "model"
    if hasattr(model, "peft_config"):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, load_file(source / "adapter_model.safetensors"))
        return
    hugging_face: Any = type(model)
    dtype = next(model.parameters()).dtype
    with without_progress_bars():
        saved = hugging_face.from_pretrained(source, dtype=dtype, use_safetensors=True)
    load_state(model, saved.state_dict(), path)


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Keep Transformers' bars out of the display of a run."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def load_state(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy weights into a model by name, all of them or none.

    Raises:
        CheckpointError: Where one is missing or of another shape; ``path`` is named.
    """
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


def unshared(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights, each stored once: safetensors refuses two names for one tensor."""
    seen: dict[int, str] = {}
    tensors = {}
    for name, value in model.state_dict().items():
        tensors[name] = value.detach().cpu().contiguous()
        if seen.setdefault(value.data_ptr(), name) != name:
            tensors[name] = tensors[name].clone()
    return tensors
