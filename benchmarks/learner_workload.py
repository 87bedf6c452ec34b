"""The work that learners are compared on: a model, a tokenizer and an environment of exactly known sizes.

One step: one group of attempts at one prompt; each attempt plays some turns, each of at most so many sampled
tokens and an observation after all but the last. Weights are random and words mean nothing: what is measured
is work, not learning.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from art_trainer.config import GRPOConfig
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.loading import add_lora_adapter
from art_trainer.training.trainer import GRPOTrainer

SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|unknown|>")
ROLES = ("system", "user", "assistant", "tool")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|> ' + m['role'] + ' ' }}{{ m['content'] or '' }}"
    "{% for c in m.get('tool_calls') or [] %}{{ ' ' + c.function.name }}"
    "{% for k, v in c.function.arguments.items() %}{{ ' ' + k + ' ' + v }}{% endfor %}{% endfor %}"
    "{{ '<|im_end|> ' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|> assistant ' }}{% endif %}"
)
"""ChatML with spaces for line ends, so that every word is one token; tool calls and results are rendered."""
_PROMPT_FRAME, _OBSERVATION_FRAME = 5, 5
"""Tokens that the template adds to a first message, and between one reply and the next."""


@dataclass(frozen=True)
class Workload:
    """Sizes, in tokens unless said otherwise."""

    name: str
    prompt: int = 256
    turns: int = 6
    observation: int = 64
    action: int = 8
    group: int = 8
    groups: int = 1
    """Prompts of a step."""
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    key_heads: int = 4
    inner: int = 704
    vocabulary: int = 2048
    lora: int = 0
    """Rank of an adapter; then the weights below it are in bfloat16."""
    gpu: bool = False
    """Whether it is for a GPU; then weights are in bfloat16 with and without an adapter."""
    microbatch: int = 0
    """Attempts that TRL computes at a time in an update; 0 for all."""
    tokens: int = 1 << 20
    """Tokens that this project computes at a time in an update."""

    @property
    def attempts(self) -> int:
        """Attempts of a step."""
        return self.group * self.groups

    @property
    def completion(self) -> int:
        """Tokens of an attempt after its prompt."""
        return self.turns * self.action + (self.turns - 1) * self.observation

    @property
    def length(self) -> int:
        """Tokens of an attempt."""
        return self.prompt + self.completion


W = Workload("W")
W_LONG = Workload("W-long", prompt=2048, turns=12, group=16)
SINGLE = Workload("single", turns=1, action=32)
SMOLLM2 = Workload(
    "smollm2", prompt=445, turns=2, observation=240, hidden=576, layers=30, heads=9, key_heads=3, inner=1536,
    vocabulary=49_152, lora=16,
)  # fmt: skip
"""The sizes of SmolLM2-135M and of an episode of mail, level 1: a search and an end."""
_GPU = {"turns": 6, "observation": 128, "action": 64, "group": 16, "vocabulary": 151_936, "gpu": True}
_SHAPES: dict[str, dict[str, int]] = {
    "0.5b": {"hidden": 896, "layers": 24, "heads": 14, "key_heads": 2, "inner": 4864},
    "1.5b": {"hidden": 1536, "layers": 28, "heads": 12, "key_heads": 2, "inner": 8960},
    "7b": {"hidden": 3584, "layers": 28, "heads": 28, "key_heads": 4, "inner": 18_944},
}
"""The sizes of Qwen2.5, embeddings tied."""
_TOKENS = {"0.5b": 36_864, "1.5b": 36_864, "7b": 18_432}
_FOUR = {"prompt": 1024, "groups": 4}
GPU = [
    Workload(name, **_GPU, **sizes, **more)  # type: ignore[arg-type]
    for shape, sizes in _SHAPES.items()
    for name, more in {
        f"{shape}-lora": {**_FOUR, "lora": 16, "tokens": _TOKENS[shape]},
        f"{shape}-full": {**_FOUR, "tokens": _TOKENS[shape]},
        f"{shape}-4k": {"prompt": 4096, "lora": 16, "microbatch": 1, "tokens": 8192},
    }.items()
]
"""Four groups of 16 at a prompt of 1,024 tokens, with an adapter and without; one at a prompt of 4,096."""
WORKLOADS = {workload.name: workload for workload in (W, W_LONG, SINGLE, SMOLLM2, *GPU)}


def make_model(workload: Workload, seed: int = 0) -> Any:
    """A Qwen2 of the workload's size, random weights; with an adapter if the workload has one."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=workload.vocabulary, hidden_size=workload.hidden, intermediate_size=workload.inner,
        num_hidden_layers=workload.layers, num_attention_heads=workload.heads, tie_word_embeddings=True,
        num_key_value_heads=workload.key_heads, max_position_embeddings=max(4096, 2 * workload.length),
        bos_token_id=None, eos_token_id=SPECIAL.index("<|im_end|>"), pad_token_id=SPECIAL.index("<|pad|>"),
    )  # fmt: skip
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if workload.lora or workload.gpu else torch.float32)
    with torch.device("cuda" if workload.gpu else "cpu"):
        model = Qwen2ForCausalLM(config).eval()
    torch.set_default_dtype(usual)
    return add_lora_adapter(model, workload.lora) if workload.lora else model


def word_tokenizer(words: Iterable[str], **names: str) -> PreTrainedTokenizerFast:
    """A tokenizer of words between blanks; its special tokens and chat template by name."""
    ids = {word: place for place, word in enumerate(words)}
    core = Tokenizer(models.WordLevel(ids, unk_token=names["unk_token"]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, **names)


def make_tokenizer(workload: Workload) -> PreTrainedTokenizerFast:
    """One word, one token; as many words as the model has."""
    words = [*SPECIAL, *ROLES, "act", "text"]
    words += [f"w{i}" for i in range(workload.vocabulary - len(words))]
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    return word_tokenizer(words, chat_template=TEMPLATE, **names)


class WordsEnv(gym.Env[str, str]):
    """Says so many words; pays by what the reply's words are, so that attempts differ."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._rng = np.random.default_rng(0)
        self._turn = 0

    def _words(self, count: int) -> str:
        top = self._workload.vocabulary - len(SPECIAL) - len(ROLES) - 2
        return " ".join(f"w{i}" for i in self._rng.integers(top, size=count))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self._rng, self._turn = np.random.default_rng(seed), 0
        return self._words(self._workload.prompt - _PROMPT_FRAME), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turn += 1
        reward = sum(len(word) for word in action.split()) / 100
        ended = self._turn >= self._workload.turns
        frame = _OBSERVATION_FRAME
        return "" if ended else self._words(self._workload.observation - frame), reward, ended, False, {}


def make_trainer(workload: Workload, steps: int) -> GRPOTrainer:
    """This project's trainer of the workload."""
    sampling = SamplingParams(max_new_tokens=workload.action)
    policy = TransformersPolicy(make_model(workload), make_tokenizer(workload), sampling=sampling)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=steps, groups_per_step=workload.groups,
        num_generations=workload.group, max_completion_length=workload.action, learning_rate=1e-6,
        scale_rewards="group", tokens_per_microbatch=workload.tokens, log_episodes=0,
    )  # fmt: skip
    return GRPOTrainer(policy, lambda: WordsEnv(workload), config)
