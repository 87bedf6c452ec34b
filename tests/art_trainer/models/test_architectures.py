"""Every supported architecture with its maker's chat template, from the mailbox to a resumed run.

The models are random and tiny.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import art_gym  # noqa: F401 (registers the mailbox)
from art_trainer.config import GRPOConfig
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.loading import add_lora_adapter
from art_trainer.models.logprobs import Scorer
from art_trainer.models.packing import TokenRow, pack
from art_trainer.tracking.run_dir import list_checkpoints
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Group
from tests.art_trainer.models.test_chat_template import tokenizer_of
from tests.art_trainer.tiny_models import tiny_model

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
    model = tiny_model(ARCHITECTURES[name], vocab_size=len(tokenizer), seed=0 if lora else seed)
    if lora:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = add_lora_adapter(model, 2)
    policy = TransformersPolicy(model, tokenizer, sampling=SamplingParams(), max_context=4096)
    config = GRPOConfig(
        output_dir=str(folder), max_steps=2, save_steps=1, groups_per_step=2, num_generations=3,
        max_completion_length=6, learning_rate=1e-2, log_episodes=0, lr_scheduler_type="constant",
    )  # fmt: skip
    return GRPOTrainer(policy, mailbox, config)


def rows_of(groups: Sequence[Group]) -> list[TokenRow]:
    return [
        TokenRow.from_history(history, advantages_T=np.ones(3), weight=1.0, group=index)
        for index, group in enumerate(groups)
        for episode in group.episodes
        for history in episode.histories
    ]


def disagreement(trainer: GRPOTrainer, groups: Sequence[Group]) -> float:
    """The largest difference of a sampled log-prob between sampler and learner."""
    scorer = Scorer(trainer.policy.model)
    assert scorer.shares_prefixes
    worst = 0.0
    with torch.no_grad():
        for batch in pack(rows_of(groups), 8192, share=True, device=scorer.device):
            worst = max(worst, float((scorer.score(batch)[0] - batch.old_logprobs_N).abs().max()))
    return worst


def weights(trainer: GRPOTrainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.policy.model.named_parameters()}


def logged(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(("time/", "tokens_per"))}
        for line in lines
    ]


@pytest.mark.parametrize(
    "lora", [pytest.param(False, id="all-weights", marks=pytest.mark.e2e), pytest.param(True, id="lora")]
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.e2e] if name == "kimi-k2" else []) for name in ARCHITECTURES],
)
def test_two_updates_on_the_mailbox_saved_reloaded_and_resumed(name: str, lora: bool, tmp_path: Path) -> None:
    trainer = trainer_for(name, tmp_path / "whole", lora)
    before = weights(trainer)
    errors: list[float] = []
    update = trainer.update_policy

    def checked(groups: Sequence[Group]) -> dict[str, float]:
        assert all(group.whole for group in groups)
        errors.append(disagreement(trainer, groups))
        return update(groups)

    trainer.update_policy = checked  # type: ignore[method-assign]
    trainer.train()
    trainer.close()
    after = weights(trainer)
    assert len(errors) == 2
    assert max(errors) < 5e-5
    trained = {name for name, p in trainer.policy.model.named_parameters() if p.requires_grad}
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved <= trained
    assert len(moved) > len(trained) / 2

    first, last = list_checkpoints(tmp_path / "whole" / "checkpoints")
    reloaded: Any
    if lora:
        below = tiny_model(ARCHITECTURES[name], vocab_size=len(trainer.policy.tokenizer))
        reloaded = PeftModel.from_pretrained(below, last / "model")
    else:
        reloaded = AutoModelForCausalLM.from_pretrained(last / "model")
    ids = torch.arange(5, 60)[None]
    with torch.no_grad():
        wanted, found = (
            trainer.policy.model.eval()(input_ids=ids).logits,
            reloaded.eval()(input_ids=ids).logits,
        )
    assert (found - wanted).abs().max() < 1e-6
    assert (
        AutoTokenizer.from_pretrained(last / "model").chat_template == trainer.policy.tokenizer.chat_template
    )

    resumed = trainer_for(name, tmp_path / "resumed", lora, seed=9)
    resumed.load_checkpoint(first)
    resumed.train()
    resumed.close()
    assert logged(tmp_path / "resumed") == logged(tmp_path / "whole")[1:]
    for key, value in weights(resumed).items():
        assert torch.equal(value, after[key]), key
