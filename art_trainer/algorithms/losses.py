"""Policy gradient losses: GRPO, Dr. GRPO, BNPO, DAPO, CISPO and GSPO as small pure functions of tensors.

An algorithm is a choice of three functions: a probability ratio (:func:`importance_ratio`), a surrogate
(:func:`surrogate`) and token weights (:func:`token_weights`). :func:`policy_loss` composes them; it is what
the learner trains with.

Tokens come as flat lists with the number of their sequence beside them. A sequence is one uninterrupted token
history: the whole episode, unless the chat template or a history window cuts it into several. Log-probs are
natural logarithms. Shape letters: N sampled tokens of all sequences together, R attempts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from art_trainer.config import CorrectionMode, GRPOConfig, ImportanceLevel, LossType


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of a batch and the parts that metrics show."""

    loss: Tensor
    """Scalar with gradient: the policy's part plus ``beta`` times the divergence."""
    policy: Tensor
    """The policy's part alone, a scalar without gradient."""
    ratio_N: Tensor
    """Probability ratios, without gradient."""
    clipped_N: Tensor
    """Whether the clip removed or changed a token's gradient."""
    kl_N: Tensor | None
    """Divergence to the reference, without gradient; ``None`` without a reference."""


def policy_loss(
    config: GRPOConfig,
    *,
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    weights_N: Tensor,
    sequences_N: Tensor,
    reference_logprobs_N: Tensor | None = None,
    corrections_N: Tensor | None = None,
) -> PolicyLoss:
    r"""Return the loss of a batch and its parts.

    .. math:: L = \sum_t w_t (c_t \ell(\rho_t, A_t) + \beta \rho_t^b k_3(\pi_\theta, \pi_{ref}))

    The exponent b is 1 with ``use_bias_correction_kl``, else 0: with the ratio as a factor the divergence has
    its true gradient on old tokens too (DeepSeek-V3.2, arXiv:2512.02556).

    Args:
        config: ``loss_type``, ``importance_sampling_level``, the clips, ``beta`` and
            ``use_bias_correction_kl``.
        logprobs_N: Log-probs under the weights being trained.
        old_logprobs_N: Log-probs under the weights that sampled.
        advantages_N: Advantages.
        weights_N: Each token's weight in the sum, see :func:`token_weights`.
        sequences_N: The number of each token's sequence, int64, from 0.
        reference_logprobs_N: Log-probs under the reference, if ``beta`` is above 0.
        corrections_N: Weights of :func:`sampler_correction`, if the sampler is another program.
    """
    ratio_N = importance_ratio(logprobs_N, old_logprobs_N, sequences_N, config.importance_sampling_level)
    losses_N, clipped_N = surrogate(
        ratio_N,
        logprobs_N,
        advantages_N,
        loss_type=config.loss_type,
        epsilon=config.epsilon,
        epsilon_high=config.clip_high,
        delta=config.delta,
    )
    if corrections_N is not None:
        losses_N = losses_N * corrections_N
    policy = loss = (losses_N * weights_N).sum()
    kl_N = None
    if reference_logprobs_N is not None:
        kl_N = kl_k3(logprobs_N, reference_logprobs_N)
        weighed_N = kl_N * ratio_N if config.use_bias_correction_kl else kl_N
        loss = loss + config.beta * (weighed_N * weights_N).sum()
        kl_N = kl_N.detach()
    return PolicyLoss(loss, policy.detach(), ratio_N.detach(), clipped_N, kl_N)


def token_weights(
    lengths_R: Tensor, loss_type: LossType, *, max_length: int = 1, batch_tokens: float | None = None
) -> Tensor:
    r"""Return the weight of each attempt's tokens in the batch's loss, shape [R], float64.

    =========== ========================== ==================================================================
    loss_type   weight of a token of i     meaning
    =========== ========================== ==================================================================
    grpo        :math:`1 / (R |o_i|)`      mean per attempt, then over attempts (arXiv:2402.03300, eq. 3)
    dr_grpo     :math:`1 / (R\,L_{max})`   constant: no length bias (arXiv:2503.20783, section 3.2)
    bnpo        :math:`1 / \sum_j |o_j|`   mean over the tokens of this optimizer step
    dapo, cispo :math:`1 / N`              N: an optimizer step's tokens on average over the rollout, so that
                                           all its tokens weigh the same (arXiv:2503.14476, eq. 8;
                                           arXiv:2506.13585, eq. 4)
    =========== ========================== ==================================================================

    Args:
        lengths_R: Trained tokens of each attempt of one optimizer step; attempts without any do not count
            in R.
        loss_type: One of the rows above.
        max_length: ``dr_grpo``'s constant, tokens.
        batch_tokens: N; ``None`` for this step's own tokens, as in ``bnpo``.
    """
    lengths = lengths_R.to(torch.float64)
    attempts = max(int((lengths_R > 0).sum()), 1)
    if loss_type == "grpo":
        return 1 / (attempts * lengths.clamp(min=1))
    if loss_type == "dr_grpo":
        return torch.full_like(lengths, 1 / (attempts * max_length))
    total = float(lengths.sum()) if loss_type == "bnpo" or batch_tokens is None else batch_tokens
    return torch.full_like(lengths, 1 / max(total, 1.0))


# Probability ratios. Two pairs of policies are compared: the weights being trained against the weights that
# sampled (PPO per token, GSPO per sequence); and, if the sampler is another program, the weights that sampled
# as the learner computes them against what the sampler reported.


def sequence_sums(values_N: Tensor, sequences_N: Tensor) -> Tensor:
    """Return for each token the sum of the values of its sequence, shape [N]."""
    count = int(sequences_N.max()) + 1 if sequences_N.numel() else 0
    return values_N.new_zeros(count).index_add(0, sequences_N, values_N)[sequences_N]


def importance_ratio(
    logprobs_N: Tensor, old_logprobs_N: Tensor, sequences_N: Tensor, level: ImportanceLevel
) -> Tensor:
    r"""Return each token's probability ratio of the policy to the one that sampled, shape [N].

    ``"token"``: :math:`\rho_t = \pi_\theta(y_t) / \pi_{old}(y_t)` (PPO, arXiv:1707.06347, eq. 6).
    ``"sequence"``: the geometric mean over the sequence's tokens, the same for all of them,

    .. math:: s = \exp\Bigl(\frac{1}{|y|} \sum_t \log \frac{\pi_\theta(y_t)}{\pi_{old}(y_t)}\Bigr)

    (GSPO, arXiv:2507.18071, eq. 7).
    """
    difference = logprobs_N - old_logprobs_N
    if level == "sequence":
        lengths = sequence_sums(torch.ones_like(difference), sequences_N)
        difference = sequence_sums(difference, sequences_N) / lengths
    return torch.exp(difference)


def token_gradients(ratios_N: Tensor, logprobs_N: Tensor) -> Tensor:
    r"""Return the same ratios, each with the gradient of its own token only.

    .. math:: s_t = \operatorname{sg}[s] \frac{\pi_\theta(y_t)}{\operatorname{sg}[\pi_\theta(y_t)]}

    GSPO-token (arXiv:2507.18071, eq. 14). With one advantage a sequence, the gradient of the loss is that of
    GSPO; with one a turn, each turn's tokens get the credit of that turn instead of the sequence's mean.
    Token ratios stay as they are.
    """
    return ratios_N.detach() * torch.exp(logprobs_N - logprobs_N.detach())


def sampler_correction(
    old_logprobs_N: Tensor,
    sampler_logprobs_N: Tensor,
    sequences_N: Tensor,
    *,
    mode: CorrectionMode,
    clip_max: float | None = 3.0,
    clip_min: float | None = None,
) -> Tensor:
    r"""Return importance weights for tokens that another program sampled, shape [N].

    A sampler with other precision or kernels is another policy, though the weights are the same. Its tokens
    are weighed by :math:`w = \pi_{old} / \pi_{sampler}`, per token or as the product over the sequence, kept
    within bounds: ``*_truncate`` clips w (truncated importance sampling, Yao et al., "Your efficient RL
    framework secretly brings you off-policy RL training", 2025), ``*_mask`` leaves out what lies outside. The
    names are TRL's ``vllm_importance_sampling_mode``, ``…_clip_max`` and ``…_clip_min``.

    Args:
        old_logprobs_N: Log-probs under the learner, with the weights that sampled.
        sampler_logprobs_N: Log-probs as the sampler reported them; ``nan`` counts as no difference.
        sequences_N: The number of each token's sequence.
        mode: Per token or sequence; truncate or mask.
        clip_max: Upper bound; ``None`` for none.
        clip_min: Lower bound; ``None`` for none.
    """
    difference = torch.nan_to_num(old_logprobs_N - sampler_logprobs_N, nan=0.0)
    if mode.startswith("sequence"):
        difference = sequence_sums(difference, sequences_N)
    weights = torch.exp(difference)
    bounded = weights
    if clip_min is not None:
        bounded = bounded.clamp(min=clip_min)
    if clip_max is not None:
        bounded = bounded.clamp(max=clip_max)
    return bounded if mode.endswith("truncate") else torch.where(bounded == weights, weights, 0.0)


def clipped_surrogate(
    ratio: Tensor,
    advantages: Tensor,
    epsilon: float = 0.2,
    epsilon_high: float = 0.28,
    delta: float | None = None,
) -> Tensor:
    r"""Return each token's clipped policy loss.

    .. math:: -\min(\min(\rho, \delta) A,\ \operatorname{clip}(\rho, 1-\epsilon, 1+\epsilon_{high}) A)

    PPO (arXiv:1707.06347, eq. 7) with DAPO's own upper clip (arXiv:2503.14476, eq. 8) and INTELLECT-2's
    two-sided clipping (arXiv:2505.07291): without ``delta`` the gradient of a bad token that became much
    likelier is unbounded.

    Args:
        ratio: Probability ratios, any shape.
        advantages: Advantages, broadcastable to that shape.
        epsilon: The ratio is clipped below at ``1 - epsilon``.
        epsilon_high: The ratio is clipped above at ``1 + epsilon_high``.
        delta: Highest ratio for a token with a negative advantage; ``None`` for no limit.
    """
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon_high)
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    return -torch.minimum(bounded * advantages, clipped * advantages)


def cispo_surrogate(ratio: Tensor, logprobs: Tensor, advantages: Tensor, epsilon_high: float) -> Tensor:
    r"""Return each token's CISPO loss: the weight is clipped, and no token loses its gradient.

    .. math:: -\operatorname{sg}[\min(\rho, \epsilon_{high})]\ A \log \pi_\theta

    CISPO (MiniMax-M1, arXiv:2506.13585, eq. 4 and 5, without the lower clip, which its authors do not use
    either). As in TRL the bound is ``epsilon_high`` itself, not 1 + ``epsilon_high``; 5 in ScaleRL
    (arXiv:2510.13786).
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

    ``"cispo"`` takes :func:`cispo_surrogate`, every other loss type :func:`clipped_surrogate`.
    """
    if loss_type == "cispo":
        cut = (ratio.detach() > epsilon_high) & (advantages != 0)
        return cispo_surrogate(ratio, logprobs, advantages, epsilon_high), cut
    own = token_gradients(ratio, logprobs)
    fixed = ratio.detach()
    cut = ((fixed < 1 - epsilon) & (advantages < 0)) | ((fixed > 1 + epsilon_high) & (advantages > 0))
    if delta is not None:
        cut |= (fixed > delta) & (advantages < 0)
    return clipped_surrogate(own, advantages, epsilon, epsilon_high, delta), cut


def kl_k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    r"""Return each token's estimate of the KL divergence from the policy to the reference, in nats.

    .. math:: k_3 = e^{d} - d - 1,\quad d = \log\pi_{ref} - \log\pi_\theta

    Never negative, unbiased for tokens sampled from :math:`\pi_\theta`, and of low variance (GRPO,
    arXiv:2402.03300, eq. 4; Schulman, "Approximating KL divergence", 2020).
    """
    difference = reference_logprobs - logprobs
    # expm1 keeps the digits that exp(d) - 1 loses near d = 0, where most tokens are.
    return (torch.expm1(difference) - difference).clamp(min=0)
