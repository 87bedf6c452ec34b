import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.importance import importance_ratio, sampler_correction, sequence_sums, token_gradients

MODES: list[Any] = ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def test_sums_are_those_of_each_sequence_in_any_order() -> None:
    sums = sequence_sums(torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([1, 0, 1, 3]))
    assert sums.tolist() == [5.0, 2.0, 5.0, 8.0]
    assert sequence_sums(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).tolist() == []


def test_ratios_are_a_tokens_or_the_geometric_mean_of_its_sequence() -> None:
    new, old = torch.tensor([2.0, 8.0, 3.0]).log(), torch.zeros(3)
    sequences = torch.tensor([0, 0, 1])
    assert importance_ratio(new, old, sequences, "token").tolist() == pytest.approx([2, 8, 3])
    assert importance_ratio(new, old, sequences, "sequence").tolist() == pytest.approx([4, 4, 3])


def test_ratios_keep_their_values_when_each_token_gets_its_own_gradient() -> None:
    new = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64, requires_grad=True)
    ratio = importance_ratio(new, torch.zeros(3, dtype=torch.float64), torch.tensor([0, 0, 1]), "sequence")
    own = token_gradients(ratio, new)
    assert torch.equal(own.detach(), ratio.detach())
    (found,) = torch.autograd.grad(own[0], new, retain_graph=True)
    assert found.tolist() == pytest.approx([ratio[0].item(), 0, 0])
    (of_the_mean,) = torch.autograd.grad(ratio[0], new)
    assert of_the_mean.tolist() == pytest.approx([ratio[0].item() / 2, ratio[0].item() / 2, 0])


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8))
def test_on_the_policy_that_sampled_every_ratio_and_every_correction_is_one(values: list[float]) -> None:
    logprobs, sequences = torch.tensor(values), torch.arange(len(values)) // 2
    assert importance_ratio(logprobs, logprobs, sequences, "token").tolist() == [1.0] * len(values)
    assert importance_ratio(logprobs, logprobs, sequences, "sequence").tolist() == [1.0] * len(values)
    for mode in MODES:
        assert sampler_correction(logprobs, logprobs, sequences, mode=mode).tolist() == [1.0] * len(values)


@pytest.mark.parametrize(
    ("mode", "weights"),
    [
        ("token_truncate", [2.0, 3.0, 1.0, 0.5]),
        ("token_mask", [2.0, 0.0, 1.0, 0.0]),
        ("sequence_truncate", [3.0, 3.0, 0.5, 0.5]),
        ("sequence_mask", [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_corrections_are_bounded_as_their_mode_says(mode: Any, weights: list[float]) -> None:
    learner = torch.tensor([2.0, 4.0, 1.0, 0.25]).log()
    sequences = torch.tensor([0, 0, 1, 1])
    found = sampler_correction(learner, torch.zeros(4), sequences, mode=mode, clip_max=3.0, clip_min=0.5)
    assert found.tolist() == pytest.approx(weights)


@pytest.mark.parametrize("mode", MODES)
def test_without_bounds_a_correction_is_the_plain_ratio(mode: Any) -> None:
    learner, sequences = torch.tensor([2.0, 8.0]).log(), torch.tensor([0, 1])
    found = sampler_correction(learner, torch.zeros(2), sequences, mode=mode, clip_max=None)
    assert found.tolist() == pytest.approx([2.0, 8.0])


@pytest.mark.parametrize("mode", MODES)
def test_a_token_without_a_reported_logprob_is_not_corrected(mode: Any) -> None:
    learner, sampler = torch.tensor([-1.0, -2.0]), torch.tensor([math.nan, -2.0])
    assert sampler_correction(learner, sampler, torch.tensor([0, 0]), mode=mode).tolist() == [1.0, 1.0]


def test_an_unbounded_correction_makes_expectations_those_of_the_learner() -> None:
    sampler = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    learner = torch.tensor([0.5, 0.4, 0.1], dtype=torch.float64)
    values = torch.tensor([1.0, -2.0, 5.0], dtype=torch.float64)
    weights = sampler_correction(
        learner.log(), sampler.log(), torch.arange(3), mode="token_truncate", clip_max=None
    )
    assert (sampler * weights * values).sum().item() == pytest.approx((learner * values).sum().item())
