"""Random models of real architectures, a word tokenizer and a text environment, small enough for any test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers import decoders as token_decoders
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DogeConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoConfig,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    NemotronConfig,
    Phi3Config,
    PhimoeConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from art_trainer.models.loading import add_lora_adapter
from art_trainer.types import Episode

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <bos> <|start_header_id|> <|end_header_id|> <|eot_id|> "
    "<｜User｜> <｜Assistant｜> <｜end▁of▁sentence｜> <tool_call> </tool_call>"
).split()


def byte_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """One token a byte plus the special ones: encodes any text, and decoding gives it back."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    words = pre_tokenizers.Split(Regex(r"\s+|\S+"), "isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    core.decoder = token_decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = template
    return tokenizer


def word_tokenizer(words: Iterable[str], template: str, **options: Any) -> PreTrainedTokenizerFast:
    """One token a word, after ``<unk>`` and ``<end>``, which ends a turn."""
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<end>", *words])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"unk_token": "<unk>", "eos_token": "<end>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **names, **options)
    tokenizer.chat_template = template
    return tokenizer


def _sizes(vocab_size: int, hidden: int) -> dict[str, object]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }


def tiny_config(family: str, vocab_size: int = 300, hidden: int = 48, **changes: Any) -> PreTrainedConfig:
    """A configuration with about 0.1 M parameters; ``family`` is a key below."""
    deepseek = {
        "num_key_value_heads": 4,
        "moe_intermediate_size": hidden,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
    }
    mixed = ["sliding_attention", "full_attention"]
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    factors = {"short_factor": [1.0] * (hidden // 8), "long_factor": [9.0] * (hidden // 8)}
    longrope = {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, **factors}}
    kind, own = {
        "qwen2": (Qwen2Config, {}),
        "qwen3": (Qwen3Config, {"head_dim": 16}),
        "llama": (LlamaConfig, {}),
        "mistral-sliding": (MistralConfig, {"sliding_window": 8}),
        "gemma3-sliding": (Gemma3TextConfig, {"head_dim": 16, "sliding_window": 8, "layer_types": mixed}),
        "lfm2": (Lfm2Config, {"layer_types": ["conv", "full_attention"]}),
        "deepseek-v3": (DeepseekV3Config, deepseek),
        "gemma2": (Gemma2Config, {"head_dim": 16}),
        "gpt-oss": (GptOssConfig, {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
        "nemotron": (NemotronConfig, {}),
        "falcon": (FalconConfig, {}),
        "gpt-neo": (GPTNeoConfig, {"attention_types": [[["global", "local"], 1]], "window_size": 8}),
        "doge": (DogeConfig, {}),
        "mamba": (MambaConfig, {"state_size": 4}),
        "phimoe": (PhimoeConfig, {"num_local_experts": 4}),
        "phi3-longrope": (Phi3Config, {"original_max_position_embeddings": 192, **longrope}),
        "llama-dynamic": (LlamaConfig, {"rope_parameters": dynamic, "max_position_embeddings": 192}),
    }[family]
    return kind(**{**_sizes(vocab_size, hidden), **own, **changes})


def tiny_model(
    family: str = "qwen2", *, vocab_size: int = 300, hidden: int = 48, seed: int = 0, **changes: Any
) -> torch.nn.Module:
    """A random model in evaluation mode, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(family, vocab_size, hidden, **changes))
    model.generation_config.eos_token_id = model.config.eos_token_id
    return model.eval()


def lora_model(seed: int = 0, family: str = "qwen2", *, scale: float = 0.0, **sizes: Any) -> torch.nn.Module:
    """The model of seed 0 with an adapter of rank 2; with a scale above 0 as if it had been trained."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = add_lora_adapter(tiny_model(family, **sizes), 2)
        for parameter in model.parameters():
            if scale and parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=scale)
    return model.eval()


class EchoEnv(gym.Env[str, str]):
    """Answers with words that depend on the seed, the turn and the reply, for a number of turns."""

    def __init__(self, turns: int = 3, words: int = 6) -> None:
        self.observation_space = gym.spaces.Text(10_000)
        self.action_space = gym.spaces.Text(10_000)
        self.turns = turns
        self.words = words

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return f"start {self._words()}", {}

    def step(self, action):
        self.turn += 1
        observation = f"{self._words()} {len(action)}"
        return observation, float(len(action) % 3), self.turn >= self.turns, False, {}

    def _words(self) -> str:
        count = int(self.np_random.integers(1, self.words + 1))
        return " ".join(f"w{int(n)}" for n in self.np_random.integers(0, 99, size=count))


def full_logprobs(model: torch.nn.Module, tokens: tuple[int, ...], temperature: float = 1.0) -> np.ndarray:
    """Log-probability of each token after the first, by one plain forward pass over the whole context."""
    ids = torch.tensor(tokens, device=next(model.parameters()).device)
    with torch.inference_mode():
        logits = model(input_ids=ids[None]).logits[0, :-1].float() / temperature
        logprobs = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    return logprobs.cpu().numpy()


def largest_error(model: torch.nn.Module, episodes: Iterable[Episode], temperature: float = 1.0) -> float:
    """Between the log-probs that episodes recorded and those of plain forward passes."""
    errors = []
    for episode in episodes:
        assert episode.error is None
        for history in episode.histories:
            full = full_logprobs(model, history.token_ids, temperature)[np.array(history.action_mask[1:])]
            errors.append(float(np.abs(full - np.array(history.logprobs)).max()))
    return max(errors)
