"""Probability ratios: how much likelier a policy makes what another one sampled.

Two pairs of policies are compared. The weights being trained against the weights that sampled, per token
(PPO) or per sequence (GSPO); and the weights that sampled as the learner computes them against what the
sampler itself reported, where that is another program.

Tokens come as flat lists with the number of their sequence beside them. A sequence is one uninterrupted token
history: the whole episode, unless the chat template or a history window cuts it into several. Shape letter: N
tokens of all sequences together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from art_trainer.config import CorrectionMode, ImportanceLevel


def sequence_sums(values_N: Tensor, sequences_N: Tensor) -> Tensor:
    """Return for each token the sum of the values of its sequence.

    Args:
        values_N: One value a token.
        sequences_N: The number of each token's sequence, int64, from 0.
    """
    count = int(sequences_N.max()) + 1 if sequences_N.numel() else 0
    return values_N.new_zeros(count).index_add(0, sequences_N, values_N)[sequences_N]


def importance_ratio(
    logprobs_N: Tensor, old_logprobs_N: Tensor, sequences_N: Tensor, level: ImportanceLevel
) -> Tensor:
    r"""Return each token's probability ratio of the policy to the one that sampled.

    ``"token"``: :math:`\rho_t = \pi_\theta(y_t) / \pi_{old}(y_t)` (PPO, arXiv:1707.06347, eq. 6).
    ``"sequence"``: the geometric mean over the sequence's tokens, the same for all of them,

    .. math:: s = \exp\Bigl(\frac{1}{|y|} \sum_t \log \frac{\pi_\theta(y_t)}{\pi_{old}(y_t)}\Bigr)

    (GSPO, arXiv:2507.18071, eq. 7).

    Args:
        logprobs_N: Log-probs under the weights being trained.
        old_logprobs_N: Log-probs under the weights that sampled, no gradient.
        sequences_N: The number of each token's sequence.
        level: One of the two.

    Returns:
        Ratios, shape [N].
    """
    difference = logprobs_N - old_logprobs_N
    if level == "sequence":
        lengths = sequence_sums(torch.ones_like(difference), sequences_N)
        difference = sequence_sums(difference, sequences_N) / lengths
    return torch.exp(difference)


def token_gradients(ratios_N: Tensor, logprobs_N: Tensor) -> Tensor:
    r"""Return the same ratios, each with the gradient of its own token only.

    .. math:: s_t = \operatorname{sg}[s] \frac{\pi_\theta(y_t)}{\operatorname{sg}[\pi_\theta(y_t)]}

    GSPO-token (arXiv:2507.18071, eq. 14). With one advantage a sequence the gradient of the loss is that of
    GSPO; with one a turn, each turn's tokens get the credit of that turn instead of the sequence's mean.
    Token ratios come out as they went in.
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
    r"""Return the weights that make what one program sampled count as if the other had, shape [N].

    A sampler in other precision or with other kernels is another policy, though the weights are the same.
    Its tokens are weighed by :math:`w = \pi_{old} / \pi_{sampler}`, per token or as the product over the
    sequence, kept within bounds: ``*_truncate`` clips w (truncated importance sampling, Yao et al., "Your
    efficient RL framework secretly brings you off-policy RL training", 2025), ``*_mask`` leaves out what lies
    outside. The names are TRL's ``vllm_importance_sampling_mode``, ``…_clip_max`` and ``…_clip_min``.

    Args:
        old_logprobs_N: Log-probs of the sampled tokens under the learner, with the weights that sampled.
        sampler_logprobs_N: Their log-probs as the sampler reported them; not a number where it has none,
            which counts as no difference.
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
