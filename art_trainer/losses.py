"""The GRPO loss, as small pure functions of tensors.

Shape letters: R sequences (or any leading shape), T tokens. Log-probabilities are natural logarithms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from art_trainer.config import LossType


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    epsilon: float = 0.2,
    epsilon_high: float = 0.28,
) -> Tensor:
    r"""Return each token's clipped policy loss.

    .. math:: -\min(\rho A,\ \operatorname{clip}(\rho, 1-\epsilon, 1+\epsilon_{high}) A),\quad
        \rho = \pi_\theta / \pi_{old}

    PPO (arXiv:1707.06347, eq. 7) with the upper clip of its own of DAPO (arXiv:2503.14476, eq. 8).

    Args:
        logprobs: Log-probs under the weights being trained, any shape.
        old_logprobs: Log-probs under the weights that sampled, same shape, no gradient.
        advantages: Advantages, broadcastable to that shape.
        epsilon: The ratio is clipped below at ``1 - epsilon``.
        epsilon_high: The ratio is clipped above at ``1 + epsilon_high``.

    Returns:
        The loss of each token, same shape.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def clipped_tokens(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    epsilon: float = 0.2,
    epsilon_high: float = 0.28,
) -> Tensor:
    """Return for each token whether the clip took away its gradient; same shapes as the surrogate."""
    ratio = torch.exp(logprobs - old_logprobs)
    return ((ratio < 1 - epsilon) & (advantages < 0)) | ((ratio > 1 + epsilon_high) & (advantages > 0))


def token_weights(
    lengths_R: Tensor, loss_type: LossType, *, max_length: int = 1, batch_tokens: float | None = None
) -> Tensor:
    r"""Return for each sequence the weight its tokens' losses have in the sum that is the batch's loss.

    ========= ============================ ==================================================================
    loss_type weight of a token of i       meaning
    ========= ============================ ==================================================================
    grpo      :math:`1 / (R |o_i|)`        mean per sequence, then over sequences (arXiv:2402.03300, eq. 3)
    dr_grpo   :math:`1 / (R\,L_{max})`     constant: no length bias (arXiv:2503.20783, section 3.2)
    bnpo      :math:`1 / \sum_j |o_j|`     mean over the tokens of this optimizer step
    dapo      :math:`1 / N`                N: an optimizer step's tokens on average over the rollout, so that
                                           all its tokens weigh the same (arXiv:2503.14476, eq. 8)
    ========= ============================ ==================================================================

    Args:
        lengths_R: Trained tokens of each of the R sequences of one optimizer step; a sequence may have 0.
        loss_type: One of the rows above.
        max_length: ``dr_grpo``'s constant, tokens.
        batch_tokens: ``dapo``'s N; ``None``: this step's own tokens, which makes it ``bnpo``.

    Returns:
        Weights, shape [R].
    """
    lengths = lengths_R.to(torch.float32)
    sequences = max(int((lengths_R > 0).sum()), 1)
    if loss_type == "grpo":
        return 1 / (sequences * lengths.clamp(min=1))
    if loss_type == "dr_grpo":
        return torch.full_like(lengths, 1 / (sequences * max_length))
    total = float(lengths.sum()) if loss_type == "bnpo" or batch_tokens is None else batch_tokens
    return torch.full_like(lengths, 1 / max(total, 1.0))


def policy_loss(
    logprobs_RT: Tensor,
    old_logprobs_RT: Tensor,
    advantages_R: Tensor,
    mask_RT: Tensor,
    *,
    loss_type: LossType = "dapo",
    epsilon: float = 0.2,
    epsilon_high: float = 0.28,
    max_length: int = 1,
) -> Tensor:
    """Return the clipped policy loss of a batch, a scalar.

    The learner computes the same from flat token lists with :func:`clipped_surrogate` and
    :func:`token_weights`; this is the textbook form.

    Args:
        logprobs_RT: Log-probs of T tokens in each of R sequences.
        old_logprobs_RT: Log-probs when sampled.
        advantages_R: One advantage a sequence.
        mask_RT: Which tokens the policy sampled; the others neither count nor get a gradient.
        loss_type: See :func:`token_weights`.
        epsilon: Lower clip.
        epsilon_high: Upper clip.
        max_length: The constant of ``dr_grpo``.
    """
    mask = mask_RT.bool()
    weights = token_weights(mask.sum(1), loss_type, max_length=max_length)[:, None]
    # A masked log-prob may be anything, even not a number: take it out before the arithmetic, not after.
    logprobs, old = logprobs_RT.masked_fill(~mask, 0), old_logprobs_RT.masked_fill(~mask, 0)
    losses = clipped_surrogate(logprobs, old, advantages_R[:, None], epsilon, epsilon_high)
    return (losses * weights * mask).sum()


def kl_k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    r"""Return each token's estimate of the KL divergence from the policy to the reference, in nats.

    .. math:: k_3 = e^{d} - d - 1,\quad d = \log\pi_{ref} - \log\pi_\theta

    Never negative, unbiased for tokens sampled from :math:`\pi_\theta`, and of low variance (GRPO,
    arXiv:2402.03300, eq. 4; Schulman, "Approximating KL divergence", 2020).
    """
    difference = reference_logprobs - logprobs
    # expm1 keeps the digits that exp(d) - 1 loses near d = 0, where most tokens are.
    return (torch.expm1(difference) - difference).clamp(min=0)


def entropy(logprobs_V: Tensor) -> Tensor:
    r"""Return the entropy :math:`-\sum_v p_v \log p_v` of log-probs over the last dimension, in nats."""
    return -(logprobs_V.exp() * logprobs_V).sum(-1)
