"""The plan of a run against what a run then allocates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, Qwen2Config
from typer.testing import CliRunner

from art_trainer.cli.main import app
from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.inference.kv_cache import SlotCache, Window
from art_trainer.models.cache_name import CACHE_NAME
from art_trainer.models.loading import ModelOptions
from art_trainer.models.optim import make_optimizer, optimizer_bytes
from art_trainer.rollout.envs import env_maker
from art_trainer.training.memory_plan import (
    EpisodeShape,
    TrainingPlan,
    activation_bytes_per_token,
    cache_bytes_per_token,
    empty_model,
    plan_training,
)
from art_trainer.training.run_settings import Layer, Settings, merge_settings
from art_trainer.training.run_setup import fit_to_device, prepare_policy
from tests.art_trainer.tiny_models import byte_tokenizer, lora_model, tiny_config, tiny_model
from tests.art_trainer.updates import saved_bytes

SHAPE = EpisodeShape(prompt=40, observation=20, turns=3)
ENV = "tests.art_trainer.toy_envs:toy/Echo-v0"
# PEFT's patterns for fused experts, which all-linear leaves alone.
pytestmark = [pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")]


def real_model(family: str, lora: bool = False) -> torch.nn.Module:
    return lora_model(family=family) if lora else tiny_model(family)


def planned(family: str = "qwen2", *, settings: dict[str, Any] | None = None, **options: Any) -> TrainingPlan:
    chosen = ModelOptions(device="cpu", **options)
    defaults = {"max_completion_length": 8, "groups_per_step": 2, "eval_episodes": 16}
    config = GRPOConfig(**{**defaults, **(settings or {})})
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
    gradients = [p.grad.nbytes for p in trained]
    assert found["gradients"] == sum(gradients) + 2 * max(gradients)
    assert found["optimizer"] == sum(v.nbytes for one in optimizer.state.values() for v in one.values())
    assert [part.name for part in plan.memory if part.exact] == ["weights", "optimizer"]


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
        model(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=True, **{CACHE_NAME: cache})
    allocated = sum(states.nbytes for layer in cache.slots for states in layer.own.states)
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
        out = base.get_decoder()(input_ids=ids, use_cache=True, **{CACHE_NAME: DynamicCache()})
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
    found = sizes(plan)
    always = sum(found[name] for name in ("weights", "optimizer"))
    update = sum(found[name] for name in ("gradients", "activations", "logits"))
    assert plan.total == always + max(update, found["KV cache"] + found["sampling"] + found["reading"])
    assert planned(settings={"eval_episodes": 100}).rows == 100, "an evaluation may play more than a step"
    assert sizes(planned(settings={"tokens_per_microbatch": 200}))["logits"] == 12 * 200 * 300
    many = sizes(planned(settings={"tokens_per_microbatch": 10**6}))["logits"]
    assert many == pytest.approx(12 * 2**24, rel=1e-3)


def test_conversations_and_micro_batches_are_lowered_to_what_fits() -> None:
    plan = planned(settings={"eval_episodes": 200, "tokens_per_microbatch": 8192})
    assert plan.size("reading") > 0
    assert plan.fitted(plan.total) == (200, 8192)
    of_rows = plan.size("KV cache") + plan.size("sampling")
    room = plan.held("always") + plan.size("reading") + of_rows // 2
    rows, tokens = plan.fitted(room)
    assert 1 < rows < 200
    assert plan.context < tokens < 8192
    assert planned(settings={"eval_episodes": rows, "tokens_per_microbatch": tokens}).total <= room
    assert plan.fitted(0) == (1, plan.context)
    assert plan.held("always") < plan.smallest < plan.total


@pytest.mark.e2e
def test_seven_billion_weights_with_an_adapter_fit_80_gb() -> None:
    """Qwen2.5-7B's shape and the default settings, with contexts of 5,285 tokens."""
    shape: Any = Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, vocab_size=152064, tie_word_embeddings=False, dtype="bfloat16",
    )  # fmt: skip
    options = ModelOptions(dtype="bfloat16", lora=16, device="cpu")
    model, episodes = empty_model(shape, options), EpisodeShape(27, 166, 8)
    plan = plan_training(model, GRPOConfig(), options, episodes, max_batch=256)
    free = 79 * 2**30 * 9 // 10
    assert plan.smallest < free < plan.total
    rows, _ = plan.fitted(free)
    assert 128 < rows < 256
    assert plan_training(model, GRPOConfig(), options, episodes, max_batch=rows).total <= free


def run_settings(model: Path, **values: Any) -> Settings:
    chosen = {"env": ENV, "model": str(model), "device": "cpu", "max_completion_length": 8, **values}
    return merge_settings([Layer("flag", chosen)])


def test_a_run_takes_what_the_free_memory_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_model().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    make_env = env_maker(ENV, {})

    def fitted(free: int, **values: Any) -> Settings:
        monkeypatch.setattr("art_trainer.training.run_setup.usable_memory", lambda device: free)
        settings = run_settings(tmp_path, **values)
        policy = prepare_policy(settings, lambda: [], checkpoint=None)
        return fit_to_device(settings, policy.model, policy.format, make_env)

    plenty = fitted(2**40)
    assert (plenty.run.max_batch, plenty.config.tokens_per_microbatch) == (256, 4096)
    with caplog.at_level("INFO"):
        little = fitted(40_000_000)
    assert 1 < little.run.max_batch < 256
    assert 100 < little.config.tokens_per_microbatch < 4096
    assert f"max_batch is {little.run.max_batch}, for the free memory of cpu" in caplog.text
    assert "may run out of memory" not in caplog.text
    chosen = fitted(40_000_000, max_batch=200, tokens_per_microbatch=4000)
    assert (chosen.run.max_batch, chosen.config.tokens_per_microbatch) == (200, 4000), "somebody set them"
    assert "may run out of memory" in caplog.text


def dry_run(*arguments: object) -> str:
    command = ["train", "--dry-run", *map(str, arguments)]
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, command, catch_exceptions=False).output


def test_a_dry_run_needs_and_writes_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "tiny"
    tiny_config("qwen2").save_pretrained(model)
    byte_tokenizer().save_pretrained(model)
    monkeypatch.chdir(tmp_path)
    output = dry_run("--env", ENV, "--model", model, "--lora", 4, "--max-steps", 7, "--groups-per-step", 2)
    plan = planned(lora=4)
    for text in (f"{plan.parameters:,} parameters, {plan.trained:,} of them", "KV cache", "16 episodes"):
        assert text in output
    assert "It fits into the " in output
    assert "It is measured on cpu with random weights" in output
    monkeypatch.setattr("art_trainer.cli.plan.usable_memory", lambda device: 3_000_000)
    refused = dry_run("--env", ENV, "--model", model, "--lora", 4)
    assert "It does not fit into the 2.86 MiB that a run uses of cpu" in refused
    assert "Set gradient_checkpointing or another model or another device." in " ".join(refused.split())
    assert "Time: not estimated, as the run does not fit" in refused
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert "scratch on" in dry_run("--env", ENV, "--model", "scratch", "--history-window", 1)
    assert "1,239,552 parameters" in dry_run()
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_model_that_does_not_exist_or_is_an_adapter_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        dry_run("--env", ENV, "--model", tmp_path / "gone")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="is an adapter: give --model the model below it"):
        dry_run("--env", ENV, "--model", tmp_path)
