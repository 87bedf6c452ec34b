import dataclasses
import json
from typing import Any

import pytest

from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError

PLAIN = ("str", "str | None", "bool", "bool | None")


def test_a_config_survives_the_trip_through_json() -> None:
    config = GRPOConfig(learning_rate=2e-3, epsilon_high=None, loss_type="grpo", stop_strings=("END",))
    assert GRPOConfig.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config


def test_defaults_that_trl_has_are_trls() -> None:
    config = GRPOConfig()
    assert (config.num_generations, config.learning_rate, config.beta, config.epsilon) == (8, 1e-6, 0.0, 0.2)
    assert (config.num_iterations, config.temperature, config.max_grad_norm) == (1, 1.0, 1.0)


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("learning_rate", "1e-3", 1e-3),  # YAML 1.1 reads 1e-3 as text
        ("learning_rate", 1, 1.0),
        ("max_steps", 10.0, 10),
        ("epsilon_high", None, None),
        ("save_total_limit", None, None),
        ("stop_strings", "END", ("END",)),
    ],
)
def test_values_are_read_as_yaml_writes_them(key: str, value: object, read: object) -> None:
    for config in (GRPOConfig.from_mapping({key: value}), GRPOConfig(**{key: value})):  # type: ignore[arg-type]
        found = getattr(config, key)
        assert found == read
        assert type(found) is type(read)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"learning_rat": 1.0}, "did you mean `learning_rate`"),
        ({"zzz": 1.0}, "known: `output_dir`"),
        ({"learning_rate": "fast"}, r"learning_rate is 'fast' \(str\): set a value of type float"),
        ({"max_steps": 1.5}, r"max_steps is 1.5 \(float\): set a value of type int"),
        ({"share_prefixes": 1}, r"share_prefixes is 1 \(int\): set a value of type bool"),
        ({"max_concurrent": "all"}, "type int or null"),
        ({"loss_type": "dopo"}, "did you mean `dapo`"),
        ({"lr_scheduler_type": "step"}, "set one of 'linear', 'cosine', 'constant'"),
        ({"temperature": 0}, "temperature is 0.0: set a finite number above 0"),
        ({"num_generations": 1}, "baseline is the mean over a group"),
        ({"steps_per_generation": 9, "groups_per_step": 8}, "needs at least one group"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"epsilon": 1.0}, "epsilon is 1.0: set a number from 0 to below 1"),
        ({"max_concurrent": 0}, "max_concurrent is 0: set at least 1, or null"),
        ({"lr_final_ratio": 2.0}, "from 0 to 1"),
        ({"loss_type": "cispo"}, r"epsilon_high is 0.28, but for loss_type 'cispo' .* above 1 \(5.0\)"),
        ({"loss_type": "cispo", "epsilon_high": 5.0, "delta": 4.0}, "set delta to null"),
        ({"stop_strings": [""]}, "stop_strings"),
        ({"stop_strings": [3]}, "stop_strings"),
        ({"stop_strings": None}, "stop_strings"),
        ({"delta": 1.2}, "ratios up to 1 \\+ epsilon_high = 1.28 are not clipped"),
        ({"importance_sampling_clip_min": 0.5}, "no effect without importance_sampling_correction"),
        ({"max_resampled_groups": 9}, "no effect without dynamic_sampling"),
        (
            {"importance_sampling_correction": True, "importance_sampling_clip_min": 3.0},
            r"clip_min \(3.0\) is not below .*clip_max \(3.0\)",
        ),
        (
            {
                "importance_sampling_correction": True,
                "importance_sampling_mode": "token_truncate",
                "importance_sampling_clip_max": None,
            },
            "nothing to truncate at: set importance_sampling_clip_max",
        ),
        ({"gamma": 0.9}, "'group' does not use it: set advantage_estimator to 'reward_to_go'"),
        ({"step_advantage_weight": 0.5}, "'group' does not use it"),
        ({"step_states": "observation"}, "'group' does not use it: set advantage_estimator to 'gigpo'"),
        ({"adam_beta1": 1.0}, "adam_beta1 is 1.0: set a number from 0 to below 1"),
        ({"advantage_estimator": "gigpo", "scale_rewards": "batch"}, "'gigpo' compares within groups"),
        ({"advantage_estimator": "gae", "scale_rewards": "group"}, "scale_rewards"),
        ({"advantage_estimator": "gae", "dynamic_sampling": True}, "a group of equal rewards teaches too"),
        ({"lam": 1.0}, "set advantage_estimator to 'gae', or lam"),
        ({"value_learning_rate": 0.1}, "value_learning_rate"),
        ({"early_stopping_patience": 2}, "set eval_steps"),
        ({"load_best_model_at_end": True}, "set eval_steps"),
        ({"metric_for_best_model": "eval_reward"}, "set eval_steps"),
        ({"optim": "adamw_8bit", "sharding": "fsdp2"}, "set optim to 'adamw', or sharding to 'none'"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_be_right(data: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GRPOConfig.from_mapping(data)


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


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(GRPOConfig) if f.type not in PLAIN])
def test_every_number_and_choice_has_a_range(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is -1"):
        GRPOConfig.from_mapping({name: -1})


@pytest.mark.parametrize(
    ("name", "settings", "value"),
    [
        ("clip_high", {"epsilon": 0.1, "epsilon_high": None}, 0.1),
        ("clip_high", {"epsilon_high": 0.3}, 0.3),
        ("filters_sampling", {"temperature": 0.7, "min_p": 0.0, "stop_strings": ("END",)}, False),
        ("filters_sampling", {"top_p": 0.9}, True),
        ("filters_sampling", {"top_k": 5}, True),
        ("filters_sampling", {"min_p": 0.1}, True),
        ("filters_sampling", {"repetition_penalty": 1.2}, True),
        ("records_states", {}, False),
        ("records_states", {"advantage_estimator": "gigpo"}, True),
        ("records_states", {"advantage_estimator": "gigpo", "step_states": "observation"}, False),
        ("resampling_budget", {"groups_per_step": 9}, 0),
        ("resampling_budget", {"dynamic_sampling": True, "groups_per_step": 5}, 5),
        ("resampling_budget", {"dynamic_sampling": True, "max_resampled_groups": 9}, 9),
    ],
)
def test_what_follows_from_the_settings(name: str, settings: dict[str, Any], value: object) -> None:
    assert getattr(GRPOConfig(**settings), name) == value
