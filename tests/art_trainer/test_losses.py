import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.losses import (
    cispo_surrogate,
    clipped_surrogate,
    clipped_tokens,
    entropy,
    kl_k3,
    policy_loss,
    surrogate,
)

LOSS_TYPES: list[Any] = ["dapo", "grpo", "dr_grpo", "bnpo", "cispo"]
LEVELS: list[Any] = ["token", "sequence"]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),
        (1.2, 1.0, -1.2),
        (1.5, 1.0, -1.28),  # clipped above: no reason to go on
        (1.5, -1.0, 1.5),  # a bad token that became likelier is not clipped
        (0.5, 1.0, -0.5),  # a good token that became unlikelier is not clipped
        (0.5, -1.0, 0.8),  # clipped below
    ],
)
def test_surrogate_has_the_hand_computed_values(ratio: float, advantage: float, loss: float) -> None:
    value = clipped_surrogate(torch.tensor([ratio]), torch.tensor([advantage]), 0.2, 0.28)
    assert value.item() == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (9.0, -1.0, 4.0),  # a bad token counts with delta at most
        (3.0, -1.0, 3.0),
        (9.0, 1.0, -1.28),  # a good one is clipped long before
    ],
)
def test_delta_bounds_the_ratio_of_bad_tokens(ratio: float, advantage: float, loss: float) -> None:
    value = clipped_surrogate(torch.tensor([ratio]), torch.tensor([advantage]), 0.2, 0.28, delta=4.0)
    assert value.item() == pytest.approx(loss, rel=1e-6)


@given(
    st.floats(-3, 3),
    st.just(0.0) | st.floats(-2, -1e-3) | st.floats(1e-3, 2),
    st.sampled_from([None, 1.5, 4.0]),
)
def test_a_token_counts_as_clipped_just_where_its_gradient_is_gone(
    difference: float, advantage: float, delta: float | None
) -> None:
    ratio = torch.tensor([math.exp(difference)], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([advantage], dtype=torch.float64)
    if min(abs(ratio.item() - corner) for corner in (0.8, 1.28, delta or 0.8)) < 1e-9:
        return  # at the corner either side is right
    clipped_surrogate(ratio, weight, 0.2, 0.28, delta).sum().backward()
    assert ratio.grad is not None
    gone = advantage != 0 and ratio.grad.item() == 0
    assert clipped_tokens(ratio, weight, 0.2, 0.28, delta).item() == gone


@pytest.mark.parametrize(("ratio", "weight"), [(0.5, 0.5), (3.0, 3.0), (9.0, 5.0)])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_weighs_every_token_and_clips_only_its_weight(
    ratio: float, weight: float, advantage: float
) -> None:
    logprobs = torch.tensor([-1.5], requires_grad=True)
    loss = cispo_surrogate(torch.tensor([ratio]), logprobs, torch.tensor([advantage]), epsilon_high=5.0)
    assert loss.item() == pytest.approx(-weight * advantage * -1.5)
    loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(-weight * advantage)
    _, cut = surrogate(
        torch.tensor([ratio]), logprobs, torch.tensor([advantage]), loss_type="cispo", epsilon_high=5.0
    )
    assert cut.item() == (ratio > 5)


def made(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs, old ones, advantages and a mask of four ragged sequences, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    new = torch.randn(4, 6, generator=generator, dtype=torch.float64) * 0.5 - 1
    old = new + torch.randn(4, 6, generator=generator, dtype=torch.float64) * 0.3
    advantages = torch.randn(4, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, 6, generator=generator) < 0.7
    mask[:, 0] = True
    return new.requires_grad_(), old, advantages, mask


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "bnpo"])
def test_gradients_agree_with_finite_differences(loss_type: Any, beta: float, level: Any) -> None:
    new, old, advantages, mask = made()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return policy_loss(
            x,
            old,
            advantages,
            mask,
            loss_type=loss_type,
            importance_sampling_level=level,
            epsilon=0.1,
            epsilon_high=0.15,
            delta=1.3,
            beta=beta,
            reference_logprobs_RT=1.1 * old,
            max_length=6,
        )

    assert torch.autograd.gradcheck(loss, new)


@pytest.mark.parametrize("level", LEVELS)
def test_cispos_gradient_agrees_with_finite_differences_of_its_weighed_log_likelihood(level: Any) -> None:
    new, old, advantages, mask = made()
    difference = (new.detach() - old) * mask
    if level == "sequence":
        difference = (difference.sum(1, keepdim=True) / mask.sum(1, keepdim=True)).expand(-1, 6)
    weights = difference.exp().clamp(max=1.1) * mask / mask.sum()

    def likelihood(x: torch.Tensor) -> torch.Tensor:
        return -(weights * advantages[:, None] * x).sum()

    loss = policy_loss(
        new, old, advantages, mask, loss_type="cispo", importance_sampling_level=level, epsilon_high=1.1
    )
    assert loss.item() == pytest.approx(likelihood(new).item(), abs=1e-12)
    assert torch.autograd.gradcheck(likelihood, new)
    (wanted,) = torch.autograd.grad(likelihood(new), new)
    (found,) = torch.autograd.grad(loss, new)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-12)


def test_with_one_advantage_a_turn_a_sequences_ratio_still_credits_each_turn_alone() -> None:
    new = torch.full((1, 4), -1.0, requires_grad=True)
    advantages = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    policy_loss(
        new, new.detach(), advantages, torch.ones(1, 4), importance_sampling_level="sequence"
    ).backward()
    assert new.grad is not None
    assert new.grad[0].tolist() == pytest.approx([-0.25, -0.25, 0.0, 0.0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_masked_positions_have_no_gradient_even_where_they_are_not_numbers(
    loss_type: Any, level: Any
) -> None:
    new = torch.tensor([[-1.0, float("nan"), -2.0]], requires_grad=True)
    old = torch.tensor([[-1.0, -1.0, float("-inf")]])
    mask = torch.tensor([[True, False, False]])
    loss = policy_loss(
        new,
        old,
        torch.tensor([1.0]),
        mask,
        loss_type=loss_type,
        importance_sampling_level=level,
        max_length=3,
    )
    loss.backward()
    assert new.grad is not None
    assert torch.isfinite(loss)
    assert new.grad[0, 0] != 0
    assert new.grad[0, 1:].tolist() == [0, 0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_zero_advantages_have_exactly_no_gradient(loss_type: Any, level: Any) -> None:
    new, old, _, mask = made(1)
    loss = policy_loss(new, old, torch.zeros(4), mask, loss_type=loss_type, importance_sampling_level=level)
    loss.backward()
    assert new.grad is not None
    assert not new.grad.any()


def test_a_correction_multiplies_the_policys_part_and_not_the_divergence() -> None:
    new, old, advantages, mask = made(2)

    def loss(beta: float, correction: torch.Tensor | None) -> float:
        return policy_loss(
            new, old, advantages, mask, beta=beta, reference_logprobs_RT=1.2 * old, correction_RT=correction
        ).item()

    half = torch.full((4, 6), 0.5, dtype=torch.float64)
    divergence = loss(1.0, None) - loss(0.0, None)
    assert loss(0.0, half) == pytest.approx(loss(0.0, None) / 2)
    assert loss(1.0, half) == pytest.approx(loss(0.0, None) / 2 + divergence)


def test_bias_correction_gives_the_divergence_its_true_gradient() -> None:
    # For tokens drawn from the policy itself the expected gradient is that of KL(policy || reference).
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64).log()

    def expected(use_bias_correction_kl: bool) -> torch.Tensor:
        logprobs = logits.log_softmax(0)
        drawn = logprobs.detach().exp()
        terms = [
            p
            * policy_loss(
                logprob[None, None],
                logprob.detach()[None, None],
                torch.zeros(1, dtype=torch.float64),
                torch.ones(1, 1),
                beta=1.0,
                reference_logprobs_RT=other[None, None],
                use_bias_correction_kl=use_bias_correction_kl,
            )
            for p, logprob, other in zip(drawn, logprobs, reference, strict=True)
        ]
        return torch.autograd.grad(torch.stack(terms).sum(), logits)[0]

    logprobs = logits.log_softmax(0)
    (wanted,) = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits)
    assert torch.allclose(expected(True), wanted, atol=1e-12)
    assert not torch.allclose(expected(False), wanted, atol=1e-3)


@given(st.floats(-20, 0), st.floats(-20, 0))
def test_k3_is_never_negative(new: float, reference: float) -> None:
    assert kl_k3(torch.tensor(new), torch.tensor(reference)).item() >= 0


def test_k3_is_an_unbiased_estimate_of_the_divergence() -> None:
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    expected = (policy * (policy / reference).log()).sum()
    estimate = (policy * kl_k3(policy.log(), reference.log())).sum()
    assert estimate.item() == pytest.approx(expected.item(), rel=1e-5)


def test_k3_has_the_hand_computed_gradient() -> None:
    # d/dx (e^(r-x) - (r-x) - 1) = 1 - e^(r-x)
    new = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    kl_k3(new, torch.tensor(-1.5, dtype=torch.float64)).backward()
    assert new.grad is not None
    assert new.grad.item() == pytest.approx(1 - math.exp(-0.5))


def test_k3_keeps_its_digits_for_tiny_differences() -> None:
    value = kl_k3(torch.tensor(-1.0, dtype=torch.float64), torch.tensor(-1.0 + 1e-6, dtype=torch.float64))
    assert value.item() == pytest.approx(0.5e-12, rel=1e-3)


def test_entropy_is_that_of_known_distributions() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [100.0, 0.0, 0.0, 0.0]])
    assert entropy(logits.log_softmax(-1)).tolist() == pytest.approx([math.log(4), 0.0], abs=1e-6)
