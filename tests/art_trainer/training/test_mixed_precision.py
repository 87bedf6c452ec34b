"""Weights of 16 bits learn as float32 ones do: float32 copies, moments and gradients."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from art_trainer.errors import CheckpointError, ConfigError, UnsupportedModelError
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models import loading, optim
from art_trainer.models.optim import UpdateGuard, make_optimizer, master_weights, optimizer_bytes
from art_trainer.training.checkpoint import read_checkpoint, write_checkpoint
from art_trainer.training.demonstrations import collect_demonstrations
from art_trainer.training.learner import Learner
from art_trainer.training.run_settings import Layer, merge_settings
from art_trainer.training.run_setup import prepare_policy
from art_trainer.training.sft import ImitationConfig, imitate
from art_trainer.types import EpisodeSpec
from tests.art_trainer.guess import GuessEnv, guess_policy, seeds
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.tiny_models import byte_tokenizer, lora_model, tiny_model
from tests.art_trainer.updates import config, untimed, weights_of


def learned(dtype: torch.dtype) -> tuple[TransformersPolicy, list[float], torch.Tensor]:
    """A policy after 200 optimizer steps of imitation, their losses, and how far each weight moved."""
    policy = guess_policy(hidden=32)
    starts = [EpisodeSpec(seed, group=i, rng_seed=i) for i, seed in enumerate(seeds(40))]
    shown = collect_demonstrations(policy, GuessEnv, "bisect", starts)
    policy.model.to(dtype)
    before = weights_of(policy.model).float()
    settings = ImitationConfig(epochs=40, batch_size=8, learning_rate=1e-4)
    losses = imitate(policy, shown, settings, rng=np.random.default_rng(0))
    assert len(losses) == 200
    return policy, losses, weights_of(policy.model).float() - before


@pytest.mark.e2e
def test_200_steps_in_bfloat16_learn_what_float32_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    _, exact, moved = learned(torch.float32)
    policy, found, moved_too = learned(torch.bfloat16)
    assert {p.dtype for p in policy.model.parameters()} == {torch.bfloat16}
    fallen = exact[0] - exact[-1]
    assert fallen > 1
    assert np.abs(np.array(found) - exact).max() < 0.05 * fallen
    assert torch.cosine_similarity(moved, moved_too, dim=0) > 0.99
    # The same steps on the weights themselves are mostly rounded away.
    monkeypatch.setattr(optim, "needs_master", lambda weight: False)
    _, rounded, _ = learned(torch.bfloat16)
    assert np.abs(np.array(rounded) - exact).max() > 0.5 * fallen


def test_gradients_of_micro_batches_are_summed_in_float32() -> None:
    weight = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        weight.weight.fill_(1.0)
    optimizer = make_optimizer(weight, learning_rate=1e-4, weight_decay=0.0)
    for _ in range(1000):
        weight(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
    assert weight.weight.grad is not None
    assert (weight.weight.grad.dtype, weight.weight.grad.item()) == (torch.float32, 1000.0)
    assert UpdateGuard(optimizer, 1.0).step(0.0, 1e-4) == pytest.approx(1000.0)
    assert weight.weight.grad is None
    (master,) = master_weights(optimizer).values()
    assert weight.weight.item() == 1.0, "the step is less than half of the next number of 16 bits"
    assert master.item() == pytest.approx(1 - 1e-4, abs=1e-6)


def test_weights_that_somebody_else_changed_are_not_changed_back() -> None:
    linear = nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)
    optimizer = make_optimizer(linear, learning_rate=1e-6)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    linear.weight.grad = torch.zeros(2, 2)
    optimizer.step()
    assert linear.weight.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def bf16_learner(seed: int, *, lora: bool = False, **settings: Any) -> Learner:
    model = (lora_model(seed) if lora else tiny_model(seed=seed)).to(torch.bfloat16)
    return Learner(model, config(**{"learning_rate": 1e-5, "steps_per_generation": 2, **settings}))


@pytest.mark.parametrize("lora", [False, True])
def test_a_resumed_run_goes_on_from_the_float32_copies(lora: bool, tmp_path: Path) -> None:
    first = bf16_learner(0, lora=lora)
    groups = [made_groups(first.model, groups=4, size=3, seed=n) for n in range(4)]
    for batch in groups[:2]:
        first.update(batch)
    path = write_checkpoint(tmp_path / "saved", first, byte_tokenizer())
    wanted = [untimed(first.update(batch)) for batch in groups[2:]]
    second = bf16_learner(1, lora=lora)
    read_checkpoint(path, second)
    assert [untimed(second.update(batch)) for batch in groups[2:]] == wanted
    for one, two in zip(*(master_weights(x.optimizer).values() for x in (first, second)), strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, two)
    if not lora:
        with pytest.raises(CheckpointError, match=r"written with float32 copies .* set dtype=bfloat16"):
            read_checkpoint(path, Learner(tiny_model(), config()))


def test_moments_of_8_bits_are_of_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("bitsandbytes.optim")
    module.AdamW8bit = torch.optim.AdamW  # takes the same arguments
    monkeypatch.setattr(optim, "require_bitsandbytes", lambda setting: None)
    monkeypatch.setattr(optim.importlib, "import_module", lambda name: module)
    learner = bf16_learner(0, optim="adamw_8bit")
    learner.update(made_groups(learner.model))
    for weight, master in master_weights(learner.optimizer).items():
        assert learner.optimizer.state[master]["exp_avg"].dtype == torch.float32
        assert torch.equal(weight, master.bfloat16())
    assert any((m != w).any() for w, m in master_weights(learner.optimizer).items())


def test_float32_weights_are_stepped_themselves_and_copies_are_counted() -> None:
    model = tiny_model()
    optimizer = make_optimizer(model, learning_rate=1e-4)
    assert all(weight is master for weight, master in master_weights(optimizer).items())
    weights = sum(p.numel() for p in model.parameters())
    assert optimizer_bytes(model.to(torch.bfloat16)) - optimizer_bytes(tiny_model()) == 4 * weights


def test_what_cannot_be_trained_is_refused_before_weights_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model().to(torch.float16).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    loaded: list[str] = []
    monkeypatch.setattr("art_trainer.training.run_setup.load_model", lambda *given: loaded.append("weights"))
    settings = merge_settings([Layer("flag", {"model": str(tmp_path), "device": "cpu"})])
    with pytest.raises(ConfigError, match=r"saved in float16.*set dtype=bfloat16"):
        prepare_policy(settings, lambda: [], checkpoint=None)
    tiny = tiny_model()
    tiny.config.quantization_config = {"quant_method": "awq", "bits": 4}
    tiny.config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"saved quantised \(awq\).*name the model it was made from"):
        prepare_policy(settings, lambda: [], checkpoint=None)
    assert not loaded
    with pytest.raises(UnsupportedModelError, match=r"float16.*use bfloat16"):
        Learner(tiny_model().to(torch.float16), config())


def test_float32_matrices_use_tensor_cores_on_gpus_but_not_to_compare_two_ways() -> None:
    before = torch.get_float32_matmul_precision()
    options: Any = SimpleNamespace(torch_device=torch.device("cuda"), lora=None, gradient_checkpointing=False)
    try:
        loading._with_options(nn.Linear(1, 1), options)
        assert torch.get_float32_matmul_precision() == "high"
        with loading.full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
