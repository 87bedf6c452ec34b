"""Estimate a run's memory from a model's configuration alone: no weight is loaded or even allocated.

The model is built on PyTorch's meta device, where tensors have a shape and no content. So weights are counted
by the model's own code, whatever its architecture, and not by a formula; and one pass over a few tokens
shows what a token leaves behind in the cache and what the backward pass keeps of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedConfig

from art_trainer.config import GRPOConfig
from art_trainer.inference.policy import Conversation
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.inference.slot_decoder import can_serve
from art_trainer.models.cache_name import CACHE_NAME
from art_trainer.models.chat_template import ChatFormat
from art_trainer.models.fused_layers import has_fused_norms, use_fused_layers
from art_trainer.models.loading import DTYPES, ModelOptions, add_lora_adapter
from art_trainer.models.lora import base_model
from art_trainer.models.memory import WorkSizes
from art_trainer.models.optim import needs_master, optimizer_bytes, trained_parameters
from art_trainer.rollout.envs import MakeEnv, baseline_names
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.types import EpisodeSpec

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
    fewest_turns: int = 1
    """Replies of the shortest episode that was seen."""
    short_observation: int = 0
    """The shortest later observation that was seen."""
    reply: int = 1
    """The mean reply that was seen."""

    def context(self, reply: int, limit: int | None) -> int:
        """Most tokens of one context, if observations stay as long as the longest that was seen.

        Args:
            reply: Most tokens of one reply.
            limit: Most tokens the model was made for.
        """
        if self.windowed:
            longest = self.prompt + reply
        else:
            longest = self.prompt + self.turns * reply + (self.turns - 1) * self.observation
        return longest if limit is None else min(longest, limit)


Phase = Literal["always", "rollout", "update"]


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of the memory a run needs."""

    name: str
    size: int
    """Bytes."""
    how: str
    """What it is made of."""
    exact: bool
    """Whether it is what will be allocated; else an upper estimate."""
    phase: Phase = "always"
    """When it is held."""


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
    """Whether a group's common prompt is computed once in the update, if the model's own forward pass agrees
    (that is checked when the run starts)."""
    rows: int
    """Most conversations under way at one time."""
    tokens: int
    """Most tokens of a micro-batch."""

    @property
    def total(self) -> int:
        """Most bytes held at one time: rollout and update take turns."""
        return self.held("always") + max(self.held("rollout"), self.held("update"))

    def held(self, phase: Phase) -> int:
        """Bytes of the parts of a phase."""
        return sum(part.size for part in self.memory if part.phase == phase)

    def size(self, name: str) -> int:
        """Bytes of a part; 0 if there is none."""
        return sum(part.size for part in self.memory if part.name == name)

    @property
    def _of_rows(self) -> int:
        """Bytes that grow with the conversations under way."""
        return self.size("KV cache") + self.size("sampling")

    @property
    def smallest(self) -> int:
        """Bytes with one conversation at a time, and micro-batches of one context."""
        kept = self.size("activations")
        rollout = self.size("reading") + self._of_rows // self.rows
        update = self.held("update") - kept + kept * self.context // self.tokens
        return self.held("always") + max(rollout, update)

    def fitted(self, free: int) -> tuple[int, int]:
        """Return how many conversations, and tokens of a micro-batch, fit into so many free bytes.

        At least one conversation, and one context: those of a smaller plan may still be too large.
        """
        room = free - self.held("always")
        of_rows, kept = self._of_rows, self.size("activations")
        for_rows, for_kept = room - self.size("reading"), room - self.held("update") + kept
        rows = self.rows if of_rows <= for_rows else max(1, self.rows * for_rows // of_rows)
        tokens = self.tokens if kept <= for_kept else max(self.context, self.tokens * for_kept // kept)
        return rows, tokens


def empty_model(config: PreTrainedConfig, options: ModelOptions) -> nn.Module:
    """Build a model without content on the meta device, with an empty adapter if options ask for one.

    Args:
        config: The model's configuration.
        options: Its dtype and adapter are followed.
    """
    saved = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    model = _from_config(config, options.dtype_of(saved))
    if options.load_in_4bit:
        model.requires_grad_(False)
    model = model if options.lora is None else add_lora_adapter(model, options.lora)
    if options.torch_device.type in ("cuda", "meta"):  # meta: a GPU of another machine
        use_fused_layers(model)
    return model


def plan_training(
    model: nn.Module, config: GRPOConfig, options: ModelOptions, shape: EpisodeShape, *, max_batch: int
) -> TrainingPlan:
    """Return the plan of a run.

    Memory, by part:

    - weights: all parameters and buffers, each at its own size; 4-bit ones at 4.13 bits.
    - gradients: one number for each trained weight, float32 or the weight's type if that is wider, and the
      largest weight's twice more, while a micro-batch's are added.
    - optimizer: what :func:`~art_trainer.models.optim.optimizer_bytes` says.
    - reference: all weights again, if ``beta`` is above 0 and there is no adapter to switch off.
    - KV cache: rows times positions times what a token leaves behind; rows are the conversations under way at
      a time, in a rollout or an evaluation, positions the longest context, rounded up to 64.
    - sampling: four float32 numbers for each entry of the vocabulary and conversation.
    - reading: what two layers compute of the tokens that one pass reads.
    - activations: what the backward pass keeps of a micro-batch's tokens; see
      :func:`activation_bytes_per_token`.
    - logits: three float32 numbers (logits, log-probs, their gradient) for each entry of the vocabulary at
      each position that predicts a sampled token, so many at a time as :class:`.WorkSizes` says.

    Args:
        model: From :func:`empty_model`.
        config: The settings.
        options: How the model will be loaded.
        shape: How long episodes get.
        max_batch: Most conversations that have a row of the cache at one time.
    """
    base = base_model(model)
    text = text_config(model)
    limit = getattr(text, "max_position_embeddings", None)
    context = shape.context(config.max_completion_length, limit)
    episodes = config.groups_per_step * config.num_generations
    keeps_cache = can_serve(base)
    rows = min(max(min(episodes, config.max_concurrent or episodes), config.eval_episodes), max_batch)
    tokens = max(config.tokens_per_microbatch, context)
    sizes = WorkSizes.of(options.torch_device)
    predicted = min(tokens, sizes.logits // int(text.vocab_size) + 1)
    trained = trained_parameters(model).values()
    dtype = next(base.parameters()).dtype
    copies = ", float32 copies" if any(map(needs_master, trained)) else ""
    single = [p.numel() * max(p.dtype.itemsize, 4) for p in trained]
    gradients = sum(single) + 2 * max(single)
    parts = [
        MemoryPart("weights", *_weights(model, options)),
        MemoryPart("gradients", gradients, f"{_count(trained):,} trained weights", False, "update"),
        MemoryPart("optimizer", optimizer_bytes(model, config.optim), f"AdamW's two moments{copies}", True),
    ]
    if config.beta > 0 and options.lora is None:
        size = _bytes(_tensors(model), DTYPES.get(config.reference_dtype))
        parts.append(MemoryPart("reference", size, "the weights at the start", True))
    if keeps_cache:
        positions = -(-context // _ROUNDING) * _ROUNDING
        size = rows * positions * cache_bytes_per_token(model)
        parts.append(MemoryPart("KV cache", size, f"{rows} rows of {positions:,} tokens", False, "rollout"))
    layer = activation_bytes_per_token(model) / int(text.num_hidden_layers)
    read = min(sizes.read_tokens, rows * context)
    kept = activation_bytes_per_token(model, recompute=options.gradient_checkpointing)
    logits = 12 * predicted * int(text.vocab_size)
    parts += [
        MemoryPart("sampling", 16 * rows * int(text.vocab_size), f"{rows} rows", False, "rollout"),
        MemoryPart("reading", int(2 * layer * read), f"{read:,} tokens at a time", False, "rollout"),
        MemoryPart("activations", int(kept * tokens), f"a micro-batch of {tokens:,} tokens", False, "update"),
        MemoryPart("logits", logits, f"{predicted:,} positions at a time", False, "update"),
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
        rows=rows,
        tokens=tokens,
    )


def cache_bytes_per_token(model: nn.Module) -> int:
    """Return what one token leaves behind in the cache of an empty model, over all layers, in bytes.

    Read off a pass over one token, so that compressed latents (DeepSeek-V3, Kimi K2) count as what they are.
    """
    with torch.no_grad():
        layers: Iterable[Any] = _read(_probe_model(model), 1).layers
    return _count(states for layer in layers for states in (layer.keys, layer.values)) * _itemsize(model)


def activation_bytes_per_token(model: nn.Module, *, recompute: bool = False) -> float:
    """Return what autograd keeps of one token of an empty model between forward and backward, in bytes.

    Counted, not derived: the tensors that a pass over a few tokens saves for its backward, each once, without
    the weights. Matrices of tokens by tokens are left out, as attention kernels do not keep them (on a CPU
    they are kept if keys and values differ in size, as in DeepSeek-V3). The head is not part of it. Where
    norms are fused, they and attention keep what they are given, and not the float32 copies of it here.
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
        _read(probe, _PROBE_TOKENS)
    narrow, size = has_fused_norms(probe), _itemsize(probe)
    kept = sum(
        x.untyped_storage().nbytes() / (x.itemsize / size if narrow and x.itemsize > size else 1)
        for x in saved.values()
    )
    total = _itemsize(model) / size * kept / _PROBE_TOKENS
    if not recompute:
        return total
    text = text_config(model)
    layers = int(text.num_hidden_layers)
    return layers * int(text.hidden_size) * _itemsize(model) + total / layers


def _probe_model(model: nn.Module) -> nn.Module:
    """Return the model, or one that can run on the meta device.

    Grouped experts have a meta kernel for bfloat16 alone, and none with an adapter: a model with such experts
    runs in that, as if all its weights were trained, which keeps more.
    """
    grouped = any(parameter.ndim == 3 for parameter in base_model(model).parameters())
    return _from_config(base_model(model).config, torch.bfloat16) if grouped else model


def _read(model: nn.Module, tokens: int) -> DynamicCache:
    """Run the decoder over so many tokens; return the cache."""
    base = base_model(model)
    cache = DynamicCache(config=base.config)
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    base.get_decoder()(input_ids=ids, use_cache=True, **{CACHE_NAME: cache})
    return cache


def _from_config(config: PreTrainedConfig, dtype: torch.dtype) -> nn.Module:
    make: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model: nn.Module = make.from_config(config, dtype=dtype)
    return model


def text_config(model: nn.Module) -> Any:
    """Return the configuration of a model's language model."""
    return base_model(model).config.get_text_config(decoder=True)


def _itemsize(model: nn.Module) -> int:
    """Bytes of one number of the model's own weights."""
    first: Tensor = next(base_model(model).parameters())
    return first.dtype.itemsize


def _tensors(model: nn.Module) -> list[Tensor]:
    """All weights and buffers, each once."""
    return [*model.parameters(), *model.buffers()]


def _bytes(tensors: Iterable[Tensor], dtype: torch.dtype | None = None) -> int:
    """Bytes of tensors, in another dtype if one is given."""
    return sum(t.numel() * (dtype if dtype and t.is_floating_point() else t.dtype).itemsize for t in tensors)


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _weights(model: nn.Module, options: ModelOptions) -> tuple[int, str, bool]:
    """Bytes of the weights, what they are, and whether that is exact."""
    size = _bytes(_tensors(model))
    base = next(base_model(model).parameters()).dtype
    kind = str(base).removeprefix("torch.")
    if not options.load_in_4bit:
        return size, kind, True
    layers: Any = base_model(model).get_decoder().layers
    packed = [
        module.weight
        for module in layers.modules()
        if isinstance(module, nn.Linear) and not module.weight.requires_grad
    ]
    return size - _bytes(packed) + int(_count(packed) * _NF4_BYTES), f"{kind}, layers in 4 bits", False


# ----------------------------------------------------------------------
# How long episodes get.

MEASURED = 4
"""Episodes that are played to measure the length of observations."""


def episode_shape(form: ChatFormat, make_env: MakeEnv, *, split: str | None, seed: int) -> EpisodeShape:
    """Play a few episodes with one of the environment's players and measure the lengths of messages."""
    players = baseline_names(make_env)
    counter = _TokenCounter(form, players[0] if players else None)
    options = None if split is None else {"split": split}
    starts = [EpisodeSpec(seed + number, options, rng_seed=(seed, number)) for number in range(MEASURED)]
    episodes = rollout_episodes(counter, make_env, starts)
    env = make_env()
    turns = getattr(env.unwrapped, "max_turns", None) or (env.spec and env.spec.max_episode_steps)
    env.close()
    replies = [turn.reply for episode in episodes for turn in episode.turns] or [""]
    # Each reply ends with a token of its own.
    sampled = len(replies) + sum(map(len, form.tokenizer(replies, add_special_tokens=False)["input_ids"]))
    return EpisodeShape(
        prompt=max(counter.prompts),
        observation=max(counter.later, default=0),
        turns=int(turns or max(len(episode.turns) for episode in episodes)),
        windowed=form.history_window is not None,
        fewest_turns=max(1, min(len(episode.turns) for episode in episodes)),
        short_observation=min(counter.later, default=0),
        reply=round(sampled / len(replies)),
    )


class _TokenCounter(ScriptedPolicy):
    """Plays one of the environment's players, or empty replies if it has none, and counts tokens."""

    def __init__(self, form: ChatFormat, player: str | None) -> None:
        super().__init__(player or "silence")
        self.prompts: list[int] = []
        self.later: list[int] = []
        self._form = form
        self._silent = player is None

    def submit(self, conversation: Conversation) -> None:
        """Count the new tokens of the conversation and ask the player."""
        messages, tools = conversation.messages, conversation.tools
        first = sum(message["role"] == "user" for message in messages) == 1
        new = None if first else self._form.continuation(messages, tools)
        if new is None:
            self.prompts.append(len(self._form.prompt(messages, tools)))
        else:
            self.later.append(len(new))
        if self._silent:
            conversation.state = lambda observation: ""
        super().submit(conversation)
