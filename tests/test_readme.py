"""The README's own environment keeps the contract, plays as it says, and is learned by a model."""

import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from art_gym import check_text_env
from art_trainer.config import GRPOConfig
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.evaluate import evaluate
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer.guess import guess_policy

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
GUESS = next(block for block in BLOCKS if "class GuessEnv" in block)


@pytest.fixture
def guess_id(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    # A module that can be found by name, as the user's file would be: pickles refer to it.
    module = types.ModuleType("readme_guess")
    monkeypatch.setitem(sys.modules, "readme_guess", module)
    exec(compile(GUESS, str(README), "exec"), vars(module))
    yield "mine/Guess-v0"
    del gym.registry["mine/Guess-v0"]


def test_guess_keeps_the_contract_in_about_fifty_lines(guess_id: str) -> None:
    check_text_env(gym.make(guess_id))
    assert len(GUESS.strip().split("\n")) <= 60


def test_guess_plays_as_it_says(guess_id: str) -> None:
    env: Any = gym.make(guess_id).unwrapped
    env.reset(seed=1)
    env.hidden = 6
    assert env.step("3")[0] == "LOW"
    assert env.step("guess(9)")[0] == "HIGH\n(2 turns left)"
    observation, reward, terminated, _, info = env.step("6")
    assert (observation, terminated, info["success"]) == ("RIGHT", True, True)
    assert reward == pytest.approx(0.8)


def small_policy(seed: int) -> TransformersPolicy:
    """Two layers of random weights, and a tokenizer of one token a word."""
    words = ["<unk>", "<end>", "Guess", "LOW", "HIGH", "RIGHT", *map(str, range(10))]
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    # Only the words above: the note that few turns are left is nothing this model has a word for.
    core.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"<end>|Guess|LOW|HIGH|RIGHT|\b\d+\b(?! turn)"), "removed", invert=True
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", eos_token="<end>", omit_system=True
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ m['content'] }}<end>"
        "{% elif m['role'] == 'user' %}{{ m['content'] }} {% endif %}{% endfor %}"
    )
    return guess_policy(seed, tokenizer=tokenizer, max_new_tokens=1)


@pytest.mark.e2e
def test_a_model_of_random_weights_learns_binary_search(guess_id: str, tmp_path: Path) -> None:
    config = GRPOConfig(
        output_dir=str(tmp_path),
        seed=int(os.environ.get("ART_TEST_SEED", "0")),
        max_steps=80,
        groups_per_step=32,
        num_generations=8,
        steps_per_generation=8,
        max_completion_length=1,
        learning_rate=3e-3,
        lr_final_ratio=0.1,
        entropy_coef=0.02,
        log_episodes=0,
    )
    policy = small_policy(config.seed)
    weights = sum(parameter.numel() for parameter in policy.model.parameters())
    assert 90_000 < weights < 130_000

    def greedy_success() -> float:
        policy.sampling = SamplingParams(temperature=0.0, max_new_tokens=1)
        found = evaluate(policy, lambda: gym.make(guess_id), episodes=200, seed=1_000_003).success
        assert found is not None
        return found.value

    before = greedy_success()
    GRPOTrainer(policy, guess_id, config).train()
    after = greedy_success()
    assert before < 0.35
    assert after > before + 0.4  # how far it comes depends on the processor: 0.88 to 1
