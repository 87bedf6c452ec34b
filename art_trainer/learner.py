"""Groups of episodes in, better weights out: the GRPO update.

The weights that sampled are the weights being trained, in the same process and precision, so the log-probs
recorded while sampling serve as the old ones. Only where sampling was filtered (top-p and the like) are they
taken again, once a step, without the filter. Dropout is off, as it was while sampling: the probability ratio
of the first update is 1.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from art_trainer.advantages import batch_advantages
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Ending, Episode, Group
from art_trainer.errors import DivergedError
from art_trainer.losses import clipped_surrogate, clipped_tokens, kl_k3, token_weights
from art_trainer.metrics import UpdateTotals, batch_metrics
from art_trainer.optimization import UpdateGuard, make_optimizer, schedule_factor
from art_trainer.packing import Batch, Row, pack
from art_trainer.scoring import Scorer


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The rows of one episode of a kept group, and how many tokens of them are trained on."""

    rows: tuple[Row, ...]
    tokens: int


class Learner:
    """Trains a model on groups of episodes.

    Args:
        model: A Hugging Face causal language model, maybe with PEFT adapters; it is switched to eval mode.
        config: The settings.

    Attributes:
        step: Updates done so far; the schedule's place.
        optimizer: AdamW over the weights that require a gradient.
        rng: Shuffles groups into optimizer steps.
        reference: A frozen copy of the weights at the start, where ``config.beta`` asks for a reference and
            the model has no adapter to switch off.

    Raises:
        UnsupportedModelError: Where the model has nothing to train or cannot be scored.
    """

    def __init__(self, model: nn.Module, config: GRPOConfig) -> None:
        self.model = model.eval()
        self.config = config
        self.step = 0
        self.rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(1,)))
        self.optimizer = make_optimizer(
            model,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            betas=(config.adam_beta1, config.adam_beta2),
            epsilon=config.adam_epsilon,
        )
        self._guard = UpdateGuard(self.optimizer, config.max_grad_norm)
        self._scorer = Scorer(model, temperature=config.temperature)
        self._skipped_in_a_row = 0
        self.reference: nn.Module | None = None
        self._reference_scorer = self._scorer
        if config.beta > 0 and not hasattr(model, "disable_adapter"):
            self.reference = copy.deepcopy(model).requires_grad_(False)
            self._reference_scorer = Scorer(self.reference, temperature=config.temperature)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        config = self.config
        return config.learning_rate * schedule_factor(
            self.step,
            config.max_steps,
            config.lr_scheduler_type,
            warmup_steps=config.warmup_steps,
            final_ratio=config.lr_final_ratio,
        )

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """Do one step's optimizer steps on a batch of groups.

        Groups with a failed member are dropped, and with ``drop_zero_variance_groups`` those whose
        advantages are all zero.

        Returns:
            The step's metrics, see :mod:`art_trainer.metrics`.

        Raises:
            DivergedError: After ``max_skipped_updates`` optimizer steps in a row whose loss or gradient was
                not finite.
        """
        start = time.perf_counter()
        learning_rate = self.learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        kept = self._attempts(groups)
        steps = min(self.config.steps_per_generation, len(kept))
        batch_tokens = sum(attempt.tokens for members in kept for attempt in members) / max(steps, 1)
        totals = UpdateTotals()
        for _ in range(self.config.num_iterations if kept else 0):
            for part in np.array_split(self.rng.permutation(len(kept)), steps):
                self._optimizer_step([kept[i] for i in part], batch_tokens, totals)
        self.step += 1
        metrics = batch_metrics(groups) | totals.metrics(self.config)
        metrics["learning_rate"] = learning_rate
        metrics["time/update"] = time.perf_counter() - start
        return metrics

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs beside weights and optimizer, JSON-able."""
        return {
            "step": self.step,
            "skipped_in_a_row": self._skipped_in_a_row,
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state` returned."""
        self.step = int(state["step"])
        self._skipped_in_a_row = int(state["skipped_in_a_row"])
        self.rng.bit_generator.state = state["rng"]

    def _attempts(self, groups: Sequence[Group]) -> list[list[_Attempt]]:
        """Return the groups to train on; their advantages are taken over all whole groups."""
        whole = [group for group in groups if group.whole]
        config = self.config
        advantages = batch_advantages(
            [[[turn.reward for turn in attempt.turns] for attempt in group.episodes] for group in whole],
            estimator=config.advantage_estimator,
            gamma=config.gamma,
            scale_rewards=config.scale_rewards,
        )
        kept = []
        for index, (group, values) in enumerate(zip(whole, advantages, strict=True)):
            if config.drop_zero_variance_groups and not any(map(np.any, values)):
                continue
            members = [
                _attempt(episode, advantages_T, index)
                for episode, advantages_T in zip(group.episodes, values, strict=True)
                if not (config.mask_truncated_completions and episode.ending in _CUT_OFF)
            ]
            if any(attempt.tokens for attempt in members):
                kept.append(members)
        return self._rescored(kept)

    def _rescored(self, groups: list[list[_Attempt]]) -> list[list[_Attempt]]:
        """Add the reference's log-probs, and take the old ones again where sampling was filtered.

        Once, before the first optimizer step: later passes meet the policy that sampled, not a newer one.
        """
        rows = [row for members in groups for attempt in members for row in attempt.rows]
        columns: dict[str, list[NDArray[np.float32]]] = {}
        if self.config.filters_sampling:
            columns["old_logprobs"] = self._score(self._scorer, rows)
        if self.config.beta:
            switched_off = self.model.disable_adapter() if self.reference is None else nullcontext()  # type: ignore[operator]
            with switched_off:
                columns["reference_logprobs"] = self._score(self._reference_scorer, rows)
        if not columns:
            return groups
        fresh = iter([
            replace(row, **{name: values[i] for name, values in columns.items()})  # type: ignore[arg-type]
            for i, row in enumerate(rows)
        ])  # fmt: skip
        return [[replace(a, rows=tuple(next(fresh) for _ in a.rows)) for a in members] for members in groups]

    @torch.no_grad()
    def _score(self, scorer: Scorer, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        found: dict[int, NDArray[np.float32]] = {}
        for batch in self._pack(rows, scorer):
            logprobs = scorer.score(batch)[0].cpu().numpy()
            ends = np.cumsum([row.targets.size for row in batch.rows])[:-1]
            found.update(zip(map(id, batch.rows), np.split(logprobs, ends), strict=True))
        return [found[id(row)] for row in rows]

    def _pack(self, rows: Sequence[Row], scorer: Scorer) -> Iterator[Batch]:
        share = self.config.share_prefixes and scorer.shares_prefixes
        return pack(rows, self.config.tokens_per_microbatch, share=share, device=scorer.device)

    def _optimizer_step(
        self, groups: Sequence[list[_Attempt]], batch_tokens: float, totals: UpdateTotals
    ) -> None:
        """Take one optimizer step on these groups."""
        attempts = [attempt for members in groups for attempt in members]
        weights = token_weights(
            torch.tensor([attempt.tokens for attempt in attempts]),
            self.config.loss_type,
            max_length=self.config.max_completion_length,
            batch_tokens=batch_tokens,
        ).tolist()
        rows = [
            replace(row, weight=weight)
            for attempt, weight in zip(attempts, weights, strict=True)
            for row in attempt.rows
        ]
        loss = 0.0
        for batch in self._pack(rows, self._scorer):
            part, sums = self._loss(batch)
            part.backward()  # type: ignore[no-untyped-call]
            totals.add(sums)
            loss += sums["loss"]
        norm = self._guard.step(loss)
        totals.step(norm)
        self._skipped_in_a_row = 0 if norm is not None else self._skipped_in_a_row + 1
        if self._skipped_in_a_row >= self.config.max_skipped_updates:
            raise DivergedError(
                f"the loss or its gradient was not finite in {self._skipped_in_a_row} optimizer steps in a "
                f"row (last loss {loss}, step {self.step}): the weights are those of the last finite step; "
                "go back to a checkpoint and lower learning_rate"
            )

    def _loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Return a batch's share of the loss, and what the metrics add up."""
        config = self.config
        logprobs, spread = self._scorer.score(batch, entropy_gradient=config.entropy_coef > 0)
        old, advantages, weights = batch.old_logprobs_N, batch.advantages_N, batch.weights_N
        surrogate = clipped_surrogate(logprobs, old, advantages, config.epsilon, config.clip_high)
        policy = (surrogate * weights).sum()
        loss = policy
        parts = {"policy_loss": policy.detach()}
        if batch.reference_logprobs_N is not None:
            kl = kl_k3(logprobs, batch.reference_logprobs_N)
            weighed = kl * torch.exp(logprobs - old) if config.use_bias_correction_kl else kl
            loss = loss + config.beta * (weighed * weights).sum()
            parts["kl"] = kl.detach().sum()
        if config.entropy_coef:
            loss = loss - config.entropy_coef * (spread * weights).sum()
        with torch.no_grad():
            clipped = clipped_tokens(logprobs, old, advantages, config.epsilon, config.clip_high)
            parts["loss"] = loss.detach()
            parts["entropy"] = spread.sum()
            parts["sampling_kl"] = kl_k3(logprobs, old).sum()
            parts["clipped"] = clipped.sum()
        # One transfer for all: on a GPU each number fetched alone would wait for the device.
        values = torch.stack([value.float() for value in parts.values()]).tolist()
        return loss, dict(zip(parts, values, strict=True)) | {"tokens": float(len(logprobs))}


_CUT_OFF = (Ending.TRUNCATED, Ending.CONTEXT_FULL)


def _attempt(episode: Episode, advantages_T: NDArray[np.float64], group: int) -> _Attempt:
    rows = tuple(
        Row.from_history(history, advantages_T=advantages_T, weight=0.0, group=group)
        for history in episode.histories
    )
    return _Attempt(rows, sum(row.targets.size for row in rows))
