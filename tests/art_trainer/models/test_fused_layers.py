"""Fused layers compute what the model's own compute, and keep less for it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig
from torch import nn

from art_trainer.models import fused_layers
from art_trainer.models.fused_layers import has_fused_norms, use_fused_layers
from art_trainer.models.loading import add_adapter
from art_trainer.training.memory_plan import ModelOptions, activation_bytes_per_token, empty_model
from tests.art_trainer.tiny_models import tiny_model
from tests.art_trainer.updates import logits_and_gradients


@pytest.fixture
def fused_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layers, "_UNFUSED", set())


def make(family: str, adapted: str | list[str] | None = None) -> Any:
    torch.manual_seed(0)
    model = tiny_model(family).double()
    if adapted is None:
        return model
    model = add_adapter(model, LoraConfig(r=4, target_modules=adapted)).double()
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            weights.data.normal_(std=0.1)
    return model


def fused(model: nn.Module) -> list[str]:
    return sorted({type(m).__name__ for m in model.modules() if type(m).__name__.startswith("Fused")})


@pytest.mark.parametrize("adapted", [None, "all-linear", ["down_proj"], ["gate_proj"]], ids=str)
@pytest.mark.parametrize("family", ["qwen2", "llama", "qwen3"])
def test_logits_and_gradients_are_the_models(
    family: str, adapted: str | list[str] | None, fused_on_cpus: None
) -> None:
    plain = make(family, adapted)
    model = copy.deepcopy(plain)
    for _ in range(2):  # a model may be given to several policies
        use_fused_layers(model)
    names = {"qwen2": "Qwen2", "llama": "Llama", "qwen3": "Qwen3"}
    assert fused(model) == [f"Fused{names[family]}MLP", f"Fused{names[family]}RMSNorm"]
    wanted = logits_and_gradients(plain)
    # Not closer: the model's own norms are in float32, whatever its type.
    assert (logits_and_gradients(model) - wanted).norm() < 1e-6 * wanted.norm()


def test_what_is_not_plain_is_left_to_the_model(fused_on_cpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise AssertionError("fused")

    monkeypatch.setattr(fused_layers, "fused_linear", refuse)
    hooked, gelu, other = make("qwen2"), make("qwen2"), make("qwen2")
    for layer in hooked.model.layers:
        layer.mlp.down_proj.register_forward_hook(lambda module, given, made: made)
    for layer in gelu.model.layers:
        layer.mlp.act_fn = nn.GELU()
    for layer in other.model.layers:
        layer.mlp.down_proj.forward = layer.mlp.down_proj.forward
    for model in (hooked, gelu, other):
        wanted = logits_and_gradients(model)
        use_fused_layers(model)
        assert (logits_and_gradients(model) - wanted).norm() < 1e-6 * wanted.norm()
    plain = make("qwen2")
    use_fused_layers(plain)
    with pytest.raises(AssertionError, match="fused"):
        logits_and_gradients(plain)


def test_a_feed_forward_layer_keeps_its_two_halves() -> None:
    """Not what the activation makes of one, nor their product: two tensors of four."""
    config = tiny_model("qwen2").config
    config.intermediate_size = 500 * config.hidden_size
    options = ModelOptions(dtype="bfloat16", lora=4, device="cpu")
    plain, less = empty_model(config, options), empty_model(config, options)
    use_fused_layers(less)
    ratio = activation_bytes_per_token(less) / activation_bytes_per_token(plain)
    assert 0.495 < ratio < 0.505


def test_norms_that_are_not_fused_keep_their_float32_copies_in_the_plan() -> None:
    options = ModelOptions(dtype="bfloat16", device="cpu")
    for family, fuses in (("llama", True), ("gemma2", False)):
        config = tiny_model(family).config
        plain, less = empty_model(config, options), empty_model(config, options)
        use_fused_layers(less)
        assert has_fused_norms(less) == fuses
        assert not has_fused_norms(plain)
        assert (activation_bytes_per_token(less) < activation_bytes_per_token(plain)) == fuses
