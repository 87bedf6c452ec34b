"""The policy loss of every algorithm, as small pure functions of tensors.

Which algorithm it is, is a choice of three: a ratio (:mod:`art_trainer.importance`), a surrogate (here) and
weights (:mod:`art_trainer.loss_weights`). Log-probabilities are natural logarithms. Shape letters: N tokens,
R sequences, T tokens of the longest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from art_trainer.config import ImportanceLevel, LossType
from art_trainer.importance import importance_ratio, token_gradients
from art_trainer.loss_weights import token_weights


def clipped_surrogate(
    ratio: Tensor,
    advantages: Tensor,
    epsilon: float = 0.2,
    epsilon_high: float = 0.28,
    delta: float | None = None,
) -> Tensor:
    r"""Return each token's clipped policy loss.

    .. math:: -\min(\min(\rho, \delta) A,\ \operatorname{clip}(\rho, 1-\epsilon, 1+\epsilon_{high}) A)

    PPO (arXiv:1707.06347, eq. 7) with the upper clip of its own of DAPO (arXiv:2503.14476, eq. 8) and the
    two-sided clipping of INTELLECT-2 (arXiv:2505.07291): without ``delta`` a bad token that became much
    likelier has a gradient without limit.

    Args:
        ratio: Probability ratios, any shape.
        advantages: Advantages, broadcastable to that shape.
        epsilon: The ratio is clipped below at ``1 - epsilon``.
        epsilon_high: The ratio is clipped above at ``1 + epsilon_high``.
        delta: Highest ratio that a bad token counts with; ``None`` for no limit.

    Returns:
        The loss of each token, same shape.
    """
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon_high)
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    return -torch.minimum(bounded * advantages, clipped * advantages)


def clipped_tokens(
    ratio: Tensor,
    advantages: Tensor,
    epsilon: float = 0.2,
    epsilon_high: float = 0.28,
    delta: float | None = None,
) -> Tensor:
    """Return for each token whether :func:`clipped_surrogate` took away its gradient; same arguments."""
    clipped = ((ratio < 1 - epsilon) & (advantages < 0)) | ((ratio > 1 + epsilon_high) & (advantages > 0))
    return clipped if delta is None else clipped | ((ratio > delta) & (advantages < 0))


def cispo_surrogate(ratio: Tensor, logprobs: Tensor, advantages: Tensor, epsilon_high: float) -> Tensor:
    r"""Return each token's CISPO loss: the weight is clipped, and no token loses its gradient.

    .. math:: -\operatorname{sg}[\min(\rho, \epsilon_{high})]\ A \log \pi_\theta

    CISPO (MiniMax-M1, arXiv:2506.13585, eq. 4 and 5, without the lower clip, which its authors do not use
    either), in TRL's parameters: the bound is ``epsilon_high`` itself, not one more.

    Args:
        ratio: Probability ratios; no gradient goes through them.
        logprobs: Log-probs under the weights being trained, same shape.
        advantages: Advantages, broadcastable to that shape.
        epsilon_high: Highest ratio a token is weighed with; 5 in ScaleRL (arXiv:2510.13786).
    """
    return -ratio.detach().clamp(max=epsilon_high) * advantages * logprobs


def surrogate(
    ratio: Tensor,
    logprobs: Tensor,
    advantages: Tensor,
    *,
    loss_type: LossType = "dapo",
    epsilon: float = 0.2,
    epsilon_high: float = 0.28,
    delta: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return each token's loss, and whether the clip changed its gradient.

    Args:
        ratio: As :func:`art_trainer.importance.importance_ratio` gives them.
        logprobs: Log-probs under the weights being trained.
        advantages: Advantages.
        loss_type: ``"cispo"`` for :func:`cispo_surrogate`, any other for :func:`clipped_surrogate`.
        epsilon: Lower clip.
        epsilon_high: Upper clip.
        delta: Bound on the other side.
    """
    if loss_type == "cispo":
        cut = (ratio.detach() > epsilon_high) & (advantages != 0)
        return cispo_surrogate(ratio, logprobs, advantages, epsilon_high), cut
    own = token_gradients(ratio, logprobs)
    cut = clipped_tokens(ratio.detach(), advantages, epsilon, epsilon_high, delta)
    return clipped_surrogate(own, advantages, epsilon, epsilon_high, delta), cut


def policy_loss(
    logprobs_RT: Tensor,
    old_logprobs_RT: Tensor,
    advantages: Tensor,
    mask_RT: Tensor,
    *,
    loss_type: LossType = "dapo",
    importance_sampling_level: ImportanceLevel = "token",
    epsilon: float = 0.2,
    epsilon_high: float = 0.28,
    delta: float | None = None,
    beta: float = 0.0,
    reference_logprobs_RT: Tensor | None = None,
    use_bias_correction_kl: bool = True,
    correction_RT: Tensor | None = None,
    max_length: int = 1,
) -> Tensor:
    """Return the whole loss of a batch, a scalar: the textbook form of what the learner computes.

    Args:
        logprobs_RT: Log-probs of T tokens in each of R sequences.
        old_logprobs_RT: Log-probs when sampled.
        advantages: One advantage a sequence, shape [R], or a token, shape [R, T].
        mask_RT: Which tokens the policy sampled; the others neither count nor get a gradient.
        loss_type: See :func:`surrogate` and :func:`art_trainer.loss_weights.token_weights`.
        importance_sampling_level: See :func:`art_trainer.importance.importance_ratio`.
        epsilon: Lower clip.
        epsilon_high: Upper clip.
        delta: Bound on the other side.
        beta: Weight of :func:`kl_k3` to the reference; above 0 the reference's log-probs are needed.
        reference_logprobs_RT: Log-probs under the reference.
        use_bias_correction_kl: Whether the divergence is multiplied by the ratio (DeepSeek-V3.2,
            arXiv:2512.02556), so that its gradient is the true one on old tokens too.
        correction_RT: Weights of :func:`art_trainer.importance.sampler_correction`, where used.
        max_length: The constant of ``dr_grpo``.
    """
    mask = mask_RT.bool()
    weights_R = token_weights(mask.sum(1), loss_type, max_length=max_length).to(logprobs_RT.dtype)
    advantages_RT = (advantages[:, None] if advantages.ndim == 1 else advantages).expand(mask.shape)
    sequences_N = mask.nonzero()[:, 0]
    # A masked log-prob may be anything, even not a number: only the sampled ones enter the arithmetic.
    logprobs, old = logprobs_RT[mask], old_logprobs_RT[mask]
    ratio = importance_ratio(logprobs, old, sequences_N, importance_sampling_level)
    losses, _ = surrogate(
        ratio,
        logprobs,
        advantages_RT[mask],
        loss_type=loss_type,
        epsilon=epsilon,
        epsilon_high=epsilon_high,
        delta=delta,
    )
    if correction_RT is not None:
        losses = losses * correction_RT[mask]
    if beta and reference_logprobs_RT is not None:
        divergence = kl_k3(logprobs, reference_logprobs_RT[mask])
        losses = losses + beta * (divergence * ratio if use_bias_correction_kl else divergence)
    return (losses * weights_R[sequences_N]).sum()


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
