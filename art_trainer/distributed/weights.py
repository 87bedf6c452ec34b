"""Weights as files: one safetensors file a version, written atomically and identified by its sha256.

A version's file holds what training changes: the weights of a PEFT adapter, or all weights of a model. The
rest is fetched once as a folder::

    config.json              the architecture
    tokens.json              end tokens, and texts with their tokens to compare tokenizers
    tokenizer.json, …        the tokenizer and its chat template
    adapter.json             the adapter's shape, if one is trained
    model.safetensors        the weights below the adapter; a full model's come with each version

Reading safetensors runs no code, but the format has no checksum: nothing is copied into a model before the
file's hash is the manifest's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from art_trainer.distributed.protocol import FileEntry, ModelManifest, WeightManifest
from art_trainer.errors import TrainerError
from art_trainer.formatting import fsync
from art_trainer.inference.trainable_policy import TrainablePolicy

CONFIG, TOKENS, ADAPTER, WEIGHTS = "config.json", "tokens.json", "adapter.json", "model.safetensors"
ADAPTER_SHAPE = (
    *("r", "lora_alpha", "target_modules", "exclude_modules", "modules_to_save", "use_rslora", "use_dora"),
    *("bias", "lora_bias", "fan_in_fan_out", "rank_pattern", "alpha_pattern"),
    *("layers_to_transform", "layers_pattern", "target_parameters"),
)
"""Settings of a LoRA adapter that decide its output, given its weights."""
_OTHER_ADAPTER_SETTINGS = (
    *("peft_type", "task_type", "peft_version", "inference_mode", "base_model_name_or_path", "revision"),
    *("lora_dropout", "init_lora_weights", "auto_mapping", "megatron_core", "qalora_group_size"),
)
"""Settings that do not: where weights come from, and how they are trained."""
_PROBES = (
    "Find the e-mail from Ann about the 3rd of May, 2024.",
    "  two spaces, a\ttab\nand\n\nlines; 1234567.89 (100%)",
    'Ünï©ødé, 日本語, 🙂; {"name": "search", "arguments": {"query": "\\u00e9"}}',
    "GUESS LOW 12 <|im_start|>user\n<end></s><tool_call>",
)
_LOCAL_SETTINGS = ("_file", "name_or_path", "auto_map")
"""Ends of settings that name files and code of this machine."""
_SHOWN = 3


class WeightError(TrainerError, RuntimeError):
    """Weights that cannot be written, are damaged, or belong to another model; the message names the file."""


def all_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's parameters and buffers, not copies; of tied ones the first name."""
    named: Iterable[tuple[str, Tensor]] = (*model.named_parameters(), *model.named_buffers())
    return {name: value.detach() for name, value in named}


def copy_tensors(own: Mapping[str, Tensor], file: Path, shown: str) -> None:
    """Copy a file's tensors into a model's, all or none.

    Args:
        own: The model's tensors.
        file: A safetensors file with the same names, shapes and types.
        shown: The file's name in messages.

    Raises:
        WeightError: If it has others.
    """
    found = _read(file, shown)
    problems = [f"it lacks {name}" for name in sorted(own.keys() - found.keys())]
    problems += [f"it has {name}" for name in sorted(found.keys() - own.keys())]
    for name in sorted(own.keys() & found.keys()):
        here, there = own[name], found[name]
        if (here.shape, here.dtype) != (there.shape, there.dtype):
            shapes = [f"{one.dtype} {tuple(one.shape)}" for one in (there, here)]
            problems.append(f"{name} is {shapes[0]}, the model's {shapes[1]}")
    if problems:
        raise WeightError(f"{shown} is of another model: {'; '.join(problems[:_SHOWN])}")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(found[name])


def match_dtypes(model: nn.Module, file: Path) -> None:
    """Convert a model's tensors to the types of a file: some parts may be kept in higher precision.

    Raises:
        WeightError: If it is no safetensors file.
    """
    found = _read(file, file.name)
    adapter = f".{getattr(model, 'active_adapter', '')}."  # PEFT stores its weights without this name
    for name, part in (*model.named_parameters(), *model.named_buffers()):
        stored = found.get(name, found.get(name.replace(adapter, ".")))
        if stored is not None:
            part.data = part.data.to(stored.dtype)


def _read(file: Path, shown: str) -> dict[str, Tensor]:
    """Return a file's tensors; the file is mapped, not read."""
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise WeightError(f"{shown} is no safetensors file: {error}") from error


def file_entry(file: Path, name: str | None = None) -> FileEntry:
    """Return a file's size and sha256, under its own or another name."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileEntry(name=name or file.name, size=file.stat().st_size, sha256=digest)


def file_error(file: Path, wanted: FileEntry, shown: str) -> str | None:
    """Return why a file is not what its manifest says, or ``None``."""
    try:
        found = file_entry(file, wanted.name)
    except OSError as error:
        return f"{shown} cannot be read: {error}"
    if found.size != wanted.size:
        return f"{shown} has the wrong size: {found.size} bytes, its manifest says {wanted.size}"
    return None if found == wanted else f"{shown} is damaged: its sha256 is not the manifest's"


def write_base_model(folder: Path, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the parts of a model that training does not change.

    A model that is loaded in 4 bits gets no file of weights: only the server can sample from it.

    Args:
        folder: An empty folder.
        model: A Hugging Face model, with or without a LoRA adapter.
        tokenizer: Its tokenizer.

    Raises:
        WeightError: If workers cannot create its adapter.
    """
    hugging_face: Any = model
    hugging_face.config.to_json_file(folder / CONFIG)
    _remove_paths(folder / CONFIG)
    generation = getattr(hugging_face, "generation_config", None)
    tokens = {"eos_token_id": getattr(generation, "eos_token_id", None), "probes": token_probes(tokenizer)}
    _write_json(folder / TOKENS, tokens)
    tokenizer.save_pretrained(folder)
    _remove_paths(folder / "tokenizer_config.json")
    if hasattr(model, "peft_config"):
        shape = adapter_shape(hugging_face.peft_config[hugging_face.active_adapter].to_dict())
        _write_json(folder / ADAPTER, shape)
        if not getattr(hugging_face.get_base_model(), "is_quantized", False):
            tensors = {name: value.cpu().contiguous() for name, value in _below_adapter(model)}
            save_file(tensors, folder / WEIGHTS)


def token_probes(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Return test texts, their tokens, and what these are decoded to."""
    probes = []
    for text in _PROBES:
        token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        back = tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        probes.append({"text": text, "token_ids": token_ids, "back": back})
    return probes


def adapter_shape(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a PEFT configuration that workers need.

    Raises:
        WeightError: If the adapter is not LoRA, or a variant that workers do not create.
    """
    kind = str(getattr(settings["peft_type"], "value", settings["peft_type"]))
    known = (*ADAPTER_SHAPE, *_OTHER_ADAPTER_SETTINGS)
    variants = [name for name, value in settings.items() if value and name not in known]
    if kind != "LORA" or variants:
        what = f"with {', '.join(variants)}" if kind == "LORA" else f"of the kind {kind}"
        raise WeightError(f"workers play LoRA adapters alone, not one {what}: train with plain lora")
    shape = {name: settings[name] for name in ADAPTER_SHAPE if settings.get(name) is not None}
    return {name: sorted(value) if isinstance(value, set) else value for name, value in shape.items()}


def _below_adapter(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors below an adapter under the names they had without it."""
    peft_model: Any = model
    for name, value in all_tensors(peft_model.get_base_model()).items():
        if ".modules_to_save." not in name and peft_model.base_model.prefix not in name:
            yield re.sub(r"\.(base_layer|original_module)\b", "", name), value


def _remove_paths(file: Path) -> None:
    """Remove settings that mean nothing on another machine."""
    settings = json.loads(file.read_text(encoding="utf-8")).items()
    _write_json(file, {k: v for k, v in settings if not k.endswith(_LOCAL_SETTINGS) and k[:1] != "_"})


def _write_json(file: Path, data: Any) -> None:
    file.write_text(json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8")


class WeightStore:
    """The newest versions of a policy's weights as files, and the rest of its model.

    :meth:`publish` belongs to the training thread; any thread may call the others.

    Args:
        folder: A folder of its own; files of an earlier process are removed.
        policy: The policy.
        keep: How many versions to keep; a worker may still be fetching the one before the newest.

    Raises:
        WeightError: If the folder cannot be written, or workers cannot create the model.
    """

    def __init__(self, folder: Path, policy: TrainablePolicy, keep: int = 2) -> None:
        self._folder = folder
        self._policy = policy
        self._keep = keep
        self._lock = threading.Lock()
        self._published: dict[int, WeightManifest] = {}
        self._model_folder = folder / "model"
        try:
            self._model_folder.mkdir(parents=True, exist_ok=True)
            for left in (*folder.iterdir(), *self._model_folder.iterdir()):
                if left.is_file():
                    left.unlink()
            write_base_model(self._model_folder, policy.model, policy.tokenizer)
            files = [file_entry(file) for file in sorted(self._model_folder.iterdir()) if file.is_file()]
        except (OSError, SafetensorError) as error:
            raise WeightError(f"{folder} cannot be written: {error}") from error
        self._model = ModelManifest(files=files)

    def publish(self, version: int) -> WeightManifest:
        """Write the policy's present weights; a version that exists already is replaced.

        Raises:
            WeightError: If the file cannot be written, as on a full disk; earlier versions stay.
        """
        model = self._policy.model
        path = self._folder / f"weights-{version:06d}.safetensors"
        partial = path.with_name(f".{path.name}.partial")
        tensors = {name: value.cpu().contiguous() for name, value in exchanged_tensors(model).items()}
        try:
            save_file(tensors, partial)
            entry = file_entry(partial, path.name)
            fsync(partial)
            os.replace(partial, path)
            fsync(self._folder)
        except (OSError, SafetensorError) as error:
            partial.unlink(missing_ok=True)
            raise WeightError(f"{path} cannot be written: {error}") from error
        manifest = WeightManifest(policy_version=version, kind=exchanged_kind(model), file=entry)
        with self._lock:
            self._published.pop(version, None)  # the newest stands last
            self._published[version] = manifest
            retired = [self._published.pop(old) for old in list(self._published)[: -self._keep]]
        for old in retired:
            (self._folder / old.file.name).unlink(missing_ok=True)
        return manifest

    def manifest(self, version: int) -> WeightManifest | None:
        """Return a version's manifest; ``None`` if it does not exist (any more)."""
        with self._lock:
            return self._published.get(version)

    def path(self, version: int) -> Path | None:
        """Return a version's file; ``None`` if it does not exist (any more)."""
        manifest = self.manifest(version)
        return None if manifest is None else self._folder / manifest.file.name

    def model(self) -> ModelManifest:
        """Return the manifest of the model's other files."""
        return self._model

    def model_path(self, name: str) -> Path | None:
        """Return one of these files; ``None`` for a name that is not listed."""
        listed = any(entry.name == name for entry in self._model.files)
        return self._model_folder / name if listed else None


def apply_weights(model: nn.Module, file: Path, manifest: WeightManifest) -> None:
    """Load a version's weights into a model, all or none.

    Args:
        model: A copy of the publisher's model.
        file: A safetensors file.
        manifest: The publisher's manifest of it.

    Raises:
        WeightError: If size, hash, names, shapes or types differ; the model is unchanged.
    """
    shown = f"{manifest.file.name} (version {manifest.policy_version})"
    if (error := file_error(file, manifest.file, shown)) is not None:
        raise WeightError(error)
    kind = exchanged_kind(model)
    if manifest.kind != kind:
        words = {"full": "all weights of a model", "adapter": "an adapter's weights"}
        raise WeightError(f"{shown} holds {words[manifest.kind]}, the model here takes {words[kind]}")
    copy_tensors(exchanged_tensors(model), file, shown)


def exchanged_kind(model: nn.Module) -> Any:
    """Return ``adapter`` for a PEFT model, else ``full``."""
    return "adapter" if hasattr(model, "peft_config") else "full"


def exchanged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that training changes by name, not copies.

    A full model's include all buffers: computed ones may be rounded differently elsewhere.
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
