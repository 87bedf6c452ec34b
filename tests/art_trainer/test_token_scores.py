import pytest
import torch

from art_trainer.losses import entropy
from art_trainer.token_scores import token_scores

PREDICTORS = torch.tensor([0, 0, 3, 2, 0])
TARGETS = torch.tensor([4, 1, 6, 0, 4])


def made_logits() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 7, generator=generator, dtype=torch.float64, requires_grad=True)


def test_they_are_those_of_the_log_softmax() -> None:
    logits = made_logits()
    logprobs, spread = token_scores(logits, PREDICTORS, TARGETS)
    wanted = logits.log_softmax(-1)
    assert torch.allclose(logprobs, wanted[PREDICTORS, TARGETS], atol=1e-12)
    assert torch.allclose(spread, entropy(wanted), atol=1e-12)


@pytest.mark.parametrize("which", [(1.0, 0.0), (0.0, 1.0), (0.7, -0.3)])
def test_their_gradients_are_those_of_autograd(which: tuple[float, float]) -> None:
    def gradient(own: bool) -> torch.Tensor:
        logits = made_logits()
        logprobs, spread = token_scores(logits, PREDICTORS, TARGETS)
        if not own:
            every = logits.log_softmax(-1)
            logprobs, spread = every[PREDICTORS, TARGETS], entropy(every)
        parts = [(logprobs, which[0]), (spread, which[1])]
        factors = [torch.arange(1.0, 6.0, dtype=torch.float64) * weight for _, weight in parts]
        used = [(x, f) for (x, weight), f in zip(parts, factors, strict=True) if weight]
        torch.autograd.backward([x for x, _ in used], [f for _, f in used])
        assert logits.grad is not None
        return logits.grad

    assert (gradient(own=True) - gradient(own=False)).abs().max() < 1e-12


def test_a_probability_of_nothing_has_no_gradient() -> None:
    logits = torch.tensor([[0.0, 200.0, -200.0]], requires_grad=True)
    logprobs, spread = token_scores(logits, torch.tensor([0]), torch.tensor([1]))
    (logprobs.sum() + spread.sum()).backward()
    assert logprobs.tolist() == [0.0]
    assert spread.tolist() == [0.0]
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0
