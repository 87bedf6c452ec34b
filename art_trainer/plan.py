"""What a training run will need, from a model's configuration alone: no weight is loaded or even allocated.

The model is built on PyTorch's meta device, where tensors have a shape and no content. So weights are counted
by the model's own code, whatever its architecture, and not by a formula; and one pass over a few tokens tells
what a token leaves behind in the cache and what the backward pass keeps of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedConfig

from art_trainer.config import GRPOConfig
from art_trainer.kv_cache import SlotCache
from art_trainer.loading import DTYPES, ModelOptions, with_adapter
from art_trainer.optimization import optimizer_bytes, trained_parameters
from art_trainer.scoring import LOGITS_PER_CHUNK

_PROBE_TOKENS = 31
"""Tokens of the probing pass; a prime, so that no other size of a model is the same by chance."""
_ROUNDING = 64
"""The cache grows in steps of so many positions."""
_NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes a 4-bit weight: half a byte, an 8-bit scale for 64 of them, a float32 for 256 scales."""


@dataclass(frozen=True, slots=True)
class EpisodeShape:
    """How long episodes get, in tokens."""

    prompt: int
    """The longest first prompt; with a history window, the longest of any turn."""
    observation: int
    """The longest later observation, with what the chat template puts around it."""
    turns: int
    """Most replies of an episode."""
    windowed: bool = False
    """Whether each turn is a context of its own."""

    def context(self, reply: int, limit: int | None) -> int:
        """Most tokens of one context, where observations stay as long as the longest that was seen.

        Args:
            reply: Most tokens of one reply.
            limit: Most tokens the model was made for.
        """
        if self.windowed:
            longest = self.prompt + reply
        else:
            longest = self.prompt + self.turns * reply + (self.turns - 1) * self.observation
        return longest if limit is None else min(longest, limit)


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of the memory a run needs."""

    name: str
    size: int
    """Bytes."""
    how: str
    """What it is made of, in words."""
    exact: bool
    """Whether it is what will be allocated; else an upper estimate."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What a run will do and need; see :func:`plan_training`."""

    parameters: int
    """Weights of the model, those of an adapter included, tied ones once."""
    trained: int
    """Those that are trained."""
    memory: tuple[MemoryPart, ...]
    episodes: int
    """Episodes of one step."""
    sampled_tokens: int
    """Most tokens sampled in one step."""
    context_tokens: int
    """Most tokens of all contexts of one step."""
    context: int
    """Most tokens of one context."""
    keeps_cache: bool
    """Whether keys and values are kept from turn to turn, or contexts are read again each turn."""
    shares_prefixes: bool
    """Whether a group's common prompt will be computed once in the update, where the model's own forward
    pass agrees (it is asked when the run starts)."""

    @property
    def total(self) -> int:
        """Bytes of all parts together."""
        return sum(part.size for part in self.memory)


def empty_model(config: PreTrainedConfig, options: ModelOptions) -> nn.Module:
    """Build a model without content on the meta device, with an empty adapter where one is asked for.

    Args:
        config: The model's configuration.
        options: Its dtype (``"auto"``: the configuration's own, else float32) and adapter are followed.
    """
    saved = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    model = _from_config(config, DTYPES.get(options.dtype, saved))
    if options.load_in_4bit:
        model.requires_grad_(False)
    return model if options.lora is None else with_adapter(model, options.lora)


def plan_training(
    model: nn.Module, config: GRPOConfig, options: ModelOptions, shape: EpisodeShape, *, max_batch: int
) -> TrainingPlan:
    """Return the plan of a run.

    Memory, by part:

    - weights: all parameters and buffers, each at its own size; 4-bit ones at 4.13 bits.
    - gradients: one number of the weight's type for each trained weight.
    - optimizer: what :func:`~art_trainer.optimization.optimizer_bytes` says.
    - reference: all weights again, where ``beta`` is above 0 and there is no adapter to switch off.
    - KV cache: rows times positions times what a token leaves behind; rows are the conversations under way at
      a time, positions the longest context, rounded up to 64. Growing row by row it may stand up to 1.5 times
      as high.
    - activations: what the backward pass keeps of a micro-batch's tokens; see
      :func:`activation_bytes_per_token`.
    - logits: three float32 numbers (logits, log-probs, their gradient) for each entry of the vocabulary at
      each position that predicts a sampled token, at most 2^24 of them at a time.

    Args:
        model: From :func:`empty_model`, or any model: nothing of it is computed with content.
        config: The settings.
        options: How the model will be loaded.
        shape: How long episodes get.
        max_batch: Most conversations that have a row of the cache at one time.
    """
    base = _base(model)
    text = base.config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None)
    context = shape.context(config.max_completion_length, limit)
    episodes = config.groups_per_step * config.num_generations
    keeps_cache = _keeps_cache(base)
    rows = min(episodes, max_batch, config.max_concurrent or episodes)
    tokens = max(config.tokens_per_microbatch, context)
    predicted = min(tokens, LOGITS_PER_CHUNK // int(text.vocab_size) + 1)
    trained = trained_parameters(model).values()
    dtype = next(base.parameters()).dtype
    parts = [
        MemoryPart("weights", *_weights(model, options)),
        MemoryPart("gradients", _bytes(trained), f"{_count(trained):,} trained weights", True),
        MemoryPart("optimizer", optimizer_bytes(model, config.optim), "AdamW's two moments", True),
    ]
    if config.beta > 0 and options.lora is None:
        parts.append(MemoryPart("reference", _reference(model, config), "the weights at the start", True))
    if keeps_cache:
        positions = -(-context // _ROUNDING) * _ROUNDING
        size = rows * positions * cache_bytes_per_token(model)
        parts.append(MemoryPart("KV cache", size, f"{rows} rows of {positions:,} tokens", False))
    kept = activation_bytes_per_token(model, recompute=options.gradient_checkpointing)
    parts += [
        MemoryPart("activations", int(kept * tokens), f"a micro-batch of {tokens:,} tokens", False),
        MemoryPart(
            "logits", 12 * predicted * int(text.vocab_size), f"{predicted:,} positions at a time", False
        ),
    ]
    return TrainingPlan(
        parameters=_count(model.parameters()),
        trained=_count(trained),
        memory=tuple(parts),
        episodes=episodes,
        sampled_tokens=episodes * shape.turns * config.max_completion_length,
        context_tokens=episodes * context * (shape.turns if shape.windowed else 1),
        context=context,
        keeps_cache=keeps_cache,
        shares_prefixes=config.share_prefixes and keeps_cache and dtype.is_floating_point,
    )


def _keeps_cache(base: Any) -> bool:
    """Whether :class:`~art_trainer.decoding.SlotDecoder` will serve the model."""
    return (
        base.config._attn_implementation in ("sdpa", "eager")
        and "position_ids" in inspect.signature(base.forward).parameters
        and SlotCache.layer_count_for(base.config) is not None
    )


def cache_bytes_per_token(model: nn.Module) -> int:
    """Return what one token leaves behind in the cache, over all layers, in bytes.

    Read off a pass over one token, so that compressed latents (DeepSeek-V3, Kimi K2) count as what they are.
    """
    probe = _probe_model(model)
    cache = DynamicCache(config=_base(probe).config)
    with torch.no_grad():
        _read(probe, cache, 1)
    layers: Iterable[Any] = cache.layers
    entries = sum(int(states.numel()) for layer in layers for states in (layer.keys, layer.values))
    return entries * _itemsize(model)


def activation_bytes_per_token(model: nn.Module, *, recompute: bool = False) -> float:
    """Return what autograd keeps of one token between forward and backward, over all layers, in bytes.

    Counted, not derived: the tensors that a pass over a few tokens saves for its backward, each once, without
    the weights. Matrices of tokens by tokens are left out, as attention kernels do not keep them (on a CPU
    they are kept where keys and values differ in size, as in DeepSeek-V3). The head is not part of it.

    Args:
        model: The model; its trained weights decide what is saved.
        recompute: With gradient checkpointing: each layer's input, and one layer's insides.
    """
    probe = _probe_model(model)
    weights = {tensor.untyped_storage()._cdata for tensor in _tensors(probe)}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in weights and list(tensor.shape).count(_PROBE_TOKENS) < 2:
            saved[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _read(probe, DynamicCache(config=_base(probe).config), _PROBE_TOKENS)
    scale = _itemsize(model) / _itemsize(probe)
    total = scale * sum(tensor.untyped_storage().nbytes() for tensor in saved.values()) / _PROBE_TOKENS
    if not recompute:
        return total
    text = _base(model).config.get_text_config(decoder=True)
    layers = int(text.num_hidden_layers)
    return layers * int(text.hidden_size) * _itemsize(model) + total / layers


def _probe_model(model: nn.Module) -> nn.Module:
    """Return the model as one that can be asked on the meta device.

    Grouped experts have a meta kernel for bfloat16 alone, and none with an adapter: a model with such experts
    is asked in that, as if all its weights were trained, which keeps more.
    """
    grouped = any(parameter.ndim == 3 for parameter in _base(model).parameters())
    if not grouped and all(tensor.is_meta for tensor in _tensors(model)):
        return model
    base = _base(model)
    if grouped:
        return _from_config(base.config, torch.bfloat16)
    adapters: Any = getattr(model, "peft_config", {})
    empty = _from_config(base.config, next(base.parameters()).dtype)
    rank = next((int(adapter.r) for adapter in adapters.values()), None)
    return empty if rank is None else with_adapter(empty, rank)


def _from_config(config: PreTrainedConfig, dtype: torch.dtype) -> nn.Module:
    make: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model: nn.Module = make.from_config(config, dtype=dtype)
    return model


def _base(model: nn.Module) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def _itemsize(model: nn.Module) -> int:
    """Bytes of one number of the model's own weights."""
    first: Tensor = next(_base(model).parameters())
    return first.dtype.itemsize


def _read(model: nn.Module, cache: DynamicCache, tokens: int) -> None:
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    _base(model).get_decoder()(input_ids=ids, past_key_values=cache, use_cache=True)


def _tensors(model: nn.Module) -> list[Tensor]:
    """All weights and buffers, each once."""
    return [*model.parameters(), *model.buffers()]


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors)


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _reference(model: nn.Module, config: GRPOConfig) -> int:
    """Bytes of a second model in the reference's dtype."""
    if config.reference_dtype == "model":
        return _bytes(_tensors(model))
    return sum(
        t.numel() * (DTYPES[config.reference_dtype] if t.is_floating_point() else t.dtype).itemsize
        for t in _tensors(model)
    )


def _weights(model: nn.Module, options: ModelOptions) -> tuple[int, str, bool]:
    """Bytes of the weights, what they are, and whether that is exact."""
    size = _bytes(_tensors(model))
    base = next(_base(model).parameters()).dtype
    kind = str(base).removeprefix("torch.")
    if not options.load_in_4bit:
        return size, kind, True
    layers: Any = _base(model).get_decoder().layers
    packed = [
        module.weight
        for module in layers.modules()
        if isinstance(module, nn.Linear) and not module.weight.requires_grad
    ]
    return size - _bytes(packed) + int(_count(packed) * _NF4_BYTES), f"{kind}, layers in 4 bits", False
