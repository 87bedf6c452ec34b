import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.algorithms.losses import (
    cispo_surrogate,
    clipped_surrogate,
    importance_ratio,
    kl_k3,
    sampler_correction,
    surrogate,
    token_gradients,
    token_weights,
)
from art_trainer.config import CorrectionMode, LossType
from tests.art_trainer.updates import padded_policy_loss

LEVELS: list[Any] = ["token", "sequence"]


@given(
    st.floats(-3, 3),
    st.just(0.0) | st.floats(-2, -1e-3) | st.floats(1e-3, 2),
    st.sampled_from([None, 1.5, 4.0]),
)
def test_a_token_counts_as_clipped_if_its_gradient_is_gone(
    difference: float, advantage: float, delta: float | None
) -> None:
    ratio = torch.tensor([math.exp(difference)], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([advantage], dtype=torch.float64)
    if min(abs(ratio.item() - corner) for corner in (0.8, 1.28, delta or 0.8)) < 1e-9:
        return  # at the corner either side is right
    clipped_surrogate(ratio, weight, 0.2, 0.28, delta).sum().backward()
    gone = advantage != 0 and ratio.grad.item() == 0
    assert surrogate(ratio, ratio.log(), weight, delta=delta)[1].item() == gone


@pytest.mark.parametrize(("ratio", "weight"), [(0.5, 0.5), (3.0, 3.0), (9.0, 5.0)])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_weighs_every_token_and_clips_only_its_weight(
    ratio: float, weight: float, advantage: float
) -> None:
    logprobs = torch.tensor([-1.5], requires_grad=True)
    given = torch.tensor([ratio]), logprobs, torch.tensor([advantage])
    loss = cispo_surrogate(*given, epsilon_high=5.0)
    assert loss.item() == pytest.approx(-weight * advantage * -1.5)
    loss.sum().backward()
    assert logprobs.grad.item() == pytest.approx(-weight * advantage)
    assert surrogate(*given, loss_type="cispo", epsilon_high=5.0)[1].item() == (ratio > 5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "bnpo"])
def test_gradients_agree_with_finite_differences(loss_type: Any, beta: float, level: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    new, old, advantages = (torch.randn(4, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    new, advantages = 0.5 * new - 1, advantages[:, 0]
    old = new + 0.3 * old
    mask = torch.rand(4, 6, generator=generator) < 0.7
    mask[:, 0] = True
    settings = {"loss_type": loss_type, "importance_sampling_level": level, "beta": beta, "delta": 1.3}

    def loss(x: torch.Tensor) -> torch.Tensor:
        clips = {"epsilon": 0.1, "epsilon_high": 0.15, "max_length": 6}
        return padded_policy_loss(
            x, old, advantages, mask, reference_logprobs_RT=1.1 * old, **settings, **clips
        )

    assert torch.autograd.gradcheck(loss, new.requires_grad_())


def test_k3_keeps_its_digits_for_tiny_differences() -> None:
    value = kl_k3(torch.tensor(-1.0, dtype=torch.float64), torch.tensor(-1.0 + 1e-6, dtype=torch.float64))
    assert value.item() == pytest.approx(0.5e-12, rel=1e-3)


def test_ratios_are_a_tokens_or_the_geometric_mean_of_its_sequence() -> None:
    new = torch.tensor([2.0, 8.0, 3.0], dtype=torch.float64).log().requires_grad_()
    ratios = {
        level: importance_ratio(new, torch.zeros(3).double(), torch.tensor([0, 0, 1]), level)
        for level in LEVELS
    }
    assert ratios["token"].tolist() == pytest.approx([2, 8, 3])
    assert ratios["sequence"].tolist() == pytest.approx([4, 4, 3])
    own = token_gradients(ratios["sequence"], new)
    assert torch.equal(own.detach(), ratios["sequence"].detach())
    assert torch.autograd.grad(own[0], new)[0].tolist() == pytest.approx([4, 0, 0])
    assert torch.autograd.grad(ratios["sequence"][0], new)[0].tolist() == pytest.approx([2, 2, 0])


@pytest.mark.parametrize("mode", get_args(CorrectionMode))
def test_a_token_without_a_reported_logprob_is_not_corrected(mode: Any) -> None:
    learner, sampler = torch.tensor([-1.0, -2.0]), torch.tensor([math.nan, -2.0])
    assert sampler_correction(learner, sampler, torch.tensor([0, 0]), mode=mode).tolist() == [1.0, 1.0]


def test_loss_types_weigh_tokens_as_their_papers_say() -> None:
    # Two attempts of 1 and 3 tokens, and one without.
    weights: dict[str, list[float]] = {
        loss_type: token_weights(torch.tensor([1, 0, 3]), loss_type, max_length=10)[[0, 2]].tolist()
        for loss_type in get_args(LossType)
    }
    assert weights["grpo"] == pytest.approx([1 / 2, 1 / 6])
    assert weights["dr_grpo"] == pytest.approx([1 / 20, 1 / 20])
    for by_token in ("dapo", "bnpo", "cispo"):
        assert weights[by_token] == [1 / 4, 1 / 4]
    # dapo and cispo weigh the tokens of all optimizer steps of a batch alike, bnpo does not.
    lengths = torch.tensor([3, 3])
    for loss_type in ("dapo", "cispo"):
        assert token_weights(lengths, loss_type, batch_tokens=4).tolist() == [0.25, 0.25]  # type: ignore[arg-type]
    assert token_weights(lengths, "bnpo", batch_tokens=4).tolist() == pytest.approx([1 / 6, 1 / 6])
