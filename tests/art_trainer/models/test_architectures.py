"""Every supported architecture with its maker's chat template, from the mailbox to a resumed run.

The models are random and tiny.
"""

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import art_gym  # noqa: F401 (registers the mailbox)
from art_trainer.config import GRPOConfig
from art_trainer.errors import UnsupportedModelError
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.tracking.run_dir import list_checkpoints
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Ending
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.models.test_chat_template import tokenizer_of
from tests.art_trainer.tiny_models import EchoEnv, byte_tokenizer, lora_model, tiny_model
from tests.art_trainer.updates import logged_metrics, weights_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),
    # PEFT's patterns for fused experts, of which one kind has no adapter.
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning"),
]

# The architecture of each maker's model.
ARCHITECTURES = {
    "qwen2.5": "qwen2", "qwen3": "qwen3", "llama3.1": "llama", "deepseek-v3": "deepseek-v3",
    "kimi-k2": "deepseek-v3",
}  # fmt: skip


class PaidByLength(gym.Wrapper[str, str, str, str]):
    """Adds to the mailbox's reward what a random model can earn."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        paid = 0.1 * (len(action) % 5)
        return observation, float(reward) + paid, terminated, truncated, {**info, "score_terms": {}}


def mailbox() -> gym.Env[str, str]:
    return PaidByLength(gym.make("art/Email-v0", difficulty=1, max_turns=2))


def trainer_for(name: str, folder: Path, lora: bool, seed: int = 0) -> GRPOTrainer:
    tokenizer = tokenizer_of(name)
    make = lora_model if lora else tiny_model
    model = make(family=ARCHITECTURES[name], vocab_size=len(tokenizer), seed=seed)
    policy = TransformersPolicy(model, tokenizer, sampling=SamplingParams(), max_context=4096)
    config = GRPOConfig(
        output_dir=str(folder), max_steps=2, save_steps=1, groups_per_step=2, num_generations=3,
        max_completion_length=6, learning_rate=1e-2, log_episodes=0, lr_scheduler_type="constant",
    )  # fmt: skip
    return GRPOTrainer(policy, mailbox, config)


@pytest.mark.parametrize(
    "lora", [pytest.param(False, id="all-weights", marks=pytest.mark.e2e), pytest.param(True, id="lora")]
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.e2e] if name == "kimi-k2" else []) for name in ARCHITECTURES],
)
def test_two_updates_on_the_mailbox_saved_reloaded_and_resumed(name: str, lora: bool, tmp_path: Path) -> None:
    trainer = trainer_for(name, tmp_path / "whole", lora)
    before = weights_of(trainer.policy.model)
    trainer.train()
    trainer.close()
    assert (weights_of(trainer.policy.model) != before).float().mean() > 0.5
    lines = logged_metrics(tmp_path / "whole")
    assert len(lines) == 2
    for line in lines:
        # The learner finds the log-probs that the sampler recorded.
        assert [line["ratio/min"], line["ratio/max"]] == pytest.approx([1, 1], abs=5e-5)
        assert line["failed_groups"] == 0

    first, last = list_checkpoints(tmp_path / "whole" / "checkpoints")
    path = last / "model"
    if lora:
        below = tiny_model(ARCHITECTURES[name], vocab_size=len(trainer.policy.tokenizer))
        reloaded: Any = PeftModel.from_pretrained(below, path)
    else:
        reloaded = AutoModelForCausalLM.from_pretrained(path)
    ids = torch.arange(5, 60)[None]
    with torch.no_grad():
        wanted, found = (m.eval()(input_ids=ids).logits for m in (trainer.policy.model, reloaded))
    assert (found - wanted).abs().max() < 1e-6
    template = AutoTokenizer.from_pretrained(path).chat_template
    assert template == trainer.policy.tokenizer.chat_template

    resumed = trainer_for(name, tmp_path / "resumed", lora, seed=9)
    resumed.load_checkpoint(first)
    resumed.train()
    resumed.close()
    assert logged_metrics(tmp_path / "resumed") == lines[1:]
    assert torch.equal(weights_of(resumed.policy.model), weights_of(trainer.policy.model))


@pytest.mark.parametrize("family", ["phi3-longrope", "llama-dynamic"])
def test_contexts_end_where_rotary_frequencies_change(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    config = GRPOConfig(str(tmp_path), groups_per_step=2, num_generations=3, max_completion_length=6)

    def trainer(max_context: int | None) -> GRPOTrainer:
        policy = TransformersPolicy(model, byte_tokenizer(), max_context=max_context)
        return GRPOTrainer(policy, lambda: EchoEnv(30), config)

    made = trainer(None)
    groups = made.collect_episodes()
    assert {episode.ending for group in groups for episode in group.episodes} == {Ending.CONTEXT_FULL}
    metrics = made.update_policy(groups)
    assert [metrics["ratio/min"], metrics["ratio/max"]] == pytest.approx([1, 1], abs=5e-5)
    with pytest.raises(UnsupportedModelError, match="set max_context to 192"):
        trainer(193)
    with pytest.raises(UnsupportedModelError, match="beyond 192"):
        made.learner.update(made_groups(model, prompt=200))
