import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerControl, TrainerState
from transformers.trainer_callback import EarlyStoppingCallback

from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.tracking.run_dir import checkpoint_step, list_checkpoints
from art_trainer.training.checkpoint import result_checkpoint
from art_trainer.training.early_stopping import EarlyStopping
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model
from tests.art_trainer.toy_envs import Echo


def tracker(metric=None, *, greater=None, patience=None, threshold=0.0):
    best = {"metric_for_best_model": metric, "greater_is_better": greater}
    stop = {"early_stopping_patience": patience, "early_stopping_threshold": threshold}
    return EarlyStopping(GRPOConfig(eval_steps=1, save_steps=1, **best, **stop))


def update_all(best, values, name="eval_reward"):
    return [(best.update(step, {name: value}), best.should_stop) for step, value in enumerate(values)]


def test_success_is_compared_if_the_evaluation_has_it_and_else_the_reward():
    best = tracker()
    best.update(0, {"eval_reward": 9.0, "eval_success": 0.25})
    assert (best.metric, best.best_value) == ("eval_success", 0.25)
    assert not best.update(1, {"eval_reward": 10.0, "eval_success": 0.25})


@pytest.mark.parametrize("metric", ["eval_turns", "eval_invalid_actions", "eval_reward"])
def test_fewer_turns_and_more_reward_are_better(metric):
    best, upside_down = tracker(metric), tracker(metric, greater=metric != "eval_reward")
    for one in (best, upside_down):
        update_all(one, (2.0, 3.0, 1.0), metric)
    better = 3.0 if metric == "eval_reward" else 1.0
    assert (best.best_value, upside_down.best_value) == (better, 4.0 - better)


@given(
    values=st.lists(st.floats(-100, 100, width=16), min_size=1, max_size=12),
    patience=st.integers(1, 4),
    threshold=st.sampled_from([0.0, 0.5, 10.0]),
    greater=st.booleans(),
)
def test_it_stops_when_transformers_would(values, patience, threshold, greater):
    class Arguments:
        metric_for_best_model = "eval_reward"
        greater_is_better = greater

    callback = EarlyStoppingCallback(patience, threshold)
    state, control = TrainerState(), TrainerControl()
    best = tracker("eval_reward", greater=greater, patience=patience, threshold=threshold)
    for step, value in enumerate(values):
        control.should_training_stop = False
        callback.on_evaluate(Arguments(), state, control, {"eval_reward": value})
        improved = best.update(step, {"eval_reward": value})
        if state.best_metric is None or (value > state.best_metric if greater else value < state.best_metric):
            state.best_metric = value
            assert improved
        assert best.should_stop == control.should_training_stop
        assert best.best_value == state.best_metric


def test_a_resumed_run_stops_when_it_would_have_stopped():
    values = [0.2, 0.5, 0.4, 0.3, 0.6, 0.1, 0.1]
    whole = update_all(tracker(patience=3), values)
    for cut in range(len(values)):
        first, second = tracker(patience=3), tracker(patience=3)
        update_all(first, values[:cut])
        second.restore(json.loads(json.dumps(first.state())))
        for step, wanted in list(enumerate(whole))[cut:]:
            assert (second.update(step, {"eval_reward": values[step]}), second.should_stop) == wanted


def test_steps_seen_before_nan_and_missing_figures_are_never_the_best():
    best = tracker(patience=1)
    best.update(0, {"eval_reward": 0.5})
    assert not best.update(0, {"eval_reward": 0.7})
    assert (best.best_value, best.update(1, {"eval_reward": 0.6})) == (0.5, True)
    found = update_all(tracker(patience=2), [math.nan, 0.1, math.nan, math.nan])
    assert found == [(False, False), (True, False), (False, False), (False, True)]
    best = tracker("eval_success", patience=1)
    assert not best.update(0, {"eval_turns": 0.0})
    assert best.update(2, {"eval_success": 0.5})
    best.update(3, {"eval_reward": 0.5, "eval_turns": 0.0})
    assert not best.should_stop


def test_a_metric_that_the_environment_lacks_is_refused_and_another_metrics_state_ignored():
    with pytest.raises(ConfigError, match=r"'eval_success', but .*'eval_reward'"):
        tracker("eval_success").update(0, {"eval_reward": 1.0, "eval_turns": 2.0})
    other, best = tracker("eval_turns"), tracker("eval_reward")
    other.update(5, {"eval_turns": 2.0})
    best.restore(other.state())
    assert best.best_step is None


class Scored(GRPOTrainer):
    """A trainer with given results of its evaluations."""

    def __init__(self, folder, rewards, **settings):
        self.rewards = rewards
        self.seen = {}
        config = GRPOConfig(
            output_dir=str(folder), groups_per_step=2, num_generations=2, max_completion_length=2,
            eval_steps=1, learning_rate=1e-2, drop_zero_variance_groups=False, **settings,
        )  # fmt: skip
        super().__init__(TransformersPolicy(tiny_model(), byte_tokenizer()), Echo, config)

    def evaluate(self):
        self.seen[self.step] = {name: value.clone() for name, value in self.policy.model.state_dict().items()}
        return {"eval_reward": self.rewards[self.step]}

    def saved_steps(self):
        return [checkpoint_step(path) for path in list_checkpoints(self.log.checkpoints)]

    def has(self, weights):
        return all(value.equal(weights[name]) for name, value in self.policy.model.state_dict().items())


def test_a_run_stops_early_and_ends_with_its_best_weights_also_if_resumed(tmp_path):
    settings = {"early_stopping_patience": 2, "load_best_model_at_end": True, "save_total_limit": 1}
    trainer = Scored(tmp_path, [0.1, 0.9, 0.2, 0.3, 5.0], max_steps=4, **settings)
    trainer.train()
    assert (trainer.step, trainer.saved_steps()) == (3, [1, 3])
    assert trainer.has(trainer.seen[1])
    assert result_checkpoint(trainer.log.checkpoints).name == "step-000001"
    again = Scored(tmp_path, [0.0] * 9, max_steps=4, **settings)
    again.load_checkpoint(list_checkpoints(trainer.log.checkpoints)[-1])
    again.train()
    assert again.step == 3  # it was done
    assert again.has(trainer.seen[1])


def test_the_best_is_kept_beside_the_newest_and_by_a_resumed_run(tmp_path):
    first = Scored(tmp_path, [0.1, 0.9, 0.2, 0.3], max_steps=3, save_total_limit=1)
    first.train()
    assert first.saved_steps() == [1, 3]
    assert result_checkpoint(first.log.checkpoints).name == "step-000003"
    assert result_checkpoint(tmp_path / "gone") is None
    second = Scored(tmp_path, [0, 0, 0, 0, 0.8], max_steps=4, load_best_model_at_end=True)
    second.load_checkpoint(list_checkpoints(first.log.checkpoints)[-1])
    second.train()
    assert second.has(first.seen[1])
