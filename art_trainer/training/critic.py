"""The critic of PPO: what each turn is worth before it is played, learned along with the policy.

With ``advantage_estimator="gae"`` the learner is PPO's: the same rollouts, ratio, clip and token weights as
GRPO's, with advantages against a value head (:mod:`art_trainer.models.value_head`) by GAE
(:mod:`art_trainer.algorithms.advantages`) in place of a group's mean. A turn has one value, read where the
model predicts the turn's first token: there it has seen everything up to the decision and nothing of it. What
comes after an episode's last turn is worth 0, also if a turn limit ended it: the agent is shown the limit,
and the estimators of groups see no more either.

The head is trained in full by an optimizer of its own, whatever is trained of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from art_trainer.algorithms.advantages import Advantages, fill_gaps, generalized_advantages, rewards_to_go
from art_trainer.config import GRPOConfig
from art_trainer.models.optim import UpdateGuard
from art_trainer.models.packing import Batch, TokenRow
from art_trainer.models.value_head import ValueHead, explained_variance, value_loss
from art_trainer.models.weights_io import load_optimizer, optimizer_tensors
from art_trainer.types import Episode, Group, TokenHistory

Read = Callable[[Sequence[TokenRow]], Sequence[NDArray[np.float32]]]
"""Gives the head's value at each target of each row, without a gradient."""


@dataclass(frozen=True, slots=True)
class ValueEstimates:
    """Values and returns of groups: by group and attempt one number a turn, in the rewards' units."""

    values: Advantages
    """What the critic expected."""
    returns: Advantages
    """The λ-returns: what it should have expected."""

    def metrics(self) -> dict[str, float]:
        """Return the mean value, and how much of the returns the values explain."""
        values, returns = (
            np.concatenate([*(turns for group in numbers for turns in group), np.zeros(0)])
            for numbers in (self.values, self.returns)
        )
        return {
            "value": float(values.mean()) if values.size else 0.0,
            "explained_variance": explained_variance(values, returns),
        }


class Critic:
    """A value head, its estimates, and its training.

    Args:
        hidden_size: Length of the model's hidden states.
        config: Its settings of GAE and of the value loss.
        device: Where the model lives.

    Attributes:
        head: The value head.
        optimizer: AdamW over the head.
    """

    def __init__(self, hidden_size: int, config: GRPOConfig, device: torch.device) -> None:
        self.head = ValueHead(hidden_size, device)
        self._config = config
        self._learning_rate = config.value_learning_rate or config.learning_rate
        self.optimizer = torch.optim.AdamW(
            self.head.parameters(),
            lr=self._learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_epsilon,
            weight_decay=0.0,
        )
        self._guard = UpdateGuard(self.optimizer, config.max_grad_norm)

    def assess(self, groups: Sequence[Group], read: Read) -> ValueEstimates:
        """Estimate value and return of every turn; the groups' returns enter the head's running numbers."""
        gamma, lam = self._config.gamma, self._config.lam
        observed = [rewards_to_go(_rewards(e), gamma) for group in groups for e in group.episodes]
        self.head.observe(np.concatenate([*observed, np.zeros(0)]))
        rows = [
            _reading_row(history, list(turn_starts(history).values()), index)
            for index, group in enumerate(groups)
            for episode in group.episodes
            for history in episode.histories
        ]
        outputs = iter(read(rows))
        estimates = ValueEstimates([], [])
        for group in groups:
            values, returns = [], []
            for episode in group.episodes:
                rewards, values_T = _rewards(episode), np.full(len(episode.turns), np.nan)
                for history in episode.histories:
                    values_T[list(turn_starts(history))] = self.head.unscaled(
                        next(outputs).astype(np.float64)
                    )
                values_T = fill_gaps(values_T, rewards, gamma=gamma)
                values.append(values_T)
                returns.append(generalized_advantages(rewards, values_T, gamma=gamma, lam=lam) + values_T)
            estimates.values.append(values)
            estimates.returns.append(returns)
        return estimates

    def with_targets(
        self, row: TokenRow, history: TokenHistory, estimates: ValueEstimates, group: int, member: int
    ) -> TokenRow:
        """Return a history's row with the head's output, and its target, at each turn's first token."""
        starts = turn_starts(history)
        places = np.searchsorted(row.targets, list(starts.values()))

        def column(numbers_T: NDArray[np.float64]) -> NDArray[np.float32]:
            numbers = np.full(row.targets.size, np.nan, np.float32)
            numbers[places] = self.head.scaled(numbers_T[list(starts)])
            return numbers

        values_T, returns_T = estimates.values[group][member], estimates.returns[group][member]
        return replace(row, values=column(values_T), returns=column(returns_T))

    def loss(self, hidden_NH: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the summed loss of a batch's turns, and what the metrics add up.

        The head gets the loss's whole gradient, the model ``vf_coef`` of it: for the head's own optimizer its
        size means nothing, for the model's it is the weight beside the policy's loss.
        """
        assert batch.values_N is not None
        assert batch.returns_N is not None
        places = batch.returns_N.isfinite().nonzero().squeeze(-1)
        hidden, share = hidden_NH[places], self._config.vf_coef
        fixed = hidden.detach()
        values = self.head(fixed + share * (hidden - fixed) if share else fixed)
        losses, clipped = value_loss(
            values, batch.values_N[places], batch.returns_N[places], self._config.cliprange_value
        )
        loss = losses.sum()
        return loss, {
            "value_loss": loss.detach(),
            "value_clipped": clipped.sum(),
            "value_turns": values.new_tensor(len(values)),
        }

    def step(self, factor: float, *, finite: bool) -> None:
        """Take an optimizer step, or only clear the gradient if the policy's step was not finite."""
        self._guard.step(0.0 if finite else np.inf, self._learning_rate * factor)

    def tensors(self) -> dict[str, Tensor]:
        """Return head and optimizer as tensors by name."""
        head = {f"head/{name}": value.detach().cpu() for name, value in self.head.state_dict().items()}
        moments = optimizer_tensors(self.head, self.optimizer)
        return head | {f"optimizer/{name}": value for name, value in moments.items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set what :meth:`tensors` returned."""
        head, moments = (
            {name.removeprefix(part): x for name, x in tensors.items() if name.startswith(part)}
            for part in ("head/", "optimizer/")
        )
        self.head.load_state_dict(head)
        load_optimizer(self.head, self.optimizer, moments)


def turn_starts(history: TokenHistory) -> dict[int, int]:
    """Return for each turn the place of its first sampled token that a position predicts."""
    starts: dict[int, int] = {}
    place = 0
    for span in history.spans:
        first = max(place, 1)  # nothing predicts a history's first token
        place += len(span.token_ids)
        if span.turn is not None and first < place:
            starts.setdefault(span.turn, first)
    return starts


def _reading_row(history: TokenHistory, targets: Sequence[int], group: int) -> TokenRow:
    """Return a row whose only targets are the turns' first tokens: the model runs no further than those."""
    nothing = np.zeros(len(targets), np.float32)
    ids = np.asarray(history.token_ids[: targets[-1] + 1 if targets else 0], dtype=np.int64)
    return TokenRow(ids, np.asarray(targets, dtype=np.int64), nothing, nothing, 0.0, group)


def _rewards(episode: Episode) -> list[float]:
    return [turn.reward for turn in episode.turns]
