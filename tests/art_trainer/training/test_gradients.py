"""Expected gradients, by enumeration, against those known in closed form.

The expectation of a loss's gradient over everything a group may play is a finite sum for a bandit and for a
chain of two moves. An estimator is unbiased where that sum is the gradient of the expected reward.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from art_trainer.algorithms.advantages import (
    gigpo_advantages,
    group_advantages,
    leave_one_out_advantages,
    turn_advantages,
)
from art_trainer.config import LossType
from tests.art_trainer.updates import padded_policy_loss

G = 3
REWARDS = (1.0, 0.0, 4.0)
HIGH = 5.0  # far from any ratio of a policy with itself

Play = tuple[Tensor, Sequence[float], Sequence[str]]
"""An attempt: the log-probs of its moves, its rewards and the states the moves were made in."""


def advantages(estimator: str, rewards: Any, states: Any, gamma: float, weight: float) -> list[Any]:
    if estimator == "reward_to_go":
        return turn_advantages(rewards, gamma)
    if estimator == "gigpo":
        return gigpo_advantages(rewards, states, gamma=gamma, step_weight=weight)
    by_attempt = leave_one_out_advantages if estimator == "leave_one_out" else group_advantages
    totals = by_attempt([sum(turns) for turns in rewards])
    return [np.full(len(turns), total) for turns, total in zip(rewards, totals, strict=True)]


def expected_gradient(
    logits: Tensor,
    plays: Sequence[Play],
    estimator: str,
    *,
    gamma: float = 1.0,
    step_weight: float = 1.0,
    **settings: Any,
) -> Tensor:
    """Minus the expected gradient of the loss of a group, over all groups of ``G`` plays."""
    total = torch.zeros((), dtype=torch.float64)
    for group in itertools.product(plays, repeat=G):
        moves, rewards, states = zip(*group, strict=True)
        by_turn = advantages(estimator, rewards, states, gamma, step_weight)
        logprobs = torch.stack(moves)
        loss = padded_policy_loss(
            logprobs,
            logprobs.detach(),
            torch.stack([torch.from_numpy(values) for values in by_turn]),
            torch.ones_like(logprobs),
            epsilon_high=HIGH,
            max_length=logprobs.shape[1],
            **settings,
        )
        total = total + logprobs.detach().sum().exp() * loss
    (gradient,) = torch.autograd.grad(-total, logits, retain_graph=True)
    return gradient


def true_gradient(
    logits: Tensor, plays: Sequence[Play], value: Callable[[Sequence[float]], float] = sum
) -> Tensor:
    """The gradient of the expected reward, by differentiating the expectation itself."""
    expected = torch.stack([moves.sum().exp() * value(rewards) for moves, rewards, _ in plays]).sum()
    (gradient,) = torch.autograd.grad(expected, logits, retain_graph=True)
    return gradient


def bandit() -> tuple[Tensor, list[Play]]:
    """Three arms."""
    logits = torch.tensor([0.2, 0.7, -0.4], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(0)
    return logits, [(logprobs[arm : arm + 1], [REWARDS[arm]], ["here"]) for arm in range(3)]


def chain() -> tuple[Tensor, list[Play]]:
    """Two moves: the first, from ``A``, pays 1 for going to ``B`` and 0 for ``C``; the second pays there."""
    logits = torch.tensor([[0.3, -0.5], [0.1, 0.6], [-0.2, 0.4]], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(1)
    second = {"B": (2.0, 0.0), "C": (0.0, 7.0)}
    plays: list[Play] = []
    for first, room in enumerate("BC"):
        for last in range(2):
            moves = torch.stack([logprobs[0, first], logprobs[1 + first, last]])
            plays.append((moves, [1.0 - first, second[room][last]], ["A", room]))
    return logits, plays


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", get_args(LossType))
def test_leave_one_out_is_unbiased_and_grpo_too_short_by_one_attempt(loss_type: str, level: str) -> None:
    settings = {"loss_type": loss_type, "importance_sampling_level": level}
    logits, plays = bandit()
    wanted = true_gradient(logits, plays)
    unbiased = expected_gradient(logits, plays, "leave_one_out", **settings)
    assert torch.allclose(unbiased, wanted, atol=1e-12)
    shorter = expected_gradient(logits, plays, "group", **settings)
    assert torch.allclose(shorter, wanted * (G - 1) / G, atol=1e-12)
    logits, plays = chain()
    found = expected_gradient(logits, plays, "leave_one_out")
    # A token-level loss is divided by the tokens: two moves an attempt.
    assert torch.allclose(2 * found, true_gradient(logits, plays), atol=1e-12)


@pytest.mark.parametrize("gamma", [1.0, 0.6])
def test_reward_to_go_has_the_gradient_of_each_turns_own_future(gamma: float) -> None:
    logits, plays = chain()
    found = 2 * expected_gradient(logits, plays, "reward_to_go", gamma=gamma)
    short = (G - 1) / G  # everybody plays both turns, so both baselines contain the attempt itself

    first = true_gradient(logits, plays, lambda rewards: rewards[0] + gamma * rewards[1])[0]
    later = true_gradient(logits, plays, lambda rewards: rewards[1])[1:]
    assert torch.allclose(found[0], short * first, atol=1e-12)
    assert torch.allclose(found[1:], short * later, atol=1e-12)


@pytest.mark.parametrize("omega", [1.0, 0.3])
def test_gigpo_adds_to_each_state_the_gradient_of_the_choice_made_there(omega: float) -> None:
    logits, plays = chain()
    whole = expected_gradient(logits, plays, "group")
    found = 2 * (expected_gradient(logits, plays, "gigpo", step_weight=omega) - whole)
    true = true_gradient(logits, plays)
    # All G attempts meet A: their step part is the attempt's own once more.
    assert torch.allclose(found[0], omega * (G - 1) / G * true[0], atol=1e-12)
    # Of G attempts n come to a room, and compare with n: (n - 1) / n of the gradient each, G of them counted.
    first = logits.detach().softmax(1)[0]
    for room in range(2):
        comes = first[room].item()
        choice = true[1 + room] / comes  # the gradient of what one gets who is there
        share = comes - (1 - (1 - comes) ** G) / G
        assert torch.allclose(found[1 + room], omega * share * choice, atol=1e-12)
