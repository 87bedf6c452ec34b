"""A Hugging Face causal language model from a folder or name, in the precision that was asked for."""

from __future__ import annotations

import difflib
import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM

from art_trainer.errors import ConfigError
from art_trainer.recomputation import recompute_layers

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
"""What weights can be loaded as; beside them ``auto`` takes what the model was saved in."""
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is loaded."""

    dtype: str = AUTO
    """``auto``, ``bfloat16`` or ``float32``. A new adapter's weights are float32 in any case."""
    lora: int | None = None
    """Rank of a new LoRA adapter on all linear layers; ``None`` trains all weights."""
    load_in_4bit: bool = False
    """Load the frozen weights as 4-bit NormalFloat (QLoRA, arXiv:2305.14314); needs ``lora``."""
    gradient_checkpointing: bool = False
    """Compute the layers' insides again in the backward pass instead of keeping them."""
    device: str | None = None
    """Where the model lives; ``None``: the first GPU, else the CPU."""

    def __post_init__(self) -> None:
        names = (AUTO, *DTYPES)
        if self.dtype not in names:
            close = difflib.get_close_matches(self.dtype, names, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ConfigError(f"dtype is {self.dtype!r}: set one of {', '.join(names)}{hint}")
        if self.load_in_4bit and self.lora is None:
            raise ConfigError(
                "load_in_4bit is set, but 4-bit weights cannot be trained: set lora too, as in --lora 16"
            )

    @property
    def torch_dtype(self) -> torch.dtype | str:
        """The dtype as ``from_pretrained`` takes it."""
        return DTYPES.get(self.dtype, AUTO)

    @property
    def place(self) -> torch.device:
        """The device that :attr:`device` stands for on this machine."""
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def load_model(path: str, options: ModelOptions) -> nn.Module:
    """Load a model and give it what the options ask for.

    A new adapter starts from torch's global generator, as PEFT has it: seed it before.

    Args:
        path: A folder or a Hugging Face name.
        options: How.

    Raises:
        ConfigError: Where 4-bit weights are asked for and cannot be had here.
        OSError: Where there is no such model.
    """
    if options.load_in_4bit:
        return _finished(_load_4bit(path, options), options)
    model: nn.Module = AutoModelForCausalLM.from_pretrained(path, dtype=options.torch_dtype)
    return _finished(model.to(options.place), options)


def equip(model: nn.Module, options: ModelOptions) -> nn.Module:
    """Give a model that was made, not loaded, what the options ask for: its dtype, place and parts."""
    dtype = DTYPES.get(options.dtype)
    return _finished(model.to(options.place) if dtype is None else model.to(options.place, dtype), options)


def with_adapter(model: nn.Module, rank: int) -> nn.Module:
    """Return the model with a new LoRA adapter (arXiv:2106.09685) on all linear layers but the head.

    Args:
        model: The model; its own weights are frozen.
        rank: The adapter's rank r; its output is scaled by alpha / r = 2.
    """
    adapter = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted: nn.Module = get_peft_model(model, adapter)
    return adapted


def _finished(model: nn.Module, options: ModelOptions) -> nn.Module:
    if options.lora is not None:
        model = with_adapter(model, options.lora)
    if options.gradient_checkpointing:
        recompute_layers(model)
    return model


def _load_4bit(path: str, options: ModelOptions) -> nn.Module:
    """Load frozen 4-bit weights, computed with in bfloat16.

    Raises:
        ConfigError: Where bitsandbytes or a GPU is missing.
    """
    require_bitsandbytes("load_in_4bit")
    if options.place.type != "cuda":
        raise ConfigError(
            f"load_in_4bit needs a CUDA GPU, but the model's device is {options.place}: leave it out, and "
            "set dtype=bfloat16 for half the memory of float32"
        )
    from transformers import BitsAndBytesConfig

    configure: Any = BitsAndBytesConfig
    scheme = configure(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    model: nn.Module = AutoModelForCausalLM.from_pretrained(
        path, quantization_config=scheme, dtype=torch.bfloat16, device_map={"": options.place}
    )
    return model.requires_grad_(False)


def require_bitsandbytes(setting: str) -> None:
    """Check that bitsandbytes is installed.

    Raises:
        ConfigError: With what to install, naming the setting that needs it.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(f"{setting} needs the package bitsandbytes: pip install bitsandbytes")
