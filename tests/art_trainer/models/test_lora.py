"""The LoRA layers compute what PEFT's compute."""

import copy

import pytest
import torch
from peft import LoraConfig
from peft.tuners import lora

from art_trainer.models.loading import add_adapter, add_lora_adapter
from art_trainer.models.lora import LoraLinear
from tests.art_trainer.tiny_models import tiny_model
from tests.art_trainer.updates import logits_and_gradients, weights_of

PLAIN = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}


@pytest.mark.parametrize(
    ("changes", "fast"),
    [({}, True), ({"use_rslora": True}, True), ({"lora_dropout": 0.3}, False), ({"use_dora": True}, False)],
    ids=str,
)
def test_logits_and_gradients_are_those_of_peft(changes, fast, monkeypatch):
    torch.manual_seed(0)
    model = add_adapter(tiny_model("qwen2"), LoraConfig(**PLAIN | changes)).eval()
    layers = [module for module in model.modules() if isinstance(module, LoraLinear)]
    assert len(layers) == 14
    for layer in layers:
        layer.lora_B["default"].weight.data.normal_(std=0.1)
    calls = []
    usual = LoraLinear._as_peft
    monkeypatch.setattr(LoraLinear, "_as_peft", lambda self, x: calls.append(1) or usual(self, x))
    found, copied = logits_and_gradients(model), logits_and_gradients(copy.deepcopy(model))
    assert bool(calls) != fast
    with model.disable_adapter():
        off = model(input_ids=torch.arange(12).view(2, 6)).logits
    for layer in layers:
        layer.__class__ = lora.Linear
    wanted = logits_and_gradients(model)
    assert torch.equal(found, copied)
    assert (found - wanted).norm() < 1e-6 * wanted.norm()
    with model.disable_adapter():
        assert torch.equal(off, model(input_ids=torch.arange(12).view(2, 6)).logits)


@pytest.mark.parametrize(
    ("family", "refused"), [("mamba", "out_proj"), ("mamba", "dt_proj"), ("phimoe", "router")]
)
def test_an_adapter_leaves_out_the_layers_that_peft_cannot_adapt(family, refused):
    model = add_lora_adapter(tiny_model(family), 2)
    assert not any(refused in name and "lora_A" in name for name, _ in model.named_parameters())
    assert weights_of(model).isfinite().all()
