r"""Log-probs of tokens and the entropies of their distributions, straight from the logits.

Between forward and backward only the probabilities are kept, and the gradient is written in one pass over
them: with a large vocabulary the logits are the largest tensors of all. For a token :math:`y` predicted at a
position with logits :math:`z`, probabilities :math:`p` and entropy :math:`H`,

.. math:: \frac{\partial \log p_y}{\partial z_v} = [v = y] - p_v,\qquad
    \frac{\partial H}{\partial z_v} = -p_v (\log p_v + H)

Shape letters: U positions, V the vocabulary, N tokens, of which several may be predicted at one position.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def token_scores(logits_UV: Tensor, predictors_N: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return each token's log-prob, [N], and each position's entropy, [U], in nats.

    Args:
        logits_UV: Logits, float32 or more.
        predictors_N: The position that predicts each token.
        targets_N: The tokens.
    """
    scores: tuple[Tensor, Tensor] = _TokenScores.apply(logits_UV, predictors_N, targets_N)  # type: ignore[no-untyped-call]
    return scores


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, predictors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = logits.log_softmax(-1)
        picked = logprobs[predictors, targets]
        probabilities = logprobs.exp()
        entropies = -torch.linalg.vecdot(probabilities, logprobs)
        ctx.save_for_backward(probabilities, entropies, predictors, targets)
        ctx.set_materialize_grads(False)
        return picked, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, picked: Tensor | None, spread: Tensor | None) -> tuple[Tensor, None, None]:
        probabilities, entropies, predictors, targets = ctx.saved_tensors
        weights = probabilities.new_zeros(len(probabilities))
        if picked is not None:
            weights.index_add_(0, predictors, picked, alpha=-1)
        if spread is not None:
            weights -= spread * entropies
        gradient = probabilities * weights[:, None]
        if spread is not None:
            gradient.addcmul_(torch.special.entr(probabilities), spread[:, None])
        if picked is not None:
            gradient.index_put_((predictors, targets), picked, accumulate=True)
        return gradient, None, None
