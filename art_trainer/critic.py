"""The critic of PPO: what each turn is worth before it is played, learned along with the policy.

With ``advantage_estimator="gae"`` the learner is PPO's: the same rollouts, ratio, clip and token weights as
GRPO's, with advantages against a value head (:mod:`art_trainer.value_head`) by GAE (:mod:`art_trainer.gae`)
in place of a group's mean. A turn has one value, read where the model predicts the turn's first token:
there it has seen everything up to the decision and nothing of it. What comes after an episode's last turn is
worth 0, also where a turn limit ended it: the agent is told of the limit, and the group's estimators see no
more either.

The head is trained in full by an optimizer of its own, whatever is trained of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from art_trainer.advantages import rewards_to_go
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Episode, Group, TokenHistory
from art_trainer.estimators import Advantages
from art_trainer.gae import fill_gaps, generalized_advantages
from art_trainer.optimization import UpdateGuard
from art_trainer.packing import Batch, Row
from art_trainer.value_head import ValueHead, explained_variance, value_loss

Read = Callable[[Sequence[Row]], Sequence[NDArray[np.float32]]]
"""Gives the head's value at each target of each row, without a gradient."""


@dataclass(frozen=True, slots=True)
class Valuation:
    """What a critic says about whole groups; by group and attempt a number a turn, in the rewards' units."""

    values: Advantages
    """What it expected to come."""
    returns: Advantages
    """The λ-returns: what it should have expected."""

    def metrics(self) -> dict[str, float]:
        """Return the mean value, and how much of the returns the values explain."""
        said, wanted = (
            np.concatenate([*(turns for group in numbers for turns in group), np.zeros(0)])
            for numbers in (self.values, self.returns)
        )
        return {
            "value": float(said.mean()) if said.size else 0.0,
            "explained_variance": explained_variance(said, wanted),
        }


class Critic:
    """A value head, what it says about episodes, and its training.

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
        self.optimizer = torch.optim.AdamW(
            self.head.parameters(),
            lr=config.value_learning_rate or config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_epsilon,
            weight_decay=0.0,
        )
        self._guard = UpdateGuard(self.optimizer, config.max_grad_norm)

    def observe(self, groups: Sequence[Group]) -> None:
        """Take the returns of whole groups into the head's running numbers."""
        returns = [
            rewards_to_go(_rewards(episode), self._config.gamma)
            for group in groups
            for episode in group.episodes
        ]
        self.head.observe(np.concatenate([*returns, np.zeros(0)]))

    def assess(self, groups: Sequence[Group], read: Read) -> Valuation:
        """Say what every turn of whole groups is worth, and what would have been right to say.

        Args:
            groups: Whole groups.
            read: Runs the model over rows, one target a turn.
        """
        gamma, lam = self._config.gamma, self._config.lam
        values = self._values(groups, read)
        returns = [
            [
                generalized_advantages(_rewards(episode), values_T, gamma=gamma, lam=lam) + values_T
                for episode, values_T in zip(group.episodes, known, strict=True)
            ]
            for group, known in zip(groups, values, strict=True)
        ]
        return Valuation(values, returns)

    def _values(self, groups: Sequence[Group], read: Read) -> Advantages:
        found = [
            [[turn_starts(history) for history in episode.histories] for episode in group.episodes]
            for group in groups
        ]
        rows = [
            _reading_row(history, list(starts.values()), index)
            for index, (group, by_episode) in enumerate(zip(groups, found, strict=True))
            for episode, by_history in zip(group.episodes, by_episode, strict=True)
            for history, starts in zip(episode.histories, by_history, strict=True)
        ]
        said = iter(read(rows))
        values: Advantages = []
        for group, by_episode in zip(groups, found, strict=True):
            values.append([])
            for episode, by_history in zip(group.episodes, by_episode, strict=True):
                values_T = np.full(len(episode.turns), np.nan)
                for starts in by_history:
                    values_T[list(starts)] = self.head.unscaled(next(said).astype(np.float64))
                values[-1].append(fill_gaps(values_T, _rewards(episode), gamma=self._config.gamma))
        return values

    def with_targets(
        self,
        row: Row,
        history: TokenHistory,
        values_T: NDArray[np.float64],
        returns_T: NDArray[np.float64],
    ) -> Row:
        """Return a history's row with what the head said, and should say, where its turns start."""
        starts = turn_starts(history)
        places = np.searchsorted(row.targets, list(starts.values()))

        def column(numbers_T: NDArray[np.float64]) -> NDArray[np.float32]:
            numbers = np.full(row.targets.size, np.nan, np.float32)
            numbers[places] = self.head.scaled(numbers_T[list(starts)])
            return numbers

        return replace(row, values=column(values_T), returns=column(returns_T))

    def loss(self, hidden_NH: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the summed loss of a batch's turns, and what the metrics add up.

        The head gets the loss's whole gradient, the model ``vf_coef`` of it: for the head's own optimizer its
        size means nothing, for the model's it is the weight beside the policy's loss.

        Args:
            hidden_NH: Hidden states of the batch's positions.
            batch: Rows with targets.
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
        """Take an optimizer step, or only forget the gradient where the policy's step was not finite.

        Args:
            factor: What the peak learning rate is multiplied by.
            finite: Whether loss and gradient of the policy were finite.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = (self._config.value_learning_rate or self._config.learning_rate) * factor
        self._guard.step(0.0 if finite else np.inf)

    def tensors(self) -> dict[str, Tensor]:
        """Return head and optimizer as tensors by name."""
        found = {f"head/{name}": value.detach().cpu() for name, value in self.head.state_dict().items()}
        for name, parameter in self.head.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                found[f"optimizer/{name}/{key}"] = value.detach().cpu()
        return found

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set what :meth:`tensors` returned."""
        heads = {name.removeprefix("head/"): x for name, x in tensors.items() if name.startswith("head/")}
        self.head.load_state_dict(heads)
        parameters = dict(self.head.named_parameters())
        self.optimizer.state.clear()
        for name, value in tensors.items():
            kind, *path = name.split("/")
            if kind == "optimizer":
                parameter = parameters[path[0]]
                # AdamW's step counts stay on the CPU, where it made them.
                device = "cpu" if path[1] == "step" else parameter.device
                self.optimizer.state[parameter][path[1]] = value.to(device)


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


def _reading_row(history: TokenHistory, targets: Sequence[int], group: int) -> Row:
    """Return a row whose only targets are the turns' first tokens: the model runs no further than those."""
    nothing = np.zeros(len(targets), np.float32)
    ids = np.asarray(history.token_ids[: targets[-1] + 1 if targets else 0], dtype=np.int64)
    return Row(ids, np.asarray(targets, dtype=np.int64), nothing, nothing, 0.0, group)


def _rewards(episode: Episode) -> list[float]:
    return [turn.reward for turn in episode.turns]
