"""What the tests of TRL share: a toy environment, a tiny model, and a real GRPOTrainer."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from art_gym import Outcome, Task, TextEnv, tool
from art_trainer.trl import environment_factory
from tests.art_trainer import tiny_models
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

WORDS = ("red", "green", "blue", "black")
SAY_ID = "toy/SayOneOfFour-v0"

# What TRL and Transformers say about each other, and neither's user can help.
QUIET = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


class SayOneOfFour(TextEnv):
    """Say the word that is asked for, in two tries; a fault can be had for the asking."""

    def __init__(self, fault: str = "", drift: bool = False, **options: Any) -> None:
        tasks = [Task(f"train-{word}", f"{word} ?", "train", {"word": word}) for word in WORDS]
        super().__init__(tasks, **({"max_turns": 2} | options))
        self.fault, self.drift, self.resets = fault, drift, 0

    def begin(self, task: Task) -> str:
        self.resets += 1
        if self.fault == "begin" and self.resets > 3:
            raise RuntimeError("no words left")
        return f"{task.prompt} {self.resets}" if self.drift else task.prompt

    @tool
    def say(self, word: Literal["red", "green", "blue", "black"]) -> Outcome:
        """Say a word.

        Args:
            word: The word.
        """
        if self.fault == word:
            raise RuntimeError("out of paint")
        right = word == self.task.data["word"]
        return Outcome("right" if right else "wrong", {"word": float(right)}, right, right)


if SAY_ID not in gym.registry:
    gym.register(SAY_ID, entry_point=SayOneOfFour, order_enforce=False, disable_env_checker=True)

make_factory = partial(environment_factory, max_completion_length=None)
"""A factory whose environments answer the call that ends the episode as any other."""

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<ask>' + m['content'] }}"
    "{% elif m['role'] == 'assistant' %}{{ '<say>' + m['content'] + '<end>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<say>{% endif %}"
)
"""Has no place for standing instructions, and none for tools."""


TOOLS_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m.get('tool_calls') or [] %}{{ c['function'] | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word of the toy environment."""
    words = ["<pad>", "<ask>", "<say>", *WORDS, "?", "right", "wrong", "over"]
    tokenizer = tiny_models.word_tokenizer(words, TEMPLATE, pad_token="<pad>", omit_system=True)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<ask>", "<say>"]})
    return tokenizer


def tiny(tokenizer: Any, *, hidden: int = 32) -> torch.nn.Module:
    """A model of random weights that ends its turns as the tokenizer does."""
    return tiny_model(
        vocab_size=len(tokenizer),
        hidden=hidden,
        max_position_embeddings=4096,
        initializer_range=0.02,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def byte_chat() -> PreTrainedTokenizerFast:
    """A tokenizer for any text, that ends turns as ChatML does."""
    tokenizer = byte_tokenizer()
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    return tokenizer


def trainer(folder: Path, tokenizer: Any, rows: Any, *, model: Any = None, **how: Any) -> Any:
    """TRL's own trainer; ``how`` holds its arguments, those of ``GRPOConfig`` under ``args``."""
    from trl import GRPOConfig, GRPOTrainer

    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_steps": 1,
        "max_completion_length": 48,
        "generation_kwargs": {"max_new_tokens": 4},
        "max_tool_calling_iterations": 2,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "beta": 0.0,
    }

    class Silent(GRPOTrainer):  # type: ignore[misc]
        def _send_telemetry(self) -> None:
            """Tests tell nobody."""

    return Silent(
        model=tiny(tokenizer) if model is None else model,
        args=GRPOConfig(**settings | how.pop("args", {})),
        train_dataset=rows,
        processing_class=tokenizer,
        **how,
    )


def logged(made: Any, name: str) -> list[float]:
    """A metric at each step, as the trainer logged it."""
    return [entry[name] for entry in made.state.log_history if name in entry]
