import json

import pytest

from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError


def test_a_config_survives_the_trip_through_json() -> None:
    config = GRPOConfig(learning_rate=2e-3, epsilon_high=None, loss_type="grpo", max_concurrent=4)
    assert GRPOConfig.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config


def test_defaults_that_trl_has_are_trls() -> None:
    config = GRPOConfig()
    assert (config.num_generations, config.learning_rate, config.beta, config.epsilon) == (8, 1e-6, 0.0, 0.2)
    assert (config.num_iterations, config.temperature, config.max_grad_norm) == (1, 1.0, 1.0)


def test_the_upper_clip_defaults_to_the_lower() -> None:
    assert GRPOConfig(epsilon=0.1, epsilon_high=None).clip_high == 0.1
    assert GRPOConfig(epsilon_high=0.3).clip_high == 0.3


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("learning_rate", "1e-3", 1e-3),  # YAML 1.1 reads 1e-3 as text
        ("learning_rate", 1, 1.0),
        ("max_steps", 10.0, 10),
        ("epsilon_high", None, None),
        ("save_total_limit", None, None),
    ],
)
def test_values_are_read_as_yaml_writes_them(key: str, value: object, read: object) -> None:
    found = getattr(GRPOConfig.from_mapping({key: value}), key)
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"learning_rat": 1.0}, "did you mean `learning_rate`"),
        ({"zzz": 1.0}, "known: `output_dir`"),
        ({"learning_rate": "fast"}, r"learning_rate is 'fast' \(str\): set a value of type float"),
        ({"max_steps": 1.5}, r"max_steps is 1.5 \(float\): set a value of type int"),
        ({"max_steps": True}, r"max_steps is True \(bool\): set a value of type int"),
        ({"share_prefixes": 1}, r"share_prefixes is 1 \(int\): set a value of type bool"),
        ({"max_concurrent": "all"}, "type int or null"),
        ({"loss_type": "dopo"}, "did you mean `dapo`"),
        ({"lr_scheduler_type": "step"}, "set one of 'linear', 'cosine', 'constant'"),
        ({"temperature": 0}, "temperature is 0.0: set a finite number above 0"),
        ({"num_generations": 1}, "baseline is the mean over a group"),
        ({"steps_per_generation": 9, "groups_per_step": 8}, "needs at least one group"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0: set a finite number, 0 or more"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"min_p": 1.0}, "min_p is 1.0"),
        ({"epsilon": 1.0}, "epsilon is 1.0: set a number from 0 to below 1"),
        ({"epsilon_high": -0.1}, "epsilon_high is -0.1"),
        ({"entropy_warning": 5.0}, "entropy_warning is 5"),
        ({"max_concurrent": 0}, "max_concurrent is 0: set at least 1, or null"),
        ({"lr_final_ratio": 2.0}, "from 0 to 1"),
        ({"groups_per_step": 0}, "at least 1"),
        ({"loss_type": "cispo"}, r"epsilon_high is 0.28, but for loss_type 'cispo' .* above 1 \(5.0\)"),
        ({"loss_type": "cispo", "epsilon_high": None}, "epsilon_high is 0.2, but for loss_type 'cispo'"),
        ({"loss_type": "cispo", "epsilon_high": 5.0, "delta": 4.0}, "set delta to null"),
        ({"delta": 1.2}, "ratios up to 1 \\+ epsilon_high = 1.28 are not clipped"),
        ({"delta": -1.0}, "delta is -1.0: set a finite number above 0"),
        ({"delta": float("nan")}, "delta is nan"),
        ({"importance_sampling_level": "sequences"}, "did you mean `sequence`"),
        ({"importance_sampling_clip_max": 0.0}, "above 0, or null"),
        ({"importance_sampling_clip_min": 3.0}, r"clip_min \(3.0\) is not below .*clip_max \(3.0\)"),
        (
            {
                "importance_sampling_correction": True,
                "importance_sampling_mode": "token_truncate",
                "importance_sampling_clip_max": None,
            },
            "nothing to truncate at: set importance_sampling_clip_max",
        ),
        ({"advantage_estimator": "gigpoo"}, "did you mean `gigpo`"),
        ({"gamma": 0.9}, "'group' does not use it: set advantage_estimator to 'reward_to_go'"),
        ({"gamma": 0.9, "advantage_estimator": "leave_one_out"}, "'leave_one_out' does not use it"),
        ({"step_advantage_weight": 0.5}, "'group' does not use it"),
        ({"step_advantage_weight": -1.0, "advantage_estimator": "gigpo"}, "0 or more"),
        ({"advantage_estimator": "gigpo", "scale_rewards": "batch"}, "'gigpo' compares within groups"),
        (
            {"advantage_estimator": "reinforce_plus_plus", "scale_rewards": "group"},
            "divides by the batch's standard deviation already",
        ),
        (
            {"advantage_estimator": "reinforce_plus_plus", "dynamic_sampling": True},
            "a group of equal rewards teaches too",
        ),
        ({"max_resampled_groups": 0}, "at least 1, or null"),
        ({"advantage_estimator": "gae", "scale_rewards": "group"}, "scale_rewards"),
        ({"advantage_estimator": "gae", "dynamic_sampling": True}, "dynamic_sampling"),
        ({"advantage_estimator": "gae", "lam": 1.5}, "lam is 1.5"),
        ({"advantage_estimator": "gae", "vf_coef": -0.1}, "vf_coef is -0.1"),
        ({"advantage_estimator": "gae", "cliprange_value": 0.0}, "cliprange_value"),
        ({"lam": 1.0}, "set advantage_estimator to 'gae', or lam"),
        ({"value_learning_rate": 0.1}, "value_learning_rate"),
        ({"eval_steps": 1, "early_stopping_patience": 0}, "early_stopping_patience is 0"),
        ({"eval_steps": 1, "early_stopping_threshold": -0.1}, "early_stopping_threshold is -0.1"),
        ({"eval_steps": 1, "metric_for_best_model": "sucess"}, "metric_for_best_model"),
        ({"early_stopping_patience": 2}, "set eval_steps"),
        ({"load_best_model_at_end": True}, "set eval_steps"),
        ({"metric_for_best_model": "eval_reward"}, "set eval_steps"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_be_right(data: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GRPOConfig.from_mapping(data)


def test_only_a_filter_makes_sampling_filtered() -> None:
    assert not GRPOConfig(temperature=0.7, min_p=0.0).filters_sampling
    assert all(GRPOConfig(**one).filters_sampling for one in ({"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "cispo", "epsilon_high": 5.0},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        {"delta": 4.0},
        {"advantage_estimator": "gigpo", "gamma": 0.95, "scale_rewards": "group"},
        {"advantage_estimator": "leave_one_out", "scale_rewards": "batch"},
        {"importance_sampling_correction": True, "importance_sampling_clip_max": None},
    ],
)
def test_the_settings_of_the_papers_are_accepted(settings: dict[str, object]) -> None:
    config = GRPOConfig.from_mapping(settings)
    assert {name: getattr(config, name) for name in settings} == settings


def test_states_are_recorded_only_for_gigpo() -> None:
    assert not GRPOConfig().records_states
    assert GRPOConfig(advantage_estimator="gigpo").records_states
    assert not GRPOConfig(advantage_estimator="gigpo", step_states="observation").records_states


def test_a_step_resamples_at_most_as_many_groups_as_it_has_by_default() -> None:
    assert GRPOConfig().resampling_budget == 0
    assert GRPOConfig(dynamic_sampling=True, groups_per_step=5).resampling_budget == 5
    assert GRPOConfig(dynamic_sampling=True, max_resampled_groups=9).resampling_budget == 9
    assert GRPOConfig(max_resampled_groups=9).resampling_budget == 0
