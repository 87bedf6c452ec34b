"""The estimate of a run's time: what is counted, what is measured, and figures that are known."""

import re
from dataclasses import replace
from pathlib import Path
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
from benchmarks.learner_workload import WORKLOADS
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_config

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


def test_what_a_setting_adds_is_counted() -> None:
    def more(longest: bool, **values: Any) -> Any:
        return (counted(longest, **values) - counted(longest)).tolist()

    kept: Any = {"warm_start": "a", "warm_start_keep": "successes"}
    assert more(True, eval_steps=5) == [3 * 144, 3 * 480, 0]
    assert more(True, dynamic_sampling=True, max_resampled_groups=1) == [960, 2000, 0]
    assert more(False, dynamic_sampling=True) == [0, 0, 0]
    assert more(False, warm_start="a", warm_start_epochs=2) == [0, 0, 2 * 200 * 53]
    rounds = more(False, warm_start="a", warm_start_rounds=3)  # the model plays all but the first
    assert rounds == [2 * 200 * 8, 2 * 200 * 45, 3 * 200 * 53]
    assert more(False, **kept, model="m") == [48, 270, 0]
    assert more(True, **kept) == [0, 0, 200 * 104]
    assert more(True, share_prefixes=False) == [0, 0, 10 * 6 * 40]


def test_the_group_of_the_measured_update_has_the_tokens_that_are_counted() -> None:
    settings, plan = planned()
    rng = np.random.default_rng(0)
    group, tokens = time_plan._made_up_group((3, 8, 20), settings.config, SHAPE, plan, 50, rng)
    contexts = [episode.histories[0].token_ids for episode in group.episodes]
    assert len({context[: SHAPE.prompt] for context in contexts}) == 1
    assert tokens == sum(map(len, contexts)) - 3 * SHAPE.prompt


def test_the_measured_update_of_windows_has_one_for_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, updated = replace(SHAPE, windowed=True), []
    monkeypatch.setattr(time_plan.Learner, "update", lambda _, groups: updated.append(len(groups)))
    settings, plan = planned(shape)
    measured_seconds(empty_model(tiny_config("qwen2"), CPU), settings.config, CPU, shape, plan)
    assert set(updated) == {2 * shape.fewest_turns, 2 * shape.turns}


def test_layers_that_are_not_measured_are_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("qwen3")
    config.num_hidden_layers, config.layer_types = 9, ["full_attention"] * 9
    settings, plan = planned(sizes=config)
    given = empty_model(config, CPU), settings.config, CPU, SHAPE, plan
    measured = measured_seconds(*given)
    assert measured.shape == (2, 3)
    assert measured.min() > 0

    monkeypatch.setattr(time_plan, "_SMALL", 0)

    def linear(model: Any, *_: Any, longest: bool) -> np.ndarray:
        return np.array([1, 2, 3]) * (5 + len(model.model.layers)) * (1 + longest)

    monkeypatch.setattr(time_plan, "_seconds_a_token", linear)
    assert measured_seconds(*given).tolist() == [[14, 28, 42], [28, 56, 84]]


MEASURED = [("0.5b-lora", 3.35 + 1.10), ("0.5b-full", 2.32 + 1.03), ("1.5b-lora", 4.39 + 1.98)]


@pytest.mark.parametrize(("name", "seconds"), [*MEASURED, ("7b-lora", 7.38 + 5.31)])
def test_the_table_gives_the_steps_of_the_speed_page(name: str, seconds: float) -> None:
    size = WORKLOADS[name]
    heads = {"num_attention_heads": size.heads, "num_key_value_heads": size.key_heads}
    sizes = {"hidden_size": size.hidden, "num_hidden_layers": size.layers, "intermediate_size": size.inner}
    model: Any = Qwen2Config(vocab_size=size.vocabulary, tie_word_embeddings=True, **sizes, **heads)
    shape, options = EpisodeShape(1024, 128, 6), ModelOptions("bfloat16", size.lora or None, device="cpu")
    step = {"groups_per_step": 4, "num_generations": 16, "max_completion_length": 64, "eval_episodes": 1}
    settings, plan = planned(shape, model, options, **step)
    rates = gpu_seconds("H100", empty_model(model, options), settings.config, options, plan)
    assert rates @ [24_576, 4 * 1024 + 64 * 5 * 128, 69_632] == pytest.approx(seconds, rel=0.06)


def test_a_gpu_of_the_table_and_a_price_are_taken_others_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no GPU 'H20'.*did you mean `H200`\?.*RTX 4090"):
        train("--dry-run", "--gpu", "H20")
    with pytest.raises(ConfigError, match="weights of 16 bits: set --dtype bfloat16"):
        train("--dry-run", "--gpu", "H200")
    with pytest.raises(ConfigError, match="only --dry-run without an agent reads"):
        train("--gpu", "H200")
    with pytest.raises(ConfigError, match=r"from 0\.5 billion weights on"):
        train("--dry-run", "--gpu", "H200", "--dtype", "bfloat16")
    Qwen2Config(dtype="bfloat16", num_hidden_layers=3).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    plan = ("--dry-run", "--gpu", "L4", "--price-per-hour", "36", "--model", str(tmp_path))
    shown = train(*plan, "--lora", "4")
    assert re.search(r"Time, an estimate: .*computed for one L4 .*Cost at 36 an hour: \d", shown, re.DOTALL)
    assert "It does not fit into the 20.1 GiB that a run uses of one L4, nine tenths of its" in shown
    assert "a run takes max_batch" in shown
    shown = train(*plan)
    assert "Set gradient_checkpointing or lora or another model or another device." in shown
    assert "Time: not estimated, as the run does not fit into the memory.\nA dry run" in shown
