"""Load Hugging Face models and tokenizers from a folder or name, in the requested precision."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import torch
from huggingface_hub import get_session, is_offline_mode, try_to_load_from_cache
from huggingface_hub.constants import ENDPOINT
from peft import LoraConfig, PeftConfig, get_peft_model
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from art_gym.errors import did_you_mean
from art_trainer.errors import ConfigError
from art_trainer.models.cpu import multiplies_bfloat16, usable_cores
from art_trainer.models.gradient_checkpointing import enable_gradient_checkpointing
from art_trainer.models.lora import use_fast_layers

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
"""Dtypes by the names of settings; ``auto``: see :meth:`ModelOptions.dtype_of`."""
AUTO = "auto"

_CONFIGS = ("config.json", "adapter_config.json", "tokenizer_config.json")

_WITHOUT_OUT_PROJ = {"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"}  # as of PEFT 0.21


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is loaded."""

    dtype: str = AUTO
    """``auto`` (see :meth:`dtype_of`), ``bfloat16`` or ``float32``. Weights of 16 bits are trained in float32
    all the same, see :mod:`art_trainer.models.optim`."""
    lora: int | None = None
    """Rank of a new LoRA adapter on all linear layers; ``None`` trains all weights."""
    load_in_4bit: bool = False
    """Load the frozen weights as 4-bit NormalFloat (QLoRA, arXiv:2305.14314); needs ``lora``."""
    gradient_checkpointing: bool = False
    """Recompute the layers in the backward pass instead of keeping their activations."""
    device: str | None = None
    """The model's device; ``None``: the first GPU, else the CPU."""

    def __post_init__(self) -> None:
        if self.dtype not in (AUTO, *DTYPES):
            raise ConfigError(f"dtype is {self.dtype!r}{did_you_mean(self.dtype, (AUTO, *DTYPES))}")
        try:
            torch.empty(0, device=self.torch_device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise ConfigError(f"device is {self.device!r}: {str(error).splitlines()[0]}") from error
        if self.load_in_4bit and self.lora is None:
            raise ConfigError(
                "load_in_4bit is set, but 4-bit weights cannot be trained: set lora too, as in --lora 16"
            )

    def dtype_of(self, saved: torch.dtype) -> torch.dtype:
        """Return the dtype of a model that was saved in another.

        With ``auto`` it stays what it was, but for bfloat16 on a CPU without instructions for it, such as one
        with AVX2 alone: there it is float32, in which SmolLM2 is seven times as fast.
        """
        slow = self.torch_device.type == "cpu" and not multiplies_bfloat16()
        usual = torch.float32 if slow and saved == torch.bfloat16 else saved
        return DTYPES.get(self.dtype, usual)

    @property
    def torch_device(self) -> torch.device:
        """The device that :attr:`device` means on this machine."""
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def load_model(path: str, options: ModelOptions) -> nn.Module:
    """Load a model from a folder or a Hugging Face name.

    A new adapter's weights come from torch's global generator, as in PEFT: seed it before.

    Raises:
        ConfigError: If 4-bit weights are requested and not supported here.
        OSError: If there is no such model.
    """
    _require_hub(path)
    if options.load_in_4bit:
        return _with_options(_load_4bit(path, options), options)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES.get(options.dtype, AUTO))
    return apply_model_options(model, options)


def _require_hub(path: str | Path) -> None:
    """Raise an OSError if a model has to come from the Hub, and no connection to it can be made.

    Transformers would try for 23 s, for each of several files. All else is left to it.
    """
    if Path(path).exists() or is_offline_mode():
        return
    try:
        if not any(try_to_load_from_cache(str(path), file) for file in _CONFIGS):
            get_session().head(ENDPOINT, timeout=5)
    except httpx2.ConnectError as error:
        raise OSError(f"no connection to {ENDPOINT}: {error}") from error
    except (ValueError, httpx2.HTTPError):  # no name on the Hub, or a slow Hub
        pass


def apply_model_options(model: nn.Module, options: ModelOptions) -> nn.Module:
    """Apply the options to a model: dtype, device, adapter, checkpointing."""
    saved = next(model.parameters()).dtype
    if (dtype := options.dtype_of(saved)) != saved:
        model = model.to(dtype)
    return _with_options(model.to(options.torch_device), options)


def add_lora_adapter(model: nn.Module, rank: int) -> nn.Module:
    """Add a new LoRA adapter (arXiv:2106.09685) to all linear layers but the head, and freeze the weights.

    Its output is scaled by alpha / r = 2. Left out are routers that return more than a linear layer does; of
    Mamba layers ``dt_proj``, whose weight is read past the adapter, and the last one where PEFT refuses it.
    """
    config: Any = model.config
    adapter = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    kinds = {name: type(layer).__name__ for name, layer in model.named_modules()}
    left_out = {name for name, kind in kinds.items() if kind.endswith("Router") or name.endswith(".dt_proj")}
    left_out |= {"out_proj"} if config.model_type in _WITHOUT_OUT_PROJ else set()
    adapter.exclude_modules = sorted(left_out) or None
    return add_adapter(model, adapter)


@contextmanager
def without_peft_warning() -> Iterator[None]:
    """Within, PEFT reads a property that Transformers has renamed, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing", FutureWarning)
        yield


def add_adapter(model: nn.Module, config: PeftConfig) -> nn.Module:
    """Add a new adapter, and freeze the weights.

    It has the dtype of the weights: PEFT would cast each input of an adapter of float32, and keep the cast
    for the backward pass.
    """
    hugging_face: Any = model
    with without_peft_warning():
        adapted: nn.Module = get_peft_model(hugging_face, config, autocast_adapter_dtype=False)
    use_fast_layers(adapted)
    return adapted


def refuse_untrainable(path: str, options: ModelOptions) -> None:
    """Raise a ConfigError if a model is quantised or would be trained in float16; reads its configuration."""
    try:
        _require_hub(path)
        saved = AutoConfig.from_pretrained(path)
    except (OSError, ValueError):  # no model of that name: whoever loads it says so
        return
    if (quantised := getattr(saved, "quantization_config", None)) is not None:
        kind = quantised.get("quant_method") if isinstance(quantised, dict) else type(quantised).__name__
        raise ConfigError(
            f"{path} was saved quantised ({kind}), and neither its weights nor an adapter on them can be "
            "trained here: name the model it was made from, with load_in_4bit and lora for its memory"
        )
    if options.dtype == AUTO and saved.dtype == torch.float16:
        raise ConfigError(
            f"dtype is 'auto', and {path} was saved in float16, whose gradients over- and underflow: "
            "set dtype=bfloat16 (--dtype bfloat16), or float32"
        )


@contextmanager
def full_precision() -> Iterator[None]:
    """Within, float32 matrices are multiplied in float32 on GPUs too, as comparisons of two ways need."""
    usual = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(usual)


def _with_options(model: nn.Module, options: ModelOptions) -> nn.Module:
    if options.torch_device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: about eight times the speed of float32
    if options.lora is not None:
        model = add_lora_adapter(model, options.lora)
    if options.gradient_checkpointing:
        enable_gradient_checkpointing(model)
    return model


def _load_4bit(path: str, options: ModelOptions) -> nn.Module:
    require_bitsandbytes("load_in_4bit")
    if options.torch_device.type != "cuda":
        raise ConfigError(
            f"load_in_4bit needs a CUDA GPU, but the model's device is {options.torch_device}: leave it out, "
            "and set dtype=bfloat16 for half the memory of float32"
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
        path, quantization_config=scheme, dtype=torch.bfloat16, device_map={"": options.torch_device}
    )
    return model.requires_grad_(False)


def require_bitsandbytes(setting: str) -> None:
    """Raise a ConfigError that names the setting if bitsandbytes is not installed."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(f"{setting} needs the package bitsandbytes: pip install bitsandbytes")


_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")


def load_tokenizer(name_or_path: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer of the class that its own files declare.

    ``AutoTokenizer`` goes by the model's architecture: beside a Qwen2 model it splits texts as Qwen2 does,
    with the file's vocabulary, even if the file declares a generic tokenizer. A policy saved with such a
    tokenizer would come back with other tokens, and no error.

    Raises:
        OSError: If there is no tokenizer of that name.
        ValueError: If its files are not a tokenizer's.
    """
    _require_hub(name_or_path)
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name_or_path)
    declared = get_tokenizer_config(name_or_path).get("tokenizer_class")
    if declared in _GENERIC and type(found).__name__ not in _GENERIC:
        found = PreTrainedTokenizerFast.from_pretrained(name_or_path)
    return found


SMALL_MODEL = 50_000_000
"""Weights below which a third thread gains nothing."""
SMALL_MODEL_THREADS = 2


def default_threads(weights: int) -> int:
    """Return how many CPU threads a model of so many weights computes with.

    ``OMP_NUM_THREADS`` decides, unless a launcher started the process: ``torchrun`` sets it to 1 by itself.
    Otherwise the number follows from the model's size, the machine's cores and the processes on it. It is not
    measured, since it decides a run's digits (sums are cut into as many parts as there are threads), and a
    measurement would depend on what else the machine is doing. ``run.yaml`` records it; a resumed run takes
    it from there. To set it: ``--threads``.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) > 0 and "LOCAL_WORLD_SIZE" not in os.environ:
        return int(given)
    # Launchers say how many processes share this machine.
    own = max(usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
    return min(own, SMALL_MODEL_THREADS) if weights < SMALL_MODEL else own
