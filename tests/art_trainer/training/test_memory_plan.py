"""The plan of a run against what a run then allocates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache
from typer.testing import CliRunner

from art_trainer.cli.main import app
from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.inference.kv_cache import SlotCache, Window
from art_trainer.models.loading import ModelOptions
from art_trainer.models.optim import make_optimizer, optimizer_bytes
from art_trainer.training.memory_plan import (
    EpisodeShape,
    TrainingPlan,
    activation_bytes_per_token,
    cache_bytes_per_token,
    empty_model,
    plan_training,
)
from tests.art_trainer.tiny_models import byte_tokenizer, lora_model, tiny_config, tiny_model
from tests.art_trainer.updates import saved_bytes

SHAPE = EpisodeShape(prompt=40, observation=20, turns=3)
ENV = "tests.art_trainer.toy_envs:toy/Echo-v0"
pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),
    # PEFT's patterns for fused experts, which all-linear leaves alone.
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning"),
]


def real_model(family: str, lora: bool = False) -> torch.nn.Module:
    return lora_model(family=family) if lora else tiny_model(family)


def planned(family: str = "qwen2", *, settings: dict[str, Any] | None = None, **options: Any) -> TrainingPlan:
    chosen = ModelOptions(device="cpu", **options)
    config = GRPOConfig(**{"max_completion_length": 8, "groups_per_step": 2, **(settings or {})})
    return plan_training(empty_model(tiny_config(family), chosen), config, chosen, SHAPE, max_batch=256)


def sizes(plan: TrainingPlan) -> dict[str, int]:
    return {part.name: part.size for part in plan.memory}


@pytest.mark.parametrize("lora", [None, 2])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "mistral-sliding", "deepseek-v3"])
def test_weights_gradients_and_moments_are_counted_exactly(family: str, lora: int | None) -> None:
    plan = planned(family, lora=lora)
    model = real_model(family, lora is not None)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert plan.parameters == sum(p.numel() for p in model.parameters())
    assert plan.trained == sum(p.numel() for p in trained)
    found = sizes(plan)
    assert found["weights"] == sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    optimizer = make_optimizer(model, learning_rate=1e-3)
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert found["gradients"] == sum(p.grad.nbytes for p in trained)
    assert found["optimizer"] == sum(v.nbytes for one in optimizer.state.values() for v in one.values())
    assert [part.name for part in plan.memory if part.exact] == ["weights", "gradients", "optimizer"]


@pytest.mark.parametrize("family", ["qwen2", "deepseek-v3"])
def test_the_cache_is_what_the_sampler_allocates(family: str) -> None:
    model = real_model(family)
    plan = planned(family)
    rows, positions = 16, 128  # 2 groups of 8; 40 + 3 * 8 + 2 * 20 = 104 tokens, in steps of 64
    assert plan.context == 104
    layers = SlotCache.layer_count_for(model.config)
    cache = SlotCache(layers)
    cache.reserve(rows, positions)
    cache.window = Window(torch.arange(1), slice(0, 1), torch.zeros(1, 1, dtype=torch.long), 1)
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    allocated = sum(states.nbytes for layer in cache.slots for states in (layer.own.keys, layer.own.values))
    assert sizes(plan)["KV cache"] == allocated
    empty = empty_model(tiny_config(family), ModelOptions(device="cpu"))
    assert cache_bytes_per_token(empty) == allocated / rows / positions


@pytest.mark.parametrize(("family", "lora"), [("qwen2", None), ("qwen3", None), ("llama", 2)])
def test_activations_are_what_autograd_saves(family: str, lora: int | None) -> None:
    model = real_model(family, lora is not None)
    base = model.get_base_model() if lora else model
    tokens = 96
    ids = torch.zeros(1, tokens, dtype=torch.long)
    with saved_bytes(model) as saved:
        out = base.get_decoder()(input_ids=ids, past_key_values=DynamicCache(), use_cache=True)
    assert out.last_hidden_state.requires_grad
    empty = empty_model(tiny_config(family), ModelOptions(device="cpu", lora=lora))
    estimate = activation_bytes_per_token(empty) * tokens
    assert sum(saved.values()) == pytest.approx(estimate, rel=0.1)
    assert estimate / 2 < activation_bytes_per_token(empty, recompute=True) * tokens < estimate


def test_a_reference_is_kept_for_full_fine_tuning_with_beta_alone() -> None:
    assert "reference" not in sizes(planned())
    assert "reference" not in sizes(planned(lora=2, settings={"beta": 0.1}))
    plan = planned(settings={"beta": 0.1})
    assert sizes(plan)["reference"] == sizes(plan)["weights"]
    half = sizes(planned(settings={"beta": 0.1, "reference_dtype": "bfloat16"}))["reference"]
    assert half == sizes(plan)["weights"] / 2


def test_sizes_of_4_and_8_bits() -> None:
    model = empty_model(tiny_config("qwen2"), ModelOptions(lora=4, load_in_4bit=True))
    named = [(n, p.numel()) for n, p in model.named_parameters()]
    packed = sum(count for name, count in named if ".layers." in name and "base_layer.weight" in name)
    plan = planned(lora=4, load_in_4bit=True)
    saving = sizes(planned(lora=4))["weights"] - sizes(plan)["weights"]
    assert saving == pytest.approx(packed * (4 - 4.127 / 8), rel=1e-3)
    assert not plan.memory[0].exact
    # Two bytes a weight, and two scales a block, of a large tensor; a small one stays in float32.
    assert optimizer_bytes(torch.nn.Linear(64, 64, bias=False), "adamw_8bit") == 2 * 4096 + 2 * 4 * 16
    assert optimizer_bytes(torch.nn.Linear(64, 63, bias=False), "adamw_8bit") == 8 * 64 * 63


def test_a_step_is_counted_in_episodes_and_tokens_and_logits_are_held_in_chunks() -> None:
    plan = planned(settings={"groups_per_step": 3, "num_generations": 4})
    assert (plan.episodes, plan.sampled_tokens, plan.context_tokens) == (12, 12 * 3 * 8, 12 * 104)
    shape = EpisodeShape(10, 5, 4)
    assert (shape.context(8, None), shape.context(8, 50)) == (10 + 4 * 8 + 3 * 5, 50)
    assert EpisodeShape(10, 5, 4, windowed=True).context(8, None) == 18
    assert plan.total == sum(sizes(plan).values())
    assert sizes(planned(settings={"tokens_per_microbatch": 200}))["logits"] == 12 * 200 * 300
    many = sizes(planned(settings={"tokens_per_microbatch": 10**6}))["logits"]
    assert many == pytest.approx(12 * 2**24, rel=1e-3)


def dry_run(*arguments: object) -> str:
    command = ["train", "--dry-run", *map(str, arguments)]
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, command, catch_exceptions=False).output


def test_a_dry_run_needs_the_configuration_alone_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "tiny"
    tiny_config("qwen2").save_pretrained(model)
    byte_tokenizer().save_pretrained(model)
    monkeypatch.chdir(tmp_path)
    output = dry_run("--env", ENV, "--model", model, "--lora", 4, "--max-steps", 7, "--groups-per-step", 2)
    plan = planned(lora=4)
    for text in (f"{plan.parameters:,} parameters, {plan.trained:,} of them", "KV cache", "16 episodes"):
        assert text in output
    assert "scratch on" in dry_run("--env", ENV, "--model", "scratch", "--history-window", 1)
    assert "854,144 parameters" in dry_run()
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_model_that_does_not_exist_or_is_an_adapter_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        dry_run("--env", ENV, "--model", tmp_path / "gone")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="is an adapter: give --model the model below it"):
        dry_run("--env", ENV, "--model", tmp_path)
