"""Build a worker's model from files of an untrusted server: nothing in them is run as code.

Read are JSON settings of an architecture in Transformers, a tokenizer of its own libraries with a chat
template that Transformers renders in a sandbox, and safetensors. Settings that could load code from elsewhere
(``auto_map``, attention kernels, quantization plug-ins) are refused.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import torch
from peft import LoraConfig
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.initialization import no_init_weights

from art_trainer.distributed.protocol import FileEntry, ModelManifest, RunSpec
from art_trainer.distributed.weights import (
    ADAPTER,
    ADAPTER_SHAPE,
    CONFIG,
    TOKENS,
    WEIGHTS,
    all_tensors,
    copy_tensors,
    match_dtypes,
    token_probes,
)
from art_trainer.distributed.worker.connection import RefusedError
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.loading import DTYPES, add_adapter

_MODELS: Any = AutoModelForCausalLM
_NO_INIT_LOCK = threading.Lock()
"""Held while models are created without initial values: Transformers replaces PyTorch's init functions for
all threads meanwhile, and two at a time would restore the replacements."""
_SMALL_FILES = {
    *(CONFIG, TOKENS, ADAPTER, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model"),
    "chat_template.jinja",
}
MAX_WEIGHT_BYTES = 2**40
"""Largest file of weights that is fetched."""
_MAX_SMALL_BYTES = 256 * 2**20
_LOADS_CODE = {
    *("auto_map", "auto_mapping", "attn_implementation", "experts_implementation"),
    *("quantization_config", "kernel_config", "use_kernels"),
}


def files_to_fetch(manifest: ModelManifest, *, weights: bool) -> list[FileEntry]:
    """Return the files of a server's model, if all are of kinds that run no code.

    Args:
        manifest: What the server has.
        weights: Whether the worker computes with the model itself.

    Raises:
        RefusedError: For an unknown or repeated name, or a size out of bounds.
    """
    names = [entry.name for entry in manifest.files]
    if len(set(names)) != len(names):
        raise RefusedError("the server lists a file of its model twice")
    for name in names:
        if name != WEIGHTS and name not in _SMALL_FILES:
            raise RefusedError(f"the server's model has a file {name!r}, which no worker takes")
    wanted = [entry for entry in manifest.files if weights or entry.name != WEIGHTS]
    for entry in wanted:
        limit = MAX_WEIGHT_BYTES if entry.name == WEIGHTS else _MAX_SMALL_BYTES
        if entry.size > limit:
            raise RefusedError(f"the server's {entry.name} has {entry.size} bytes, more than {limit}")
    return wanted


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load a server's tokenizer.

    Raises:
        RefusedError: If its files name code or local files, are no tokenizer, or one that encodes differently
            here than on the server.
    """
    settings = _json_object(folder / "tokenizer_config.json")
    _refuse_code(settings, "tokenizer_config.json")
    paths = [name for name, value in settings.items() if name.endswith("_file") and value is not None]
    if paths:
        raise RefusedError(f"the server's tokenizer_config.json names files of this machine: {paths[0]}")
    # The class that the configuration names would replace the rules of tokenizer.json.
    loader: Any = PreTrainedTokenizerFast if (folder / "tokenizer.json").exists() else AutoTokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        agrees = token_probes(tokenizer) == _json_object(folder / TOKENS).get("probes")
    except Exception as error:  # the tokenizers library raises this very class
        raise RefusedError(f"the server's tokenizer cannot be loaded: {error}") from error
    if not agrees:
        raise RefusedError(
            "the server's tokenizer makes other tokens here than there: install the same versions of "
            "transformers and tokenizers on both sides"
        )
    return tokenizer


def make_model(folder: Path, run: RunSpec, device: torch.device) -> nn.Module:
    """Create a server's model; the weights that training changes are still to be loaded.

    Meanwhile no other thread of the process may create a model: it would have no initial values.

    Args:
        folder: The server's files.
        run: The server's run.
        device: Where the model goes.

    Raises:
        RefusedError: If the files are no model, or one that needs code from elsewhere.
        WeightError: If the weights do not fit the model.
    """
    if (folder / ADAPTER).exists() and not (folder / WEIGHTS).exists():
        raise RefusedError(
            "the server's model is loaded in 4 bits, which workers cannot: start this one with --inference "
            "server, or the server without load_in_4bit"
        )
    _refuse_code(_json_object(folder / CONFIG), CONFIG)
    if run.dtype not in DTYPES:
        raise RefusedError(f"the server's weights are {run.dtype!r}: a worker takes {', '.join(DTYPES)}")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        with _NO_INIT_LOCK, no_init_weights():
            model = _MODELS.from_config(config, dtype=DTYPES[run.dtype], trust_remote_code=False)
        model.tie_weights()
    except Exception as error:  # an odd configuration can raise anything
        raise RefusedError(f"the server's {CONFIG} makes no model here: {error}") from error
    model.generation_config.eos_token_id = _end_tokens(folder / TOKENS)
    model.requires_grad_(False)
    if (folder / WEIGHTS).exists():
        match_dtypes(model, folder / WEIGHTS)
        copy_tensors(all_tensors(model), folder / WEIGHTS, WEIGHTS)
    if (folder / ADAPTER).exists():
        model = _with_adapter(model, _json_object(folder / ADAPTER))
    placed: nn.Module = model.to(device).eval()
    return placed


def make_policy(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, run: RunSpec, max_batch: int
) -> TransformersPolicy:
    """Create the server's policy.

    Raises:
        RefusedError: If the settings or the chat template are invalid.
    """
    try:
        return TransformersPolicy(
            model,
            tokenizer,
            sampling=run.sampling,
            max_context=run.max_context,
            max_batch=max_batch,
            history_window=run.history_window,
            name="worker",
        )
    except (ValueError, jinja2.TemplateError) as error:
        raise RefusedError(f"the server's policy cannot be played: {error}") from error


def _with_adapter(model: nn.Module, shape: dict[str, Any]) -> nn.Module:
    odd = sorted(set(shape) - set(ADAPTER_SHAPE))
    if odd:
        raise RefusedError(f"the server's {ADAPTER} has {odd[0]!r}, which is no part of a LoRA's shape")
    try:
        return add_adapter(model, LoraConfig(task_type="CAUSAL_LM", **shape))
    except (ValueError, TypeError) as error:
        raise RefusedError(f"the server's adapter cannot be created: {error}") from error


def _end_tokens(file: Path) -> Any:
    found = _json_object(file).get("eos_token_id")
    tokens = found if isinstance(found, list) else [found]
    if found is not None and not all(type(token) is int and token >= 0 for token in tokens):
        raise RefusedError(f"the server's {TOKENS} names {found!r}, which is no token")
    return found


def _refuse_code(settings: Any, name: str) -> None:
    """Refuse settings, at any depth, that load code."""
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
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError(f"the server's {file.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise RefusedError(f"the server's {file.name} holds no JSON object")
    return found
