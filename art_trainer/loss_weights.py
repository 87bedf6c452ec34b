"""How the losses of single tokens are added up to the loss of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from art_trainer.config import LossType


def token_weights(
    lengths_R: Tensor, loss_type: LossType, *, max_length: int = 1, batch_tokens: float | None = None
) -> Tensor:
    r"""Return for each of R attempts the weight its tokens' losses have in the sum that is the batch's loss.

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
        lengths_R: Trained tokens of each of the R attempts of one optimizer step; an attempt may have 0, and
            does not count in R then.
        loss_type: One of the rows above.
        max_length: ``dr_grpo``'s constant, tokens.
        batch_tokens: N; ``None``: this step's own tokens, as in ``bnpo``.

    Returns:
        Weights, shape [R], in double precision.
    """
    lengths = lengths_R.to(torch.float64)
    attempts = max(int((lengths_R > 0).sum()), 1)
    if loss_type == "grpo":
        return 1 / (attempts * lengths.clamp(min=1))
    if loss_type == "dr_grpo":
        return torch.full_like(lengths, 1 / (attempts * max_length))
    total = float(lengths.sum()) if loss_type == "bnpo" or batch_tokens is None else batch_tokens
    return torch.full_like(lengths, 1 / max(total, 1.0))
