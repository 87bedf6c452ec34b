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


def test_without_an_upper_clip_of_its_own_the_lower_one_serves() -> None:
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
        ({"learning_rat": 1.0}, "did you mean 'learning_rate'"),
        ({"zzz": 1.0}, "known keys: adam_beta1"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast', a str: set a value of type float"),
        ({"max_steps": 1.5}, "max_steps is 1.5, a float: set a value of type int"),
        ({"max_steps": True}, "max_steps is True, a bool: set a value of type int"),
        ({"share_prefixes": 1}, "share_prefixes is 1, an? int|type bool"),
        ({"max_concurrent": "all"}, "type int or null"),
        ({"loss_type": "dopo"}, "did you mean 'dapo'"),
        ({"lr_scheduler_type": "step"}, "set one of 'linear', 'cosine', 'constant'"),
        ({"temperature": 0}, "set it above 0"),
        ({"num_generations": 1}, "baseline is the mean over a group"),
        ({"steps_per_generation": 9, "groups_per_step": 8}, "needs at least one group"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0: set a finite number, 0 or more"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"min_p": 1.0}, "min_p is 1.0"),
        ({"epsilon": 1.0}, "set it below 1"),
        ({"epsilon_high": -0.1}, "epsilon_high is -0.1"),
        ({"max_concurrent": 0}, "null for no limit"),
        ({"lr_final_ratio": 2.0}, "between 0 and 1"),
        ({"groups_per_step": 0}, "at least 1"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_be_right(data: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GRPOConfig.from_mapping(data)


def test_only_a_filter_makes_sampling_filtered() -> None:
    assert not GRPOConfig(temperature=0.7, min_p=0.0).filters_sampling
    assert all(GRPOConfig(**one).filters_sampling for one in ({"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}))  # type: ignore[arg-type]
