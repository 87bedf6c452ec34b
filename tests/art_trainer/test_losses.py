import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.losses import clipped_surrogate, clipped_tokens, entropy, kl_k3, policy_loss, token_weights

LOSS_TYPES = ["dapo", "grpo", "dr_grpo", "bnpo"]


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
    new = torch.tensor([math.log(ratio) - 1.0])
    value = clipped_surrogate(new, torch.tensor([-1.0]), torch.tensor([advantage]), 0.2, 0.28)
    assert value.item() == pytest.approx(loss, rel=1e-6)


@given(st.floats(-3, 3), st.just(0.0) | st.floats(-2, -1e-3) | st.floats(1e-3, 2))
def test_a_token_counts_as_clipped_just_where_its_gradient_is_gone(
    difference: float, advantage: float
) -> None:
    new = torch.tensor([difference], dtype=torch.float64, requires_grad=True)
    old, weight = torch.zeros(1, dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    if min(abs(difference - math.log(0.8)), abs(difference - math.log(1.28))) < 1e-9:
        return  # at the corner either side is right
    clipped_surrogate(new, old, weight, 0.2, 0.28).sum().backward()
    assert new.grad is not None
    gone = advantage != 0 and new.grad.item() == 0
    assert clipped_tokens(new, old, weight, 0.2, 0.28).item() == gone


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_gradient_agrees_with_finite_differences(loss_type: str) -> None:
    generator = torch.Generator().manual_seed(0)
    new = (torch.randn(4, 6, generator=generator, dtype=torch.float64) * 0.5 - 1).requires_grad_()
    old = new.detach() + torch.randn(4, 6, generator=generator, dtype=torch.float64) * 0.3
    advantages = torch.randn(4, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, 6, generator=generator) < 0.7

    def loss(x: torch.Tensor) -> torch.Tensor:
        return policy_loss(x, old, advantages, mask, loss_type=loss_type, max_length=6)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(loss, new)


def test_loss_types_weigh_tokens_as_their_papers_say() -> None:
    # Two sequences of 1 and 3 tokens with losses 1 each and 2 each.
    logprobs = torch.zeros(2, 3)
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    advantages = torch.tensor([-1.0, -2.0])

    def loss(loss_type: str) -> float:
        return policy_loss(logprobs, logprobs, advantages, mask, loss_type=loss_type, max_length=10).item()  # type: ignore[arg-type]

    assert loss("grpo") == pytest.approx((1 / 1 + 6 / 3) / 2)
    assert loss("dapo") == pytest.approx((1 + 6) / 4)
    assert loss("bnpo") == pytest.approx((1 + 6) / 4)
    assert loss("dr_grpo") == pytest.approx((1 + 6) / (2 * 10))


def test_dapo_weighs_tokens_of_all_optimizer_steps_alike_and_bnpo_does_not() -> None:
    short, long = torch.tensor([1, 1]), torch.tensor([3, 3])
    assert token_weights(short, "dapo", batch_tokens=4).tolist() == [0.25, 0.25]
    assert token_weights(long, "dapo", batch_tokens=4).tolist() == [0.25, 0.25]
    assert token_weights(short, "bnpo").tolist() == [0.5, 0.5]
    assert token_weights(long, "bnpo").tolist() == pytest.approx([1 / 6, 1 / 6])


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_a_sequence_without_tokens_changes_no_other_sequences_weight(loss_type: str) -> None:
    with_empty = token_weights(torch.tensor([2, 0, 4]), loss_type, max_length=8)  # type: ignore[arg-type]
    without = token_weights(torch.tensor([2, 4]), loss_type, max_length=8)  # type: ignore[arg-type]
    assert with_empty[[0, 2]].tolist() == without.tolist()


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_masked_positions_have_no_gradient_even_where_they_are_not_numbers(loss_type: str) -> None:
    new = torch.tensor([[-1.0, float("nan"), -2.0]], requires_grad=True)
    old = torch.tensor([[-1.0, -1.0, float("-inf")]])
    mask = torch.tensor([[True, False, False]])
    loss = policy_loss(new, old, torch.tensor([1.0]), mask, loss_type=loss_type, max_length=3)  # type: ignore[arg-type]
    loss.backward()
    assert new.grad is not None
    assert torch.isfinite(loss)
    assert new.grad[0, 0] != 0
    assert new.grad[0, 1:].tolist() == [0, 0]


def test_zero_advantages_have_exactly_no_gradient() -> None:
    new = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    policy_loss(new, new.detach() + 0.1, torch.zeros(3), torch.ones(3, 4)).backward()
    assert new.grad is not None
    assert not new.grad.any()


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
