from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.models.value_head import DECAY, MIN_STD, ValueHead, explained_variance, value_loss

batches = st.lists(st.lists(st.floats(-1000, 1000), min_size=1, max_size=9), min_size=2, max_size=5)


def trained_head(size: int = 6, seed: int = 0) -> ValueHead:
    """A head with weights that are not zero, which has seen one batch."""
    head = ValueHead(size)
    head.observe(np.array([1.0, 2.0, 6.0]))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.copy_(torch.randn(size, generator=generator))
        head.bias.fill_(0.3)
    return head


def says(head: ValueHead, hidden: torch.Tensor) -> np.ndarray:
    return head.unscaled(head(hidden).detach().double().numpy())


@given(batches)
def test_later_returns_move_the_scale_and_not_what_the_head_says(returns: list[list[float]]) -> None:
    head = trained_head()
    hidden = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    before = says(head, hidden)
    for batch in returns:
        # Spreads of real rewards: shrinking by a million at once would leave float32 nothing to say.
        head.observe(np.array([*batch, -1.0, 1.0]))
    assert says(head, hidden) == pytest.approx(before, rel=1e-3, abs=1e-3)


def test_a_head_begins_with_the_mean_and_its_running_numbers_forget() -> None:
    head = ValueHead(4)
    assert says(head, torch.ones(2, 4)).tolist() == [0.0, 0.0]
    head.observe(np.array([0.0, 2.0]))
    assert says(head, torch.ones(2, 4)) == pytest.approx([1.0, 1.0])
    assert (float(head.mean), head.std) == (1.0, 1.0)
    head.observe(np.array([11.0, 11.0]))
    assert float(head.mean) == pytest.approx(DECAY * 1 + (1 - DECAY) * 11)
    square = DECAY * 2 + (1 - DECAY) * 121
    assert head.std == pytest.approx((square - float(head.mean) ** 2) ** 0.5)
    head.observe(np.zeros(0))
    assert float(head.batches) == 2
    equal = ValueHead(1)
    equal.observe(np.array([5.0, 5.0]))
    assert equal.std == MIN_STD
    assert equal.scaled(np.array([5.0])).tolist() == [0.0]


@given(st.lists(st.floats(-1000, 1000), min_size=1, max_size=9))
def test_scaling_and_its_inverse_undo_each_other(values: list[float]) -> None:
    head = trained_head()
    assert head.unscaled(head.scaled(np.array(values))) == pytest.approx(values, abs=1e-9)


def test_hidden_states_of_low_precision_give_float32_values() -> None:
    head = trained_head()
    hidden = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(1))
    values = head(hidden.bfloat16())
    torch.testing.assert_close(values, head(hidden), atol=0.1, rtol=0)


def test_the_gradient_of_the_loss_is_its_finite_difference() -> None:
    generator = torch.Generator().manual_seed(0)
    values, old, returns = (torch.randn(40, generator=generator, dtype=torch.float64) for _ in range(3))
    values.requires_grad_()
    for clip in (None, 0.3):
        (gradient,) = torch.autograd.grad(value_loss(values, old, returns, clip)[0].sum(), values)
        step = 1e-6
        up, down = (value_loss(values.detach() + d, old, returns, clip)[0] for d in (step, -step))
        assert torch.allclose(gradient, (up - down) / (2 * step), atol=1e-6)


@pytest.mark.parametrize(
    ("value", "old", "wanted", "loss", "moves"),
    [
        (0.1, 0.0, 1.0, 0.5 * 0.9**2, True),  # within the range
        (0.5, 0.0, 1.0, 0.5 * 0.8**2, False),  # moved far enough towards the return
        (-0.5, 0.0, 1.0, 0.5 * 1.5**2, True),  # moved away from it: it may come back
        (0.5, 0.0, 0.1, 0.5 * 0.4**2, True),  # moved past it
    ],
)
def test_the_clip_holds_values_that_moved_enough_and_no_others(
    value: float, old: float, wanted: float, loss: float, moves: bool
) -> None:
    values = torch.tensor([value], requires_grad=True)
    plain, never = value_loss(values, torch.tensor([old]), torch.tensor([wanted]))
    assert (plain.item(), never.item()) == (pytest.approx(0.5 * (value - wanted) ** 2), False)
    losses, clipped = value_loss(values, torch.tensor([old]), torch.tensor([wanted]), 0.2)
    assert losses.item() == pytest.approx(loss)
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    assert (gradient.item() != 0) == moves
    assert clipped.item() != moves


def test_explained_variance_is_one_for_the_truth_and_zero_for_a_constant() -> None:
    returns = np.array([1.0, 2.0, 4.0])
    for values, wanted in ((returns + 7, 1.0), (np.full(3, 2.0), 0.0), (-returns, -3.0)):
        assert explained_variance(values, returns) == pytest.approx(wanted)
    assert explained_variance(np.zeros(2), np.ones(2)) == explained_variance(np.zeros(0), np.zeros(0)) == 0.0
