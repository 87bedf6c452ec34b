"""The plan of a run against what a run then allocates."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache
from typer.testing import CliRunner

from art_trainer.cli import app
from art_trainer.commands.planning import in_bytes
from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.kv_cache import SlotCache, Window
from art_trainer.loading import ModelOptions
from art_trainer.optimization import make_optimizer, optimizer_bytes
from art_trainer.plan import (
    EpisodeShape,
    TrainingPlan,
    activation_bytes_per_token,
    cache_bytes_per_token,
    empty_model,
    plan_training,
)
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_config, tiny_model

FAMILIES = ["qwen2", "qwen3", "llama", "mistral-sliding", "deepseek-v3"]
SHAPE = EpisodeShape(prompt=40, observation=20, turns=3)
ENV = "tests.art_trainer.toy_envs:toy/Echo-v0"
pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),
    # PEFT's patterns for fused experts, which all-linear leaves alone.
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning"),
]


def real_model(family: str, lora: int | None = None) -> torch.nn.Module:
    model = tiny_model(family)
    if lora is None:
        return model
    return get_peft_model(
        model, LoraConfig(r=lora, lora_alpha=2 * lora, target_modules="all-linear", task_type="CAUSAL_LM")
    )


def planned(family: str = "qwen2", *, settings: dict | None = None, **options) -> TrainingPlan:
    chosen = ModelOptions(device="cpu", **options)
    config = GRPOConfig(**{"max_completion_length": 8, "groups_per_step": 2, **(settings or {})})
    return plan_training(empty_model(tiny_config(family), chosen), config, chosen, SHAPE, max_batch=256)


def sizes(plan: TrainingPlan) -> dict[str, int]:
    return {part.name: part.size for part in plan.memory}


@pytest.mark.parametrize("lora", [None, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_gradients_and_moments_are_counted_exactly(family: str, lora: int | None) -> None:
    plan = planned(family, lora=lora)
    model = real_model(family, lora)
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


def test_bfloat16_halves_the_weights_but_not_the_adapter() -> None:
    full, half = planned(lora=4), planned(lora=4, dtype="bfloat16")
    adapter = 4 * full.trained
    assert sizes(half)["weights"] - adapter == pytest.approx((sizes(full)["weights"] - adapter) / 2, rel=1e-3)
    assert sizes(half)["optimizer"] == sizes(full)["optimizer"]


def test_tied_weights_count_once() -> None:
    config = tiny_config("qwen2")
    untied = empty_model(config, ModelOptions())
    config.tie_word_embeddings = True
    tied = empty_model(config, ModelOptions())
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == 300 * 48


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "deepseek-v3"])
def test_the_cache_is_what_the_sampler_allocates(family: str) -> None:
    model = real_model(family)
    plan = planned(family)
    rows, positions = 16, 128  # 2 groups of 8; 40 + 3 * 8 + 2 * 20 = 104 tokens, in steps of 64
    assert plan.context == 104
    layers = SlotCache.layer_count_for(model.config)
    assert layers is not None
    cache = SlotCache(layers)
    cache.reserve(rows, positions)
    cache.window = Window(torch.arange(1), slice(0, 1), torch.zeros(1, 1, dtype=torch.long), 1)
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    allocated = sum(states.nbytes for layer in cache.slots for states in (layer.own.keys, layer.own.values))
    assert sizes(plan)["KV cache"] == allocated
    assert cache_bytes_per_token(model) == allocated / rows / positions


def test_a_model_with_a_sliding_window_keeps_no_cache() -> None:
    plan = planned("mistral-sliding")
    assert not plan.keeps_cache
    assert not plan.shares_prefixes
    assert "KV cache" not in sizes(plan)


@pytest.mark.parametrize(("family", "lora"), [("qwen2", None), ("qwen2", 4), ("qwen3", None), ("llama", 4)])
def test_activations_are_what_autograd_saves(family: str, lora: int | None) -> None:
    model = real_model(family, lora)
    base = model.get_base_model() if lora else model
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in own:
            saved[place] = tensor.untyped_storage().nbytes()
        return tensor

    tokens = 96
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = base.get_decoder()(
            input_ids=torch.zeros(1, tokens, dtype=torch.long), past_key_values=DynamicCache(), use_cache=True
        )
    assert out.last_hidden_state.requires_grad
    estimate = activation_bytes_per_token(model) * tokens
    assert sum(saved.values()) == pytest.approx(estimate, rel=0.1)
    less = activation_bytes_per_token(model, recompute=True) * tokens
    assert estimate / 2 < less < estimate


def test_a_reference_is_kept_for_full_fine_tuning_with_beta_alone() -> None:
    assert "reference" not in sizes(planned())
    assert "reference" not in sizes(planned(lora=2, settings={"beta": 0.1}))
    plan = planned(settings={"beta": 0.1})
    assert sizes(plan)["reference"] == sizes(plan)["weights"]
    half = sizes(planned(settings={"beta": 0.1, "reference_dtype": "bfloat16"}))["reference"]
    assert half == sizes(plan)["weights"] / 2


def test_4_bit_weights_are_an_eighth_and_a_little_of_float32() -> None:
    model = empty_model(tiny_config("qwen2"), ModelOptions(lora=4, load_in_4bit=True))
    packed = sum(
        p.numel()
        for name, p in model.named_parameters()
        if ".layers." in name and "base_layer.weight" in name
    )
    plan = planned(lora=4, load_in_4bit=True)
    saving = sizes(planned(lora=4))["weights"] - sizes(plan)["weights"]
    assert saving == pytest.approx(packed * (4 - 4.127 / 8), rel=1e-3)
    assert not plan.memory[0].exact


def test_8_bit_moments_take_two_bytes_a_weight_of_a_large_tensor() -> None:
    large, small = torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 63, bias=False)
    assert optimizer_bytes(large, "adamw_8bit") == 2 * 4096 + 2 * 4 * 16
    assert optimizer_bytes(small, "adamw_8bit") == 8 * 64 * 63


@pytest.mark.parametrize(
    ("shape", "limit", "wanted"),
    [
        (EpisodeShape(10, 5, 4), None, 10 + 4 * 8 + 3 * 5),
        (EpisodeShape(10, 5, 4), 50, 50),
        (EpisodeShape(10, 5, 4, windowed=True), None, 18),
    ],
)
def test_a_context_is_as_long_as_its_turns(shape: EpisodeShape, limit: int | None, wanted: int) -> None:
    assert shape.context(8, limit) == wanted


def test_the_step_is_counted_in_episodes_and_tokens() -> None:
    plan = planned(settings={"groups_per_step": 3, "num_generations": 4})
    assert (plan.episodes, plan.sampled_tokens, plan.context_tokens) == (12, 12 * 3 * 8, 12 * 104)
    assert plan.total == sum(sizes(plan).values())


def test_a_large_vocabulary_is_held_in_chunks_and_a_small_batch_as_a_whole() -> None:
    few = sizes(planned(settings={"tokens_per_microbatch": 200}))["logits"]
    assert few == 12 * 200 * 300
    many = sizes(planned(settings={"tokens_per_microbatch": 10**6}))["logits"]
    assert many == pytest.approx(12 * 2**24, rel=1e-3)


def dry_run(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["train", "--dry-run", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_dry_run_needs_the_configuration_alone_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "tiny"
    tiny_config("qwen2").save_pretrained(model)
    byte_tokenizer().save_pretrained(model)
    monkeypatch.chdir(tmp_path)
    output = dry_run("--env", ENV, "--model", model, "--lora", 4, "--max-steps", 7, "--groups-per-step", 2)
    assert f"{planned(lora=4).parameters:,} parameters, {planned(lora=4).trained:,} of them trained" in output
    assert "KV cache" in output
    assert "2 groups of 8, 16 episodes of at most 2 turns" in output
    assert "7 steps, 112 episodes, 7 optimizer steps" in output
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_dry_run_knows_the_model_from_nothing_and_the_embedded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = dry_run("--env", ENV, "--model", "scratch", "--history-window", 1)
    assert "scratch on" in output
    assert "a turn's context" in output
    assert "854,144 parameters" in dry_run()
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_exist_or_is_an_adapter_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        dry_run("--env", ENV, "--model", tmp_path / "gone")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="is an adapter: give --model the model below it"):
        dry_run("--env", ENV, "--model", tmp_path)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 * 2**30 // 2, "1.5 GiB"), (2**52, "4.1e+03 TiB")],
)
def test_sizes_are_said_in_binary_units(size: int, text: str) -> None:
    assert in_bytes(size) == text
