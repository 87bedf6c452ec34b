import pytest
import torch

import tests.art_trainer.toy_envs  # noqa: F401 (registers toy/Echo-v0)
from art_trainer.checkpoint import checkpoint_step, list_checkpoints
from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.result_checkpoint import load_weights, result_checkpoint
from art_trainer.trainer import GRPOTrainer
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model


class Scored(GRPOTrainer):
    """A trainer whose evaluations say what the test wants."""

    def __init__(self, folder, rewards, **settings):
        self.rewards = rewards
        self.seen = {}
        config = GRPOConfig(
            output_dir=str(folder), groups_per_step=2, num_generations=2, max_completion_length=2,
            eval_steps=1, learning_rate=1e-2, drop_zero_variance_groups=False, **settings,
        )  # fmt: skip
        policy = TransformersPolicy(tiny_model("qwen2"), byte_tokenizer())
        super().__init__(policy, "toy/Echo-v0", config)

    def evaluate(self):
        self.seen[self.step] = {name: value.clone() for name, value in self.policy.model.state_dict().items()}
        return {"eval_reward": self.rewards[self.step]}


def steps(trainer):
    return [checkpoint_step(path) for path in list_checkpoints(trainer.log.checkpoints)]


def same(model, weights):
    return all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path):
    trainer = Scored(tmp_path, [0.1, 0.9, 0.2, 0.3], max_steps=3, save_total_limit=1)
    trainer.train()
    assert steps(trainer) == [1, 3]
    assert result_checkpoint(trainer.log.checkpoints).name == "step-000003"


def test_a_run_without_patience_for_it_stops_early_and_ends_with_its_best_weights(tmp_path):
    settings = {"early_stopping_patience": 2, "load_best_model_at_end": True, "save_total_limit": 1}
    trainer = Scored(tmp_path, [0.1, 0.9, 0.2, 0.3, 5.0], max_steps=4, **settings)
    trainer.train()
    assert trainer.step == 3
    assert steps(trainer) == [1, 3]
    assert same(trainer.policy.model, trainer.seen[1])
    assert result_checkpoint(trainer.log.checkpoints).name == "step-000001"
    again = Scored(tmp_path, [0.0] * 9, max_steps=4, **settings)
    again.load_checkpoint(list_checkpoints(trainer.log.checkpoints)[-1])
    again.train()
    assert again.step == 3  # it was done
    assert same(again.policy.model, trainer.seen[1])


def test_a_resumed_run_keeps_the_best_of_before(tmp_path):
    first = Scored(tmp_path, [0.1, 0.9, 0.2], max_steps=2, load_best_model_at_end=True)
    first.train()
    second = Scored(tmp_path, [0, 0, 0, 0.8], max_steps=3, load_best_model_at_end=True)
    second.load_checkpoint(list_checkpoints(first.log.checkpoints)[-1])
    second.train()
    assert same(second.policy.model, first.seen[1])


def test_weights_alone_are_loaded(tmp_path):
    trainer = Scored(tmp_path, [0.0, 1.0], max_steps=1)
    trainer.train()
    model = tiny_model("qwen2")
    load_weights(list_checkpoints(trainer.log.checkpoints)[-1], model)
    assert same(model, trainer.policy.model.state_dict())


@pytest.mark.parametrize(
    "settings",
    [{"early_stopping_patience": 2}, {"load_best_model_at_end": True}, {"metric_for_best_model": "reward"}],
)
def test_without_evaluations_there_is_no_best(settings):
    with pytest.raises(ConfigError, match="nothing is evaluated in training: set eval_steps"):
        GRPOConfig(**settings)


def test_no_run_has_no_result(tmp_path):
    assert result_checkpoint(tmp_path / "gone") is None
