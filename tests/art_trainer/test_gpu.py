"""What only a GPU can show: its kernels and graphs compute what the plain ways compute, twice the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from art_trainer.config import GRPOConfig
from art_trainer.inference import slot_decoder
from art_trainer.inference.cache_attention import FlashRows
from art_trainer.inference.transformers_policy import BATCH_LIMITS, TransformersPolicy
from art_trainer.models import fused_linear, tree_attention
from art_trainer.models.fused_layers import use_fused_layers
from art_trainer.models.loading import add_lora_adapter
from art_trainer.models.logprobs import Scorer
from art_trainer.models.packing import pack
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer.inference.test_transformers_policy import TOKENIZER, VOCABULARY, make_policy, played
from tests.art_trainer.models.test_prefix_tree import random_rows
from tests.art_trainer.tiny_models import EchoEnv, largest_error, tiny_model

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: `pytest tests/art_trainer/test_gpu.py` where one is"
)
BF16, F32 = torch.bfloat16, torch.float32


def on_gpu(family: str, dtype: torch.dtype, **sizes: Any) -> Any:
    return tiny_model(family, hidden=64, **sizes).to("cuda", dtype)


def gradients(model: Any, rows: Any, *, share: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs by row, and the gradient of their weighted sum."""
    scorer = Scorer(model)
    assert scorer.shares_prefixes
    model.zero_grad()
    found: dict[int, torch.Tensor] = {}
    for batch in pack(rows, 10_000, share=share, device=scorer.device):
        logprobs, _ = scorer.score(batch)
        (logprobs * batch.advantages_N * batch.weights_N).sum().backward()
        parts = logprobs.detach().split([row.targets.size for row in batch.rows])
        found.update(zip(map(id, batch.rows), parts, strict=True))
    gradient = torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])
    return torch.cat([found[id(row)] for row in rows]).float(), gradient


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("large", [8, 4096])
def test_a_tree_gives_the_gradients_of_one_row_an_attempt(
    family: str, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_attention, "_LARGE", large)
    rows = random_rows(np.random.default_rng(1), groups=4, size=9)
    exact = gradients(on_gpu(family, torch.float64), rows, share=False)
    errors = {}
    for dtype in (F32, BF16):
        for share in (False, True):
            found = gradients(on_gpu(family, dtype), rows, share=share)
            pairs = zip(found, exact, strict=True)
            errors[dtype, share] = [float((x - y).norm() / y.norm()) for x, y in pairs]
    assert max(errors[F32, True]) < 1e-5
    for tree, rows_apart in zip(errors[BF16, True], errors[BF16, False], strict=True):
        assert tree < max(1.3 * rows_apart, 1e-2)


@pytest.mark.parametrize("family", ["qwen2", "lora"])
@pytest.mark.parametrize("share_from", [1, 10**9])
def test_the_sampler_and_the_learner_agree(
    family: str, share_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_decoder, "_SHARE_FROM", share_from)
    model = on_gpu("qwen2", BF16, vocab_size=VOCABULARY)
    model = add_lora_adapter(model, 4) if family == "lora" else model
    policy = make_policy(model=model)
    assert policy._decoder._attention is FlashRows
    for _ in range(2):  # the first time the tables grow, and steps are recorded anew
        recorded = played(policy)
    graphs = policy._decoder._graphs
    assert graphs._works
    assert graphs._recorded
    # Two attention kernels are compared, so twice what a batch may change: 0.055 on an H100.
    assert largest_error(model, recorded, 1.0) < 2 * BATCH_LIMITS[BF16]
    graphs._works = False
    one_by_one = played(policy)
    assert [e.histories for e in one_by_one] == [e.histories for e in recorded]


@pytest.mark.parametrize(("dtype", "tolerance"), [(F32, 1e-6), (BF16, 0.01)])
def test_fused_norms_differ_by_their_rounding(dtype: torch.dtype, tolerance: float) -> None:
    hidden = torch.randn(64, 896, device="cuda", dtype=dtype, requires_grad=True)
    direction = torch.randn(64, 896, device="cuda")
    plain, fused = (LlamaRMSNorm(896).to("cuda", dtype) for _ in range(2))
    use_fused_layers(fused)
    results = [norm(hidden).float() for norm in (plain, fused)]
    slopes = [torch.autograd.grad((result * direction).sum(), hidden)[0].float() for result in results]
    for mine, theirs in (results, slopes):
        assert (mine - theirs).norm() < tolerance * theirs.norm()


@pytest.mark.parametrize(("dtype", "tolerance"), [(F32, 1e-5), (BF16, 0.01)])
def test_the_kernels_of_a_gate_compute_what_autograd_does(dtype: torch.dtype, tolerance: float) -> None:
    gate, x, gradient = (torch.randn(300, 4864, device="cuda", dtype=dtype) for _ in range(3))
    exact = gate.double().requires_grad_(), x.double().requires_grad_()
    product = functional.silu(exact[0]) * exact[1]
    product.backward(gradient.double())
    wanted = product, exact[0].grad, exact[1].grad, product
    found = fused_linear._gated(gate, x), *fused_linear._gated_backward(gate, x, gradient)
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine - theirs).norm() < tolerance * theirs.norm()


def trained(folder: Path, dtype: torch.dtype) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    torch.manual_seed(0)
    model = on_gpu("qwen2", dtype, vocab_size=VOCABULARY)
    policy = TransformersPolicy(add_lora_adapter(model, 4), TOKENIZER)
    config = GRPOConfig(
        output_dir=str(folder), max_completion_length=12, groups_per_step=4, num_generations=4, max_steps=4,
        learning_rate=1e-3, drop_zero_variance_groups=False,
    )  # fmt: skip
    trainer = GRPOTrainer(policy, lambda: EchoEnv(3), config)
    metrics = [trainer.update_policy(trainer.collect_episodes()) for _ in range(4)]
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()]), metrics


@pytest.mark.parametrize(("dtype", "error"), [(BF16, 0.0), (F32, 1e-5)])
def test_the_same_seed_gives_the_same_weights(dtype: torch.dtype, error: float, tmp_path: Path) -> None:
    """In float32 up to rounding: there PyTorch's own attention adds gradients in any order."""
    (first, metrics), (second, _) = (trained(tmp_path / name, dtype) for name in "ab")
    assert (first - second).abs().max() <= error
    assert all(abs(step["kl"]) < 1e-3 for step in metrics), metrics
