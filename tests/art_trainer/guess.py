"""Guess-the-number as a plain Gymnasium environment, and a policy small enough to learn it in a minute."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from transformers import PreTrainedTokenizerFast

from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from tests.art_trainer.tiny_models import tiny_model, word_tokenizer

SETTINGS: dict[str, Any] = {
    "learning_rate": 2e-3,
    "groups_per_step": 4,
    "num_generations": 4,
    "max_completion_length": 1,
    "max_steps": 3,
}
"""Of a short training run."""
NUMBERS = 16
TURNS = 5
TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{{ '<end>' if m['role'] == 'assistant' else ' ' }}{% endfor %}"
)


class GuessEnv(gym.Env[str, str]):
    """A hidden number from 0 to 15; five guesses, answered LOW or HIGH; anything else ends the game."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Text(20)
        self.action_space = gym.spaces.Text(20)
        self.baselines = {"bisect": lambda env, rng: _bisect()}
        self.teachers = {
            "oracle": lambda env, rng: lambda observation: str(env.hidden),
            "random": lambda env, rng: lambda observation: str(rng.integers(NUMBERS)),
            "broken": lambda env, rng: lambda observation: str(1 // 0),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.hidden = int(self.np_random.integers(NUMBERS))
        self.turn = 0
        return "GUESS", {"task_id": f"number-{self.hidden}"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        word = action.strip()
        if not (word.isdecimal() and int(word) < NUMBERS):
            error = {"kind": "no number", "message": word}
            return "BAD", 0.0, True, False, {"success": False, "error": error}
        if int(word) == self.hidden:
            return "RIGHT", 1.0 - 0.1 * (self.turn - 1), True, False, {"success": True}
        answer = "LOW" if int(word) < self.hidden else "HIGH"
        over = self.turn == TURNS
        return answer, 0.0, False, over, {"success": False} if over else {}


gym.register("toy/Guess-v0", entry_point=GuessEnv)


def _bisect() -> Any:
    low, high, last = 0, NUMBERS - 1, -1

    def act(observation: str) -> str:
        nonlocal low, high, last
        if observation == "LOW":
            low = last + 1
        elif observation == "HIGH":
            high = last - 1
        last = (low + high) // 2
        return str(last)

    return act


def guess_tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer(["GUESS", "LOW", "HIGH", "BAD", "RIGHT", *map(str, range(NUMBERS))], TEMPLATE)


def guess_policy(
    seed: int = 0,
    hidden: int = 64,
    *,
    tokenizer: PreTrainedTokenizerFast | None = None,
    max_new_tokens: int = 2,
    history_window: int | None = None,
) -> TransformersPolicy:
    """A two-layer Qwen2 of random weights."""
    tokenizer = tokenizer or guess_tokenizer()
    changes = {
        "intermediate_size": 3 * hidden,
        "num_key_value_heads": 4,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
        "eos_token_id": tokenizer.eos_token_id,
    }
    model = tiny_model(vocab_size=len(tokenizer), hidden=hidden, seed=seed, **changes).train()
    sampling = SamplingParams(max_new_tokens=max_new_tokens)
    return TransformersPolicy(
        model, tokenizer, sampling=sampling, max_batch=512, history_window=history_window
    )


def seeds(count: int, seed: int = 0) -> list[int]:
    return [int(n) for n in np.random.default_rng(seed).integers(2**31, size=count)]
