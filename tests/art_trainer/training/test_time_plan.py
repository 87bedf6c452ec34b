"""The estimate of a run's time: what is counted, what is measured, and figures that are known."""

from typing import Any

import numpy as np
import pytest
from transformers import Qwen2Config
from typer.testing import CliRunner

from art_trainer.cli.main import app
from art_trainer.errors import ConfigError
from art_trainer.models.loading import ModelOptions
from art_trainer.training import time_plan
from art_trainer.training.memory_plan import EpisodeShape, TrainingPlan, empty_model, plan_training
from art_trainer.training.run_settings import Layer, Settings, merge_settings
from art_trainer.training.time_plan import gpu_seconds, measured_seconds, run_tokens
from tests.art_trainer.tiny_models import tiny_config

SHAPE = EpisodeShape(40, 20, turns=3, fewest_turns=2, short_observation=5, reply=4)
STEP = {"groups_per_step": 2, "num_generations": 4, "max_steps": 10, "max_completion_length": 8}
CPU = ModelOptions(device="cpu")


def train(*words: str) -> str:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["train", *words], catch_exceptions=False).output


def planned(
    shape: EpisodeShape = SHAPE, sizes: Any = None, options: ModelOptions = CPU, **values: Any
) -> tuple[Settings, TrainingPlan]:
    settings = merge_settings([Layer("test", {**STEP, "eval_episodes": 6, **values})])
    empty = empty_model(sizes or tiny_config("qwen2"), options)
    return settings, plan_training(empty, settings.config, options, shape, max_batch=64)


def counted(longest: bool, **values: Any) -> np.ndarray:
    return run_tokens(*planned(**values), SHAPE, longest=longest)


def test_short_and_longest_episodes_of_training_and_evaluations_are_counted() -> None:
    # A step: 8 attempts of 2 turns of 4 tokens; 2 prompts of 40 and 8 observations of 5 between the turns.
    assert counted(False).tolist() == [10 * 64 + 2 * 48, 10 * 120 + 2 * 6 * 45, 10 * (64 + 120)]
    assert counted(True).tolist() == [10 * 192 + 2 * 144, 10 * 400 + 2 * 6 * 80, 10 * (192 + 400)]


@pytest.mark.parametrize(
    ("longest", "values", "more"),
    [
        (True, {"eval_steps": 5}, [3 * 144, 3 * 480, 0]),
        (True, {"dynamic_sampling": True, "max_resampled_groups": 1}, [960, 2000, 0]),
        (False, {"dynamic_sampling": True}, [0, 0, 0]),
        (False, {"warm_start": "a", "warm_start_epochs": 2}, [0, 0, 2 * 200 * 53]),
        (False, {"warm_start": "a", "warm_start_keep": "successes", "model": "m"}, [48, 270, 0]),
        (True, {"warm_start": "a", "warm_start_keep": "successes"}, [0, 0, 200 * 104]),
        (True, {"share_prefixes": False}, [0, 0, 10 * 6 * 40]),
    ],
)
def test_what_a_setting_adds_is_counted(longest: bool, values: dict[str, Any], more: list[int]) -> None:
    assert (counted(longest, **values) - counted(longest)).tolist() == more


@pytest.mark.parametrize("shape", [SHAPE, EpisodeShape(30, 0, turns=3, windowed=True)])
def test_the_group_of_the_measured_update_has_the_tokens_that_are_counted(shape: EpisodeShape) -> None:
    settings, plan = planned(shape)
    group, tokens = time_plan._made_up_group(settings.config, shape, plan, 50, np.random.default_rng(0))
    contexts = [history for episode in group.episodes for history in episode.histories]
    shared = contexts[0].prompt_length
    assert len({context.token_ids[:shared] for context in contexts[:: len(contexts) // 4]}) == 1
    assert tokens == sum(len(context.token_ids) for context in contexts) - 3 * shared


def test_layers_that_are_not_measured_are_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("qwen3")
    config.num_hidden_layers, config.layer_types = 9, ["full_attention"] * 9
    settings, plan = planned(sizes=config)
    given = empty_model(config, CPU), settings.config, CPU, SHAPE, plan
    whole = measured_seconds(*given)
    assert whole.min() > 0

    def linear(model: Any, *others: Any) -> np.ndarray:
        return np.array([1.0, 2.0, 3.0]) * (5 + len(model.model.layers))

    monkeypatch.setattr(time_plan, "_SMALL", 0)
    monkeypatch.setattr(time_plan, "_seconds_a_token", linear)
    assert measured_seconds(*given).tolist() == [14, 28, 42]


@pytest.mark.parametrize(
    ("sizes", "lora", "seconds"),
    [
        ((896, 24, 14, 2, 4864), 16, 3.07 + 1.20),
        ((896, 24, 14, 2, 4864), None, 2.22 + 1.06),
        ((1536, 28, 12, 2, 8960), 16, 4.18 + 2.08),
        ((3584, 28, 28, 4, 18944), 16, 6.68 + 5.98),
    ],
)
def test_the_table_gives_the_steps_of_the_speed_page(sizes: Any, lora: int | None, seconds: float) -> None:
    hidden, layers, heads, key_heads, inner = sizes
    model = Qwen2Config(
        vocab_size=151936, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=key_heads, intermediate_size=inner, tie_word_embeddings=True,
    )  # fmt: skip
    shape, options = EpisodeShape(1024, 128, 6), ModelOptions("bfloat16", lora, device="cpu")
    step = {"groups_per_step": 4, "num_generations": 16, "max_completion_length": 64, "eval_episodes": 1}
    settings, plan = planned(shape, model, options, **step)
    rates = gpu_seconds("H200", empty_model(model, options), settings.config, options, plan)
    tokens = [24_576, 4 * 1024 + 64 * 5 * 128, 69_632]
    assert rates @ tokens == pytest.approx(seconds, rel=0.12)


def test_a_gpu_that_is_not_in_the_table_and_other_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no GPU 'H20'.*did you mean `H200`\?.*RTX 4090"):
        train("--dry-run", "--gpu", "H20")
    with pytest.raises(ConfigError, match="weights of 16 bits: set --dtype bfloat16"):
        train("--dry-run", "--gpu", "H200")
    with pytest.raises(ConfigError, match="only --dry-run without an agent reads"):
        train("--gpu", "H200")


def test_a_price_is_shown_with_the_time() -> None:
    shown = train("--dry-run", "--gpu", "L4", "--dtype", "bfloat16", "--price-per-hour", "36")
    assert "Time, an estimate: " in shown
    assert "computed for one L4 by its data sheet" in shown
    assert "Cost at 36 an hour: " in shown
