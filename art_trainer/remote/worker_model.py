"""A worker's model, made from files of a server that need not be trusted: nothing in them runs as code.

What is read: JSON whose settings are those of an architecture in Transformers, a tokenizer of its own
libraries with a chat template that Transformers renders in a sandbox, and safetensors. What could have code
loaded from elsewhere (``auto_map``, attention kernels, quantization plug-ins) is refused by name.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import torch
from peft import LoraConfig, get_peft_model
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.initialization import no_init_weights

from art_trainer.loading import DTYPES
from art_trainer.remote.base_model import ADAPTER, ADAPTER_SHAPE, CONFIG, TOKENS, WEIGHTS, token_probes
from art_trainer.remote.messages import FileEntry, ModelManifest, RunDescription
from art_trainer.remote.tensor_files import TYPES, WeightError, all_tensors, copy_tensors
from art_trainer.remote.worker_errors import RefusedError
from art_trainer.sampler import SamplingParams
from art_trainer.transformers_policy import TransformersPolicy

_MODELS: Any = AutoModelForCausalLM
_UNINITIALIZED = threading.Lock()
"""Held while models are made without first values. Transformers does that by putting empty functions in the
place of PyTorch's, for all threads: two at one time would put the empty ones back as the originals."""
_TOKENIZER_FILES = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
}
_SMALL_FILES = _TOKENIZER_FILES | {CONFIG, TOKENS, ADAPTER}
_MOST_SMALL_BYTES = 256 * 2**20
_LOADS_CODE = {
    "auto_map",
    "attn_implementation",
    "experts_implementation",
    "quantization_config",
    "kernel_config",
    "auto_mapping",
    "use_kernels",
}


def files_to_fetch(manifest: ModelManifest, *, weights: bool, most_bytes: int) -> list[FileEntry]:
    """The files of a server's model, if all of them are of kinds that run no code.

    Args:
        manifest: What the server has.
        weights: Whether the worker computes with the model itself.
        most_bytes: How large the weights may be.

    Raises:
        RefusedError: For a name that is none of a model's, or a size out of bounds.
    """
    names = [entry.name for entry in manifest.files]
    if len(set(names)) != len(names):
        raise RefusedError("the server lists a file of its model twice")
    for entry in manifest.files:
        if entry.name != WEIGHTS and entry.name not in _SMALL_FILES:
            raise RefusedError(f"the server's model has a file {entry.name!r}, which no worker takes")
    wanted = [entry for entry in manifest.files if weights or entry.name != WEIGHTS]
    for entry in wanted:
        limit = most_bytes if entry.name == WEIGHTS else _MOST_SMALL_BYTES
        if entry.size > limit:
            raise RefusedError(f"the server's {entry.name} has {entry.size} bytes, more than {limit}")
    return wanted


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Read a tokenizer from files of a server.

    Raises:
        RefusedError: Where they name code or files of this machine, are no tokenizer, or one that makes other
            tokens here than on the server.
    """
    settings = _json_object(folder / "tokenizer_config.json")
    _refuse_code(settings, "tokenizer_config.json")
    paths = [name for name, value in settings.items() if name.endswith("_file") and value is not None]
    if paths:
        raise RefusedError(f"the server's tokenizer_config.json names files of this machine: {paths[0]}")
    # The class that a configuration names would build rules of its own in place of the file's.
    loader: Any = PreTrainedTokenizerFast if (folder / "tokenizer.json").exists() else AutoTokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        agrees = token_probes(tokenizer) == _json_object(folder / TOKENS).get("probes")
    except Exception as fault:  # the tokenizers library raises this very class
        raise RefusedError(f"the server's tokenizer cannot be loaded: {fault}") from fault
    if not agrees:
        raise RefusedError(
            "the server's tokenizer makes other tokens here than there: install the same versions of "
            "transformers and tokenizers on both sides"
        )
    return tokenizer


def make_model(folder: Path, run: RunDescription, device: torch.device) -> nn.Module:
    """Make the model that a server's weights fit; those that training changes are still to be applied.

    While this is under way no other thread of the process may make a model of its own: it would be without
    first values, too. Several workers in one process wait for each other.

    Args:
        folder: The server's files.
        run: What the server says of its run.
        device: Where the model shall live.

    Raises:
        RefusedError: Where the files are no model, or one that needs code from elsewhere.
        WeightError: Where the weights are not the model's.
    """
    if (folder / ADAPTER).exists() and not (folder / WEIGHTS).exists():
        raise RefusedError(
            "the server's model is loaded in 4 bits, which workers cannot: start this one with --inference "
            "server, or the server without load_in_4bit"
        )
    settings = _json_object(folder / CONFIG)
    _refuse_code(settings, CONFIG)
    if run.dtype not in DTYPES:
        raise RefusedError(f"the server's weights are {run.dtype!r}: a worker takes {', '.join(DTYPES)}")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        with _UNINITIALIZED, no_init_weights():
            model = _MODELS.from_config(config, dtype=DTYPES[run.dtype], trust_remote_code=False)
        model.tie_weights()
    except Exception as fault:  # there is no end of what an odd configuration can raise
        raise RefusedError(f"the server's {CONFIG} makes no model here: {fault}") from fault
    model.generation_config.eos_token_id = _end_tokens(folder / TOKENS)
    model.requires_grad_(False)
    if (folder / WEIGHTS).exists():
        take_types(model, folder / WEIGHTS)
        copy_tensors(all_tensors(model), folder / WEIGHTS, WEIGHTS)
    if (folder / ADAPTER).exists():
        model = _with_adapter(model, _json_object(folder / ADAPTER))
    placed: nn.Module = model.to(device).eval()
    return placed


def take_types(model: nn.Module, file: Path) -> None:
    """Give a model's tensors the types that they have in a file: some parts may be kept in more precision.

    Raises:
        WeightError: Where the file is none of safetensors.
    """
    parts = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    try:
        with safe_open(file, framework="pt") as opened:
            for name in set(parts) & set(opened.keys()):
                wanted = TYPES.get(opened.get_slice(name).get_dtype())
                if wanted is not None and parts[name].dtype != wanted:
                    parts[name].data = parts[name].data.to(wanted)
    except SafetensorError as fault:
        raise WeightError(f"{file.name} is no safetensors file: {fault}") from fault


def make_policy(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, run: RunDescription, capacity: int, name: str
) -> TransformersPolicy:
    """The server's policy, here.

    Raises:
        RefusedError: Where the tokenizer writes no conversations.
    """
    try:
        return TransformersPolicy(
            model,
            tokenizer,
            sampling=sampling_params(run),
            max_context=run.max_context,
            max_batch=capacity,
            history_window=run.history_window,
            name=name,
        )
    except (ValueError, jinja2.TemplateError) as fault:
        raise RefusedError(f"the server's policy cannot be played: {fault}") from fault


def sampling_params(run: RunDescription) -> SamplingParams:
    """How replies are sampled in a run.

    Raises:
        ValueError: For numbers out of range.
    """
    told = run.sampling.model_dump()
    stops = {name: tuple(told[name]) for name in ("stop_strings", "stop_token_ids")}
    return SamplingParams(**{**told, **stops})


def _with_adapter(model: nn.Module, shape: dict[str, Any]) -> nn.Module:
    odd = sorted(set(shape) - set(ADAPTER_SHAPE))
    if odd:
        raise RefusedError(f"the server's {ADAPTER} has {odd[0]!r}, which is no part of a LoRA's shape")
    hugging_face: Any = model
    try:
        adapted: nn.Module = get_peft_model(hugging_face, LoraConfig(task_type="CAUSAL_LM", **shape))
    except (ValueError, TypeError) as fault:
        raise RefusedError(f"the server's adapter cannot be made: {fault}") from fault
    return adapted


def _end_tokens(file: Path) -> Any:
    found = _json_object(file).get("eos_token_id")
    tokens = found if isinstance(found, list) else [found]
    if found is not None and not all(type(token) is int and token >= 0 for token in tokens):
        raise RefusedError(f"the server's {TOKENS} names {found!r}, which is no token")
    return found


def _refuse_code(settings: Any, name: str) -> None:
    """Look through settings, however deep, for those that load code.

    Raises:
        RefusedError: Naming the setting.
    """
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            if value is not None and (key in _LOADS_CODE or str(key).startswith("_")):
                raise RefusedError(f"the server's {name} sets {key}, which may load code: it is refused")
            _refuse_code(value, name)
    elif isinstance(settings, list):
        for value in settings:
            _refuse_code(value, name)


def _json_object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise RefusedError(f"the server's {file.name} cannot be read: {fault}") from fault
    if not isinstance(found, dict):
        raise RefusedError(f"the server's {file.name} holds no JSON object")
    return found
