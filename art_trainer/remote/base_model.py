"""What weights stand on, as a folder that a worker fetches once: configuration, tokenizer, frozen weights.

::

    config.json              the architecture
    tokens.json              the tokens that end a reply, and some texts with their tokens, to compare
    tokenizer.json, …        the tokenizer and its chat template
    adapter.json             the adapter's shape, where one is trained
    model.safetensors        the weights below the adapter; a full model's come with each version
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import ModulesToSaveWrapper
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from art_trainer.remote.tensor_files import WeightError, all_tensors

CONFIG, TOKENS, ADAPTER, WEIGHTS = "config.json", "tokens.json", "adapter.json", "model.safetensors"
ADAPTER_SHAPE = (
    "r",
    "lora_alpha",
    "target_modules",
    "exclude_modules",
    "modules_to_save",
    "use_rslora",
    "use_dora",
    "bias",
    "lora_bias",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
    "layers_pattern",
    "target_parameters",
)
"""Of a LoRA adapter's settings those that decide what its output is, given its weights."""
_STORY = (
    *("peft_type", "task_type", "peft_version", "inference_mode", "base_model_name_or_path", "revision"),
    *("lora_dropout", "init_lora_weights", "auto_mapping", "megatron_core", "qalora_group_size"),
)
"""Those that say nothing of it: where weights come from, and how they are trained."""
_PROBES = (
    "Find the e-mail from Ann about the 3rd of May, 2024.",
    "  two spaces, a\ttab\nand\n\nlines; 1234567.89 (100%)",
    'Ünï©ødé, 日本語, 🙂; {"name": "search", "arguments": {"query": "\\u00e9"}}',
    "GUESS LOW 12 <|im_start|>user\n<end></s><tool_call>",
)
_PATHS = ("_file", "name_or_path", "auto_map")
"""Ends of settings that name files and code of this machine."""


def write_base_model(folder: Path, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a model without what training changes.

    A model that is loaded in 4 bits has no file of weights: workers cannot play it themselves, but may have
    the server do so.

    Args:
        folder: An empty folder.
        model: A Hugging Face model, maybe with one LoRA adapter.
        tokenizer: Its tokenizer.

    Raises:
        WeightError: Where an adapter is none that a worker could make.
    """
    hugging_face: Any = model
    hugging_face.config.to_json_file(folder / CONFIG)
    _remove_paths(folder / CONFIG)
    generation = getattr(hugging_face, "generation_config", None)
    told = {"eos_token_id": getattr(generation, "eos_token_id", None), "probes": token_probes(tokenizer)}
    _write_json(folder / TOKENS, told)
    tokenizer.save_pretrained(folder)
    _remove_paths(folder / "tokenizer_config.json")
    if hasattr(model, "peft_config"):
        shape = adapter_shape(hugging_face.peft_config[hugging_face.active_adapter].to_dict())
        _write_json(folder / ADAPTER, shape)
        if not getattr(hugging_face.get_base_model(), "is_quantized", False):
            tensors = {name: value.cpu().contiguous() for name, value in _below_adapter(model)}
            save_file(tensors, folder / WEIGHTS)


def token_probes(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Some texts, what tokens they become, and what these are decoded to."""
    probes = []
    for text in _PROBES:
        token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        back = tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        probes.append({"text": text, "token_ids": token_ids, "back": back})
    return probes


def adapter_shape(settings: dict[str, Any]) -> dict[str, Any]:
    """What of a PEFT configuration a worker needs.

    Raises:
        WeightError: Where the adapter is not LoRA, or a variant of it that a worker does not make.
    """
    kind = str(getattr(settings["peft_type"], "value", settings["peft_type"]))
    known = (*ADAPTER_SHAPE, *_STORY)
    variants = [name for name, value in settings.items() if value and name not in known]
    if kind != "LORA" or variants:
        what = f"with {', '.join(variants)}" if kind == "LORA" else f"of the kind {kind}"
        raise WeightError(f"workers play LoRA adapters alone, not one {what}: train with plain lora")
    shape = {name: settings[name] for name in ADAPTER_SHAPE if settings.get(name) is not None}
    return {name: sorted(value) if isinstance(value, set) else value for name, value in shape.items()}


def _below_adapter(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the model that an adapter was put on, under the names they had in it."""
    peft_model: Any = model
    base: nn.Module = peft_model.get_base_model()
    inside = {}
    for name, module in base.named_modules():
        if isinstance(module, BaseTunerLayer):
            inside[name] = "base_layer"
        elif isinstance(module, ModulesToSaveWrapper):
            inside[name] = "original_module"
    for name, value in all_tensors(base).items():
        parts = name.split(".")
        # Where a part is inside a wrapper: what it has to be called, to be the wrapped model's.
        wanted = [inside.get(".".join(parts[:n])) for n in range(len(parts))]
        if all(want in (None, part) for want, part in zip(wanted, parts, strict=True)):
            yield ".".join(p for p, want in zip(parts, wanted, strict=True) if want is None), value


def _remove_paths(file: Path) -> None:
    """Take out of a file of settings what means nothing on another machine."""
    settings = json.loads(file.read_text(encoding="utf-8"))
    kept = {name: value for name, value in settings.items() if not name.endswith(_PATHS) and name[:1] != "_"}
    _write_json(file, kept)


def _write_json(file: Path, data: Any) -> None:
    file.write_text(json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8")
