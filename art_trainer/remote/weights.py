"""Weights on their way to workers: one file a version, there as a whole or not at all, known by its sha256.

A version's file holds what training changes: the weights of a PEFT adapter, or all weights of a model. What
it stands on is fetched once (:mod:`art_trainer.remote.base_model`). Files are safetensors: reading one runs
no code. But the format has no checksum of its own, a flipped bit loads without a word; so nothing is copied
into a model before the hash of the file is the manifest's.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from art_trainer.disk import fsync
from art_trainer.policy import TrainablePolicy
from art_trainer.remote.base_model import write_base_model
from art_trainer.remote.messages import ModelManifest, WeightManifest
from art_trainer.remote.tensor_files import WeightError, all_tensors, check_file, copy_tensors, file_entry

_PREFIX, _SUFFIX = "weights-", ".safetensors"


@dataclass(frozen=True, slots=True)
class _Published:
    manifest: WeightManifest
    path: Path


class WeightStore:
    """The newest versions of a policy's weights as files, and what they stand on.

    :meth:`publish` belongs to the thread that trains; everything else may be called from any thread.

    Args:
        folder: The store's own; files that an earlier process left there are removed.
        policy: Whose weights.
        keep: How many versions stay; a worker may still be fetching the one before the newest.

    Raises:
        WeightError: Where the folder cannot be written, or the model is one that no worker could make.
    """

    def __init__(self, folder: Path, policy: TrainablePolicy, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep is at least 1, got {keep}")
        self._folder = folder
        self._policy = policy
        self._keep = keep
        self._lock = threading.Lock()
        self._published: dict[int, _Published] = {}
        self._model_folder = folder / "model"
        try:
            self._model_folder.mkdir(parents=True, exist_ok=True)
            for left in (*folder.iterdir(), *self._model_folder.iterdir()):
                if left.is_file():
                    left.unlink()
            write_base_model(self._model_folder, policy.model, policy.tokenizer)
            files = [file_entry(file) for file in sorted(self._model_folder.iterdir()) if file.is_file()]
        except (OSError, SafetensorError) as fault:
            raise WeightError(f"{folder} cannot be written: {fault}") from fault
        self._model = ModelManifest(files=files)

    def publish(self, version: int) -> WeightManifest:
        """Write the policy's present weights; the versions before serve until the file is whole.

        Args:
            version: Theirs; a version that is there already is replaced.

        Raises:
            WeightError: Where the file cannot be written, as on a full disk; all is as it was before.
        """
        model = self._policy.model
        path = self._folder / f"{_PREFIX}{version:06d}{_SUFFIX}"
        partial = path.with_name(f".{path.name}.partial")
        tensors = {name: value.cpu().contiguous() for name, value in exchanged_tensors(model).items()}
        try:
            save_file(tensors, partial)
            entry = file_entry(partial, path.name)
            fsync(partial)
            os.replace(partial, path)
            fsync(self._folder)
        except (OSError, SafetensorError) as fault:
            partial.unlink(missing_ok=True)
            raise WeightError(f"{path} cannot be written: {fault}") from fault
        manifest = WeightManifest(policy_version=version, kind=exchanged_kind(model), file=entry)
        with self._lock:
            self._published.pop(version, None)  # the newest stands last
            self._published[version] = _Published(manifest, path)
            old = list(self._published)[: -self._keep]
            retired = [self._published.pop(number) for number in old]
        for one in retired:
            one.path.unlink(missing_ok=True)
        return manifest

    def manifest(self, version: int | None = None) -> WeightManifest | None:
        """What a version's file is.

        Args:
            version: Which; ``None`` for the one published last.

        Returns:
            ``None`` where there is no such version, or none any more.
        """
        found = self._find(version)
        return None if found is None else found.manifest

    def path(self, version: int) -> Path | None:
        """A version's file; ``None`` where there is none, or none any more."""
        found = self._find(version)
        return None if found is None else found.path

    def model(self) -> ModelManifest:
        """The files that a worker needs beside the weights."""
        return self._model

    def model_path(self, name: str) -> Path | None:
        """One of these files; ``None`` for a name that :meth:`model` does not list."""
        listed = any(entry.name == name for entry in self._model.files)
        return self._model_folder / name if listed else None

    def _find(self, version: int | None) -> _Published | None:
        with self._lock:
            if version is None:
                return next(reversed(self._published.values()), None)
            return self._published.get(version)


def apply_weights(model: nn.Module, file: Path, manifest: WeightManifest) -> None:
    """Copy a version's weights into a model, all of them or none.

    Args:
        model: The same as the publisher's, made by :mod:`art_trainer.remote.base_model`.
        file: A safetensors file.
        manifest: What the publisher says it is.

    Raises:
        WeightError: Where the file is not the manifest's, byte for byte, or not this model's: names, shapes
            or types differ. The model is as it was.
    """
    shown = f"{manifest.file.name} (version {manifest.policy_version})"
    check_file(file, manifest.file, shown)
    kind = exchanged_kind(model)
    if manifest.kind != kind:
        words = {"full": "all weights of a model", "adapter": "an adapter's weights"}
        raise WeightError(f"{shown} holds {words[manifest.kind]}, the model here takes {words[kind]}")
    copy_tensors(exchanged_tensors(model), file, shown)


def exchanged_kind(model: nn.Module) -> Any:
    """``adapter`` for a PEFT model, else ``full``."""
    return "adapter" if hasattr(model, "peft_config") else "full"


def exchanged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What training changes, by name: the model's own tensors, not copies, each once.

    Of a full model also all buffers: those that are computed, not saved, are otherwise rounded elsewhere.
    """
    if not hasattr(model, "peft_config"):
        return all_tensors(model)
    peft_model: Any = model
    found: dict[str, Tensor] = get_peft_model_state_dict(
        peft_model,
        adapter_name=peft_model.active_adapter,
        # "auto" asks the hub on every call whether the vocabulary was changed.
        save_embedding_layers=False,
    )
    return found
