from typing import Any

import pytest
import torch

from art_trainer.loss_weights import token_weights

LOSS_TYPES: list[Any] = ["dapo", "grpo", "dr_grpo", "bnpo", "cispo"]


def test_loss_types_weigh_tokens_as_their_papers_say() -> None:
    # Two attempts of 1 and 3 tokens with losses 1 each and 2 each.
    lengths, losses = torch.tensor([1, 3]), torch.tensor([1.0, 2.0])

    def loss(loss_type: Any) -> float:
        return (token_weights(lengths, loss_type, max_length=10) * lengths * losses).sum().item()

    assert loss("grpo") == pytest.approx((1 / 1 + 6 / 3) / 2)
    assert loss("dr_grpo") == pytest.approx((1 + 6) / (2 * 10))
    for by_token in ("dapo", "bnpo", "cispo"):
        assert loss(by_token) == pytest.approx((1 + 6) / 4)


@pytest.mark.parametrize("loss_type", ["dapo", "cispo"])
def test_dapo_weighs_tokens_of_all_optimizer_steps_alike_and_bnpo_does_not(loss_type: Any) -> None:
    short, long = torch.tensor([1, 1]), torch.tensor([3, 3])
    assert token_weights(short, loss_type, batch_tokens=4).tolist() == [0.25, 0.25]
    assert token_weights(long, loss_type, batch_tokens=4).tolist() == [0.25, 0.25]
    assert token_weights(short, "bnpo", batch_tokens=4).tolist() == [0.5, 0.5]
    assert token_weights(long, "bnpo", batch_tokens=4).tolist() == pytest.approx([1 / 6, 1 / 6])


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_an_attempt_without_tokens_changes_no_other_attempts_weight(loss_type: Any) -> None:
    with_empty = token_weights(torch.tensor([2, 0, 4]), loss_type, max_length=8)
    without = token_weights(torch.tensor([2, 4]), loss_type, max_length=8)
    assert with_empty[[0, 2]].tolist() == without.tolist()
