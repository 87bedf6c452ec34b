"""Groups of episodes in, better weights out: the policy gradient update.

An algorithm is a choice of functions: an estimator of advantages (:mod:`art_trainer.estimators`), a ratio
(:mod:`art_trainer.importance`), a surrogate (:mod:`art_trainer.losses`) and weights
(:mod:`art_trainer.loss_weights`). This module brings the numbers to them and takes the steps. Where the
estimator needs values, a critic (:mod:`art_trainer.critic`) gives them and learns along: that is PPO.

The weights that sampled are the weights being trained, in the same process and precision, so the log-probs
recorded while sampling serve as the old ones. Only where sampling was filtered (top-p and the like), or where
the sampler was another program, are they taken again, once a step. Dropout is off, as it was while sampling:
the probability ratio of the first update is 1.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from art_trainer.config import GRPOConfig
from art_trainer.critic import Critic, Valuation
from art_trainer.episodes import Episode, Group
from art_trainer.errors import DivergedError
from art_trainer.estimators import estimate
from art_trainer.importance import importance_ratio, sampler_correction
from art_trainer.loss_weights import token_weights
from art_trainer.losses import kl_k3, surrogate
from art_trainer.metrics import UpdateTotals, batch_metrics, correction_metrics
from art_trainer.optimization import UpdateGuard, make_optimizer, schedule_factor
from art_trainer.packing import Batch, Row, pack
from art_trainer.scoring import Scorer
from art_trainer.selection import has_signal, is_trained_on


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
        critic: The value head and its training, where the advantage estimator needs values.

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
            optim=config.optim,
        )
        self._guard = UpdateGuard(self.optimizer, config.max_grad_norm)
        self._scorer = Scorer(model, temperature=config.temperature)
        self._skipped_in_a_row = 0
        self.critic: Critic | None = None
        if config.has_critic:
            self.critic = Critic(self._scorer.hidden_size, config, self._scorer.device)
        self.reference: nn.Module | None = None
        self._reference_scorer = self._scorer
        if config.beta > 0 and not hasattr(model, "disable_adapter"):
            self.reference = copy.deepcopy(model).requires_grad_(False)
            if config.reference_dtype != "model":
                self.reference.to(getattr(torch, config.reference_dtype))
            self._reference_scorer = Scorer(self.reference, temperature=config.temperature)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return self.config.learning_rate * self._schedule_factor

    @property
    def _schedule_factor(self) -> float:
        config = self.config
        return schedule_factor(
            self.step,
            config.max_steps,
            config.lr_scheduler_type,
            warmup_steps=config.warmup_steps,
            final_ratio=config.lr_final_ratio,
        )

    def update(self, groups: Sequence[Group], replaced: Sequence[Group] = ()) -> dict[str, float]:
        """Do one step's optimizer steps on a batch of groups.

        Groups with a failed member are dropped, and with ``drop_zero_variance_groups`` those whose
        advantages are all zero.

        Args:
            groups: What to learn from.
            replaced: Groups that dynamic sampling played and put others in place of; only metrics know them.

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
        whole = [group for group in groups if group.whole]
        valuation = self._assess(whole)
        kept, sampler_metrics = self._rescored(self._attempts(whole, valuation))
        steps = min(self.config.steps_per_generation, len(kept))
        batch_tokens = sum(attempt.tokens for members in kept for attempt in members) / max(steps, 1)
        totals = UpdateTotals()
        for _ in range(self.config.num_iterations if kept else 0):
            for part in np.array_split(self.rng.permutation(len(kept)), steps):
                self._optimizer_step([kept[i] for i in part], batch_tokens, totals)
        self.step += 1
        metrics = batch_metrics([*groups, *replaced]) | totals.metrics(self.config)
        metrics |= sampler_metrics | ({} if valuation is None else valuation.metrics())
        metrics["learning_rate"] = learning_rate
        if self.config.dynamic_sampling:
            metrics["resampled_groups"] = float(len(replaced))
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

    def _assess(self, whole: Sequence[Group]) -> Valuation | None:
        """Ask the critic, where there is one, what each turn is worth."""
        if self.critic is None:
            return None
        head = self.critic.head
        self.critic.observe(whole)
        return self.critic.assess(
            whole,
            lambda rows: self._numbers(self._scorer, rows, lambda batch: head(self._scorer.hidden(batch))),
        )

    def _attempts(self, whole: Sequence[Group], valuation: Valuation | None = None) -> list[list[_Attempt]]:
        """Return the groups to train on; their advantages are taken over all of these whole groups."""
        config = self.config
        kept = []
        estimated = estimate(whole, config, None if valuation is None else valuation.values)
        for index, (group, values) in enumerate(zip(whole, estimated, strict=True)):
            if config.drop_zero_variance_groups and not has_signal(group, values, config):
                continue
            members = [
                self._attempt(episode, advantages_T, (index, member), valuation)
                for member, (episode, advantages_T) in enumerate(zip(group.episodes, values, strict=True))
                if is_trained_on(episode, config)
            ]
            if any(attempt.tokens for attempt in members):
                kept.append(members)
        return kept

    def _attempt(
        self,
        episode: Episode,
        advantages_T: NDArray[np.float64],
        place: tuple[int, int],
        valuation: Valuation | None,
    ) -> _Attempt:
        """Return the rows of an episode, by its place among groups and attempts."""
        group, member = place
        rows = []
        for history in episode.histories:
            row = Row.from_history(history, advantages_T=advantages_T, weight=0.0, group=group)
            if self.critic is not None and valuation is not None:
                values_T, returns_T = valuation.values[group][member], valuation.returns[group][member]
                row = self.critic.with_targets(row, history, values_T, returns_T)
            rows.append(row)
        return _Attempt(tuple(rows), sum(row.targets.size for row in rows))

    def _rescored(self, groups: list[list[_Attempt]]) -> tuple[list[list[_Attempt]], dict[str, float]]:
        """Add the columns that take a pass of their own: the reference's log-probs, and the old ones again.

        Once, before the first optimizer step: later passes meet the policy that sampled, not a newer one.

        Returns:
            The groups, and metrics of the sampler where it is held against the learner.
        """
        config = self.config
        rows = [row for members in groups for attempt in members for row in attempt.rows]
        metrics: dict[str, float] = {}
        if config.filters_sampling or config.importance_sampling_correction:
            reported = rows
            rows = self._with_column(rows, "old_logprobs", self._score(self._scorer, rows))
            if config.importance_sampling_correction:
                corrections = [
                    _correction(row.old_logprobs, sampled.old_logprobs, config)
                    for row, sampled in zip(rows, reported, strict=True)
                ]
                rows = self._with_column(rows, "corrections", corrections)
                metrics = correction_metrics(rows, reported)
        if config.beta:
            switched_off = self.model.disable_adapter() if self.reference is None else nullcontext()  # type: ignore[operator]
            with switched_off:
                logprobs = self._score(self._reference_scorer, rows)
            rows = self._with_column(rows, "reference_logprobs", logprobs)
        fresh = iter(rows)
        groups = [
            [replace(attempt, rows=tuple(next(fresh) for _ in attempt.rows)) for attempt in members]
            for members in groups
        ]
        return groups, metrics

    @staticmethod
    def _with_column(rows: Sequence[Row], name: str, values: Sequence[NDArray[np.float32]]) -> list[Row]:
        return [replace(row, **{name: value}) for row, value in zip(rows, values, strict=True)]  # type: ignore[arg-type]

    def _score(self, scorer: Scorer, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        return self._numbers(scorer, rows, lambda batch: scorer.score(batch)[0])

    @torch.no_grad()
    def _numbers(
        self, scorer: Scorer, rows: Sequence[Row], of_batch: Callable[[Batch], Tensor]
    ) -> list[NDArray[np.float32]]:
        """Return for each row the numbers of its targets, which ``of_batch`` gives for a whole batch."""
        nothing = np.zeros(0, np.float32)
        found = {id(row): nothing for row in rows if not row.targets.size}  # such rows are in no batch
        for batch in self._pack(rows, scorer):
            numbers = of_batch(batch).cpu().numpy()
            ends = np.cumsum([row.targets.size for row in batch.rows])[:-1]
            found.update(zip(map(id, batch.rows), np.split(numbers, ends), strict=True))
        return [found[id(row)] for row in rows]

    def _pack(self, rows: Sequence[Row], scorer: Scorer) -> Iterator[Batch]:
        share = self.config.share_prefixes and scorer.shares_prefixes
        return pack(rows, self.config.tokens_per_microbatch, share=share, device=scorer.device)

    def _optimizer_step(
        self, groups: Sequence[list[_Attempt]], batch_tokens: float, totals: UpdateTotals
    ) -> None:
        """Take one optimizer step on these groups."""
        attempts = [attempt for members in groups for attempt in members]
        lengths = torch.tensor([attempt.tokens for attempt in attempts])
        weights = token_weights(
            lengths,
            self.config.loss_type,
            max_length=self.config.max_completion_length,
            batch_tokens=batch_tokens,
        ).tolist()
        rows = [
            replace(row, weight=weight)
            for attempt, weight in zip(attempts, weights, strict=True)
            for row in attempt.rows
        ]
        turns = sum(int(np.isfinite(row.returns).sum()) for row in rows if row.returns is not None)
        loss = 0.0
        for batch in self._pack(rows, self._scorer):
            part, sums = self._loss(batch, int(lengths.sum()), turns)
            part.backward()  # type: ignore[no-untyped-call]
            totals.add(sums)
            loss += sums["loss"]
        norm = self._guard.step(loss)
        totals.step(norm)
        if self.critic is not None:
            self.critic.step(self._schedule_factor, finite=norm is not None)
        self._skipped_in_a_row = 0 if norm is not None else self._skipped_in_a_row + 1
        if self._skipped_in_a_row >= self.config.max_skipped_updates:
            raise DivergedError(
                f"the loss or its gradient was not finite in {self._skipped_in_a_row} optimizer steps in a "
                f"row (last loss {loss}, step {self.step}): the weights are those of the last finite step; "
                "go back to a checkpoint and lower learning_rate"
            )

    def _loss(self, batch: Batch, step_tokens: int, step_turns: int) -> tuple[Tensor, dict[str, float]]:
        """Return a batch's share of the loss of a step of so many tokens, and what the metrics add up."""
        config = self.config
        hidden = None if self.critic is None else self._scorer.hidden(batch)
        logprobs, spread = self._scorer.score(batch, entropy_gradient=config.entropy_coef > 0, hidden=hidden)
        old, weights = batch.old_logprobs_N, batch.weights_N
        ratio = importance_ratio(logprobs, old, batch.sequences_N, config.importance_sampling_level)
        losses, clipped = surrogate(
            ratio,
            logprobs,
            batch.advantages_N,
            loss_type=config.loss_type,
            epsilon=config.epsilon,
            epsilon_high=config.clip_high,
            delta=config.delta,
        )
        if batch.corrections_N is not None:
            losses = losses * batch.corrections_N
        policy = (losses * weights).sum()
        loss = policy
        parts = {"policy_loss": policy.detach()}
        if batch.reference_logprobs_N is not None:
            kl = kl_k3(logprobs, batch.reference_logprobs_N)
            weighed = kl * ratio if config.use_bias_correction_kl else kl
            loss = loss + config.beta * (weighed * weights).sum()
            parts["kl"] = kl.detach().sum()
        if config.entropy_coef:
            # The mean over the step's tokens, as in TRL: what the bonus is worth does not hang on loss_type.
            loss = loss - config.entropy_coef * spread.sum() / step_tokens
        if self.critic is not None and hidden is not None:
            value, value_parts = self.critic.loss(hidden, batch)
            loss = loss + value / max(step_turns, 1)
            parts |= value_parts
        with torch.no_grad():
            parts["loss"] = loss.detach()
            parts["entropy"] = spread.sum()
            parts["sampling_kl"] = kl_k3(logprobs, old).sum()
            parts["clipped"] = clipped.sum()
        # One transfer for all: on a GPU each number fetched alone would wait for the device.
        values = torch.stack([value.float() for value in parts.values()]).tolist()
        return loss, dict(zip(parts, values, strict=True)) | {"tokens": float(len(logprobs))}


def _correction(
    old_logprobs: NDArray[np.float32], sampler_logprobs: NDArray[np.float32], config: GRPOConfig
) -> NDArray[np.float32]:
    """Return the correction of one row's tokens."""
    weights: NDArray[np.float32] = sampler_correction(
        torch.from_numpy(old_logprobs),
        torch.from_numpy(sampler_logprobs),
        torch.zeros(len(old_logprobs), dtype=torch.int64),
        mode=config.importance_sampling_mode,
        clip_max=config.importance_sampling_clip_max,
        clip_min=config.importance_sampling_clip_min,
    ).numpy()
    return weights
