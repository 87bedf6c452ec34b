"""Groups of episodes in, better weights out: the policy gradient update.

An algorithm is a choice of functions: an estimator of advantages (:mod:`art_trainer.estimators`), a ratio
(:mod:`art_trainer.importance`), a surrogate (:mod:`art_trainer.losses`) and weights
(:mod:`art_trainer.loss_weights`). This module brings the numbers to them and takes the steps. Where the
estimator needs values, a critic (:mod:`art_trainer.critic`) gives them and learns along: that is PPO.

The weights that sampled are the weights being trained, in the same process and precision, so the log-probs
recorded while sampling serve as the old ones. Only where sampling was filtered (top-p and the like), or where
the sampler was another program, are they taken again, once a step. Dropout is off, as it was while sampling:
the probability ratio of the first update is 1.

In several processes (:mod:`art_trainer.processes`) each is given all groups, computes with its share of them,
and takes the same steps as the others.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from art_trainer.attempts import Attempt, trained_attempts
from art_trainer.config import GRPOConfig
from art_trainer.critic import Critic, Valuation
from art_trainer.episodes import Group
from art_trainer.errors import DivergedError
from art_trainer.importance import importance_ratio, sampler_correction
from art_trainer.loss_weights import token_weights
from art_trainer.losses import kl_k3, surrogate
from art_trainer.metrics import UpdateTotals, batch_metrics, correction_metrics
from art_trainer.optimization import UpdateGuard, make_optimizer, schedule_factor, trained_parameters
from art_trainer.packing import Batch, Row
from art_trainer.processes import Processes, current_processes
from art_trainer.scoring import Scorer
from art_trainer.sharding import ShardedModel
from art_trainer.shared_runner import SharedRunner


class Learner:
    """Trains a model on groups of episodes.

    Args:
        model: A Hugging Face causal language model, maybe with PEFT adapters; it is switched to eval mode.
        config: The settings.
        processes: Who else trains it; by default those of PyTorch's process group, if there is one. Weights
            start as the main process's.

    Attributes:
        step: Updates done so far; the schedule's place.
        optimizer: AdamW over the weights that require a gradient; with ``sharding`` over this process's
            pieces of them.
        rng: Shuffles groups into optimizer steps.
        reference: A frozen copy of the weights at the start, where ``config.beta`` asks for a reference and
            the model has no adapter to switch off.
        critic: The value head and its training, where the advantage estimator needs values.

    Raises:
        UnsupportedModelError: Where the model has nothing to train or cannot be scored.
    """

    def __init__(self, model: nn.Module, config: GRPOConfig, processes: Processes | None = None) -> None:
        self.model = model.eval()
        self.config = config
        self.processes = processes or current_processes()
        self.processes.spread(trained_parameters(model).values())
        self.step = 0
        self.rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(1,)))
        sharded = config.sharding == "fsdp2" and self.processes.size > 1
        trained = copy.deepcopy(model) if sharded else model
        self._scorer = Scorer(trained, temperature=config.temperature)  # it tries the model: before it is cut
        self._sharded = ShardedModel(trained, self.processes.size) if sharded else None
        self._runner = SharedRunner(config, self.processes, self._scorer, self._sharded)
        self.optimizer = self._make_optimizer(trained)
        self._guard = UpdateGuard(self.optimizer, config.max_grad_norm)
        self._skipped_in_a_row = 0
        self.critic: Critic | None = None
        if config.has_critic:
            self.critic = Critic(self._scorer.hidden_size, config, self._scorer.device)
            self.processes.spread(self.critic.head.parameters())
        self.reference: nn.Module | None = None
        self._reference_scorer = self._scorer
        if config.beta > 0 and not hasattr(model, "disable_adapter"):
            self.reference = copy.deepcopy(model).requires_grad_(False)
            if config.reference_dtype != "model":
                self.reference.to(getattr(torch, config.reference_dtype))
            self._reference_scorer = Scorer(self.reference, temperature=config.temperature)

    def renew_reference(self) -> None:
        """Take the weights as they are now for the reference's, where it is a second model."""
        if self.reference is not None:
            self.reference.load_state_dict(self.model.state_dict())

    def _make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        config = self.config
        return make_optimizer(
            model,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            betas=(config.adam_beta1, config.adam_beta2),
            epsilon=config.adam_epsilon,
            optim=config.optim,
        )

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
        config, learning_rate = self.config, self.learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        whole = [group for group in groups if group.whole]
        valuation = self._assess(whole)
        kept, sampler_metrics = self._rescored(trained_attempts(whole, config, self.critic, valuation))
        steps = min(config.steps_per_generation, len(kept))
        batch_tokens = sum(attempt.tokens for members in kept for attempt in members) / max(steps, 1)
        totals = UpdateTotals()
        for _ in range(config.num_iterations if kept else 0):
            for part in np.array_split(self.rng.permutation(len(kept)), steps):
                self._optimizer_step([kept[i] for i in part], batch_tokens, totals)
        if self._sharded is not None:
            self._sharded.copy_to(self.model)
        self.step += 1
        metrics = batch_metrics([*groups, *replaced]) | totals.metrics(config)
        metrics |= sampler_metrics | ({} if valuation is None else valuation.metrics())
        metrics["learning_rate"] = learning_rate
        if config.dynamic_sampling:
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

    def whole_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer over :attr:`model`, to write a checkpoint; each process has to ask."""
        if self._sharded is None:
            return self.optimizer
        plain = self._make_optimizer(self.model)
        self._sharded.gather_moments(self.optimizer, plain)
        return plain

    def take_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Go on from :attr:`model` and from :meth:`whole_optimizer`'s, read from a checkpoint."""
        if self._sharded is not None:
            self._sharded.copy_from(self.model)
            self._sharded.scatter_moments(optimizer, self.optimizer)

    def _assess(self, whole: Sequence[Group]) -> Valuation | None:
        """Ask the critic, where there is one, what each turn is worth."""
        if self.critic is None:
            return None
        head = self.critic.head
        self.critic.observe(whole)
        return self.critic.assess(
            whole,
            lambda rows: self._runner.numbers(
                self._scorer, rows, lambda batch: head(self._scorer.hidden(batch))
            ),
        )

    def _rescored(self, groups: list[list[Attempt]]) -> tuple[list[list[Attempt]], dict[str, float]]:
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
            rows = self._with_column(rows, "old_logprobs", self._runner.logprobs(self._scorer, rows))
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
                logprobs = self._runner.logprobs(self._reference_scorer, rows)
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

    def _optimizer_step(
        self, groups: Sequence[list[Attempt]], batch_tokens: float, totals: UpdateTotals
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
        loss = self._backward(rows, int(lengths.sum()), totals)
        if self._sharded is None:
            self.processes.add_up_gradients(trained_parameters(self.model).values())
        norm = self._guard.step(loss)
        totals.step(norm)
        if self.critic is not None:
            self.processes.add_up_gradients(self.critic.head.parameters())
            self.critic.step(self._schedule_factor, finite=norm is not None)
        self._skipped_in_a_row = 0 if norm is not None else self._skipped_in_a_row + 1
        if self._skipped_in_a_row >= self.config.max_skipped_updates:
            skipped, self._skipped_in_a_row = self._skipped_in_a_row, 0  # who goes on has as many again
            raise DivergedError(
                f"the loss or its gradient was not finite in {skipped} optimizer steps in a row (last loss "
                f"{loss}, step {self.step}): the weights are those of the last finite step. "
                "Go on from them, or from an earlier checkpoint, with a lower learning_rate"
            )

    def _backward(self, rows: Sequence[Row], step_tokens: int, totals: UpdateTotals) -> float:
        """Add this process's share of a step's gradients to what there is; return the whole step's loss."""
        turns = sum(int(np.isfinite(row.returns).sum()) for row in rows if row.returns is not None)
        sums: list[dict[str, float]] = []
        for batch, counts in self._runner.batches(rows, self._scorer):
            part, found = self._runner.run(self._scorer, partial(self._loss, batch, step_tokens, turns))
            (part if counts else 0 * part).backward()  # type: ignore[no-untyped-call]
            if counts:
                sums.append(found)
        said: list[list[dict[str, float]]] = self.processes.gather(sums)
        every = [one for of_process in said for one in of_process]
        for one in every:
            totals.add(one)
        return sum((one["loss"] for one in every), 0.0)

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
            parts["ratio_min"], parts["ratio_max"] = torch.aminmax(ratio)
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
