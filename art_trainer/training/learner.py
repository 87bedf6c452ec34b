"""Groups of episodes in, better weights out: the policy gradient update.

An algorithm is a choice of functions: an estimator of advantages (:mod:`art_trainer.algorithms.advantages`),
and a ratio, a surrogate and token weights (:mod:`art_trainer.algorithms.losses`). This module brings the
numbers to them and takes the steps. If the estimator needs values, a critic
(:mod:`art_trainer.training.critic`) gives them and learns along: that is PPO.

The weights that sampled are the weights being trained, in the same process and precision, so the log-probs
recorded while sampling serve as the old ones. Only if sampling was filtered (top-p and the like), or if the
sampler was another program, are they taken again, once a step; if both, also under the same filters, to
compare them with the sampler's. Dropout is off, as it was while sampling: the
probability ratio of the first update is 1.

In several processes (:mod:`art_trainer.training.distributed`) each is given all groups, computes with its
share of them, and takes the same steps as the others.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from art_trainer.algorithms.advantages import estimate
from art_trainer.algorithms.losses import kl_k3, policy_loss, sampler_correction, token_weights
from art_trainer.config import GRPOConfig
from art_trainer.inference.sampling import SamplingParams, batch_logprobs
from art_trainer.models.logprobs import Scorer
from art_trainer.models.memory import MicroBatchLimit, release_memory, trim_memory
from art_trainer.models.optim import UpdateGuard, make_optimizer, schedule_factor, trained_parameters
from art_trainer.models.packing import Batch, TokenRow, pack
from art_trainer.training.critic import Critic, ValueEstimates
from art_trainer.training.distributed import ProcessGroup, current_process_group, shares
from art_trainer.training.fsdp import ShardedModel
from art_trainer.training.group_filter import has_signal, is_trained_on
from art_trainer.training.metrics import UpdateTotals, batch_metrics, correction_metrics
from art_trainer.types import Group

T = TypeVar("T")


Sample = tuple[TokenRow, ...]
"""The rows of one episode of a kept group."""


def build_training_samples(
    whole: Sequence[Group],
    config: GRPOConfig,
    critic: Critic | None = None,
    estimates: ValueEstimates | None = None,
) -> list[list[Sample]]:
    """Return the attempts to train on, by group; rows have their group's index and no weight yet."""
    kept = []
    estimated = estimate(whole, config, None if estimates is None else estimates.values)
    for index, (group, values) in enumerate(zip(whole, estimated, strict=True)):
        if config.drop_zero_variance_groups and not has_signal(group, values, config):
            continue
        members = []
        for member, (episode, advantages_T) in enumerate(zip(group.episodes, values, strict=True)):
            if not is_trained_on(episode, config):
                continue
            rows = []
            for history in episode.histories:
                row = TokenRow.from_history(history, advantages_T=advantages_T, weight=0.0, group=index)
                if critic is not None and estimates is not None:
                    row = critic.with_targets(row, history, estimates, index, member)
                rows.append(row)
            members.append(tuple(rows))
        if any(map(_tokens, members)):
            kept.append(members)
    return kept


def _tokens(sample: Sample) -> int:
    """Return how many tokens of an episode are trained on."""
    return sum(row.targets.size for row in sample)


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
        reference: A frozen copy of the weights at the start, if ``config.beta`` is above 0 and the model has
            no adapter to switch off.
        critic: The value head and its training, if the advantage estimator needs values.
        microbatches: The size of micro-batches, which is halved when memory runs out.

    Raises:
        UnsupportedModelError: If the model has nothing to train or cannot be scored.
    """

    def __init__(self, model: nn.Module, config: GRPOConfig, processes: ProcessGroup | None = None) -> None:
        self.model = model.eval()
        self.config = config
        self.processes = processes or current_process_group()
        self.processes.broadcast(trained_parameters(model).values())
        self.step = 0
        self.rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(1,)))
        sharded = config.sharding == "fsdp2" and self.processes.size > 1
        trained = copy.deepcopy(model) if sharded else model
        self._scorer = Scorer(trained, temperature=config.temperature)  # it tries the model: before it is cut
        self._sharded = ShardedModel(trained, self.processes.size) if sharded else None
        self.optimizer = self._make_optimizer(trained)
        self._guard = UpdateGuard(self.optimizer, config.max_grad_norm)
        self.microbatches = MicroBatchLimit(config.tokens_per_microbatch, self._scorer.device)
        self.critic: Critic | None = None
        if config.has_critic:
            self.critic = Critic(self._scorer.hidden_size, config, self._scorer.device)
            self.processes.broadcast(self.critic.head.parameters())
        self.reference: nn.Module | None = None
        self._reference_scorer = self._scorer
        if config.beta > 0 and not hasattr(model, "disable_adapter"):
            self.reference = copy.deepcopy(model).requires_grad_(False)
            if config.reference_dtype != "model":
                self.reference.to(getattr(torch, config.reference_dtype))
            self._reference_scorer = Scorer(self.reference, temperature=config.temperature)

    def sync_reference(self) -> None:
        """Take the weights as they are now for the reference's, if it is a second model."""
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
            The step's metrics, see :mod:`art_trainer.training.metrics`.

        Raises:
            DivergedError: After ``max_skipped_updates`` optimizer steps in a row whose loss or gradient was
                not finite.
        """
        start = time.perf_counter()
        config = self.config
        whole = [group for group in groups if group.whole]
        estimates = self._estimate_values(whole)
        kept, sampler_metrics = self._add_logprob_columns(
            build_training_samples(whole, config, self.critic, estimates)
        )
        steps = min(config.steps_per_generation, len(kept))
        batch_tokens = sum(_tokens(sample) for members in kept for sample in members) / max(steps, 1)
        totals = UpdateTotals()
        for _ in range(config.num_iterations if kept else 0):
            for part in np.array_split(self.rng.permutation(len(kept)), steps):
                self._optimizer_step([kept[i] for i in part], batch_tokens, totals)
        if self._sharded is not None:
            self._sharded.copy_to(self.model)
        release_memory(self._scorer.device)
        learning_rate = config.learning_rate * self._schedule_factor
        self.step += 1
        metrics = batch_metrics([*groups, *replaced]) | totals.metrics(config)
        metrics["learning_rate"] = learning_rate
        metrics |= sampler_metrics | ({} if estimates is None else estimates.metrics())
        if config.dynamic_sampling:
            metrics["resampled_groups"] = float(len(replaced))
        metrics["time/update"] = time.perf_counter() - start
        return metrics

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs beside weights and optimizer, JSON-able."""
        return {
            "step": self.step,
            "skipped_in_a_row": self._guard.skipped,
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state` returned."""
        self.step = int(state["step"])
        self._guard.skipped = int(state["skipped_in_a_row"])
        self.rng.bit_generator.state = state["rng"]

    def full_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer over :attr:`model`, to write a checkpoint; each process has to ask."""
        if self._sharded is None:
            return self.optimizer
        plain = self._make_optimizer(self.model)
        self._sharded.gather_moments(self.optimizer, plain)
        return plain

    def load_full_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Continue from :attr:`model` and from :meth:`full_optimizer`'s, read from a checkpoint."""
        if self._sharded is not None:
            self._sharded.copy_from(self.model)
            self._sharded.scatter_moments(optimizer, self.optimizer)

    def _estimate_values(self, whole: Sequence[Group]) -> ValueEstimates | None:
        """Ask the critic, if there is one, what each turn is worth."""
        if self.critic is None:
            return None
        head = self.critic.head
        return self.critic.assess(
            whole,
            lambda rows: self._numbers(self._scorer, rows, lambda batch: head(self._scorer.hidden(batch))),
        )

    def _add_logprob_columns(self, groups: list[list[Sample]]) -> tuple[list[list[Sample]], dict[str, float]]:
        """Add the columns that take a pass of their own: the reference's log-probs, and the old ones again.

        Once, before the first optimizer step: later passes meet the policy that sampled, not a newer one.

        Returns:
            The groups, and metrics of the sampler if it is compared with the learner.
        """
        config = self.config
        rows = [row for members in groups for sample in members for row in sample]
        metrics: dict[str, float] = {}
        if config.filters_sampling or config.importance_sampling_correction:
            reported = [row.old_logprobs for row in rows]
            logprobs = self._logprobs(self._scorer, rows)
            rows = [replace(row, old_logprobs=x) for row, x in zip(rows, logprobs, strict=True)]
            if config.importance_sampling_correction:
                # Compared are log-probs of the same distribution: the one that was sampled from.
                if config.filters_sampling:
                    params = SamplingParams.for_training(config)
                    filtered = partial(batch_logprobs, self._scorer, params=params)
                    logprobs = self._numbers(self._scorer, rows, filtered)
                columns = zip(rows, logprobs, reported, strict=True)
                rows = [_corrected(row, own, theirs, config) for row, own, theirs in columns]
                metrics = correction_metrics(rows, logprobs, reported)
        if config.beta:
            trained: Any = self.model if self._sharded is None else self._sharded.model
            with trained.disable_adapter() if self.reference is None else nullcontext():
                logprobs = self._logprobs(self._reference_scorer, rows)
            rows = [replace(row, reference_logprobs=x) for row, x in zip(rows, logprobs, strict=True)]
        fresh = iter(rows)
        return [[tuple(next(fresh) for _ in sample) for sample in members] for members in groups], metrics

    def _optimizer_step(
        self, groups: Sequence[list[Sample]], batch_tokens: float, totals: UpdateTotals
    ) -> None:
        """Take one optimizer step on these groups."""
        samples = [sample for members in groups for sample in members]
        lengths = torch.tensor([_tokens(sample) for sample in samples])
        weights = token_weights(
            lengths,
            self.config.loss_type,
            max_length=self.config.max_completion_length,
            batch_tokens=batch_tokens,
        ).tolist()
        rows = [
            replace(row, weight=weight)
            for sample, weight in zip(samples, weights, strict=True)
            for row in sample
        ]
        loss = self._backward(rows, int(lengths.sum()), totals)
        if self._sharded is None:
            self.processes.all_reduce_gradients(trained_parameters(self.model).values())
        norm = self._guard.step(loss, self.config.learning_rate * self._schedule_factor)
        totals.step(norm)
        if self.critic is not None:
            self.processes.all_reduce_gradients(self.critic.head.parameters())
            self.critic.step(self._schedule_factor, finite=norm is not None)
        self._guard.check(self.config.max_skipped_updates)

    def _backward(self, rows: Sequence[TokenRow], step_tokens: int, totals: UpdateTotals) -> float:
        """Compute this process's share of a step's gradients; return the whole step's loss."""
        turns = sum(int(np.isfinite(row.returns).sum()) for row in rows if row.returns is not None)

        def compute(tokens: int) -> list[dict[str, float]]:
            self._guard.clear_gradients()
            if self.critic is not None:
                self.critic.head.zero_grad()
            sums: list[dict[str, float]] = []
            for batch, counts in self._batches(rows, self._scorer, tokens):
                part, found = self._run(self._scorer, partial(self._loss, batch, step_tokens, turns))
                (part if counts else 0 * part).backward()  # type: ignore[no-untyped-call]
                del part
                trim_memory(self._scorer.device)
                if counts:
                    sums.append(found)
            return sums

        sums = self._fitting(rows, self._scorer, compute)
        gathered: list[list[dict[str, float]]] = self.processes.gather(sums)
        every = [batch_sums for of_process in gathered for batch_sums in of_process]
        for batch_sums in every:
            totals.add(batch_sums)
        return sum((batch_sums["loss"] for batch_sums in every), 0.0)

    def _fitting(self, rows: Sequence[TokenRow], scorer: Scorer, compute: Callable[[int], T]) -> T:
        """Compute with micro-batches that fit; sharded processes, which compute in step, cannot repeat."""
        if self._sharded is not None and scorer is self._scorer:
            return compute(self.microbatches.tokens)
        return self.microbatches.run(compute, max((len(row.token_ids) for row in rows), default=0))

    def _batches(self, rows: Sequence[TokenRow], scorer: Scorer, tokens: int) -> Iterator[tuple[Batch, bool]]:
        """Pack this process's share of rows that all processes have: whole groups.

        FSDP requires equal forward counts on all ranks: ranks with fewer batches run dummy batches. Prompts
        are not shared then, because a prompt's keys and values would need their layer's weights again at a
        moment that FSDP does not know of.

        Yields:
            Batches, and whether they count.
        """
        costs: dict[int, int] = {}
        for row in rows:
            costs[row.group] = costs.get(row.group, 0) + len(row.token_ids)
        groups = list(costs)
        share = shares(list(costs.values()), self.processes.size)[self.processes.rank]
        mine = {groups[index] for index in share}
        own = [row for row in rows if row.group in mine]
        sharded = self._sharded is not None and scorer is self._scorer
        prefixes = self.config.share_prefixes and scorer.shares_prefixes and not sharded
        batches: Iterable[Batch] = pack(own, tokens, share=prefixes, device=scorer.device)
        missing = 0
        if sharded:
            batches = list(batches)
            missing = max(self.processes.gather(len(batches))) - len(batches)
        yield from ((batch, True) for batch in batches)
        dummy_rows = [row for row in rows if row.targets.size][:1]
        for _ in range(missing):
            yield next(pack(dummy_rows, 1, share=False, device=scorer.device)), False

    def _run(self, scorer: Scorer, compute: Callable[[], T]) -> T:
        """Compute with a scorer's model, be it sharded or not."""
        if self._sharded is None or scorer is not self._scorer:
            return compute()
        return self._sharded.run(compute)

    @torch.no_grad()
    def _numbers(
        self, scorer: Scorer, rows: Sequence[TokenRow], of_batch: Callable[[Batch], Tensor]
    ) -> list[NDArray[np.float32]]:
        """Return for each row the numbers of its targets, which ``of_batch`` gives for a whole batch."""
        # Each process knows the numbers of its own rows, and adds zeros for the others'.
        ends = np.cumsum([row.targets.size for row in rows])
        every = np.zeros(ends[-1] if rows else 0)
        parts = dict(zip(map(id, rows), np.split(every, ends[:-1]), strict=False))

        def compute(tokens: int) -> None:
            for batch, counts in self._batches(rows, scorer, tokens):
                numbers = self._run(scorer, partial(of_batch, batch)).cpu().numpy()
                places = np.cumsum([row.targets.size for row in batch.rows])[:-1]
                for row, values in zip(batch.rows, np.split(numbers, places), strict=True) if counts else ():
                    parts[id(row)][:] = values

        self._fitting(rows, scorer, compute)
        self.processes.all_reduce_sum(torch.from_numpy(every))
        return [parts[id(row)].astype(np.float32) for row in rows]

    def _logprobs(self, scorer: Scorer, rows: Sequence[TokenRow]) -> list[NDArray[np.float32]]:
        """Return for each row the log-probs of its targets."""
        return self._numbers(scorer, rows, lambda batch: scorer.score(batch)[0])

    def _loss(self, batch: Batch, step_tokens: int, step_turns: int) -> tuple[Tensor, dict[str, float]]:
        """Return a batch's share of the loss of a step of so many tokens, and sums for the metrics."""
        config = self.config
        hidden = None if self.critic is None else self._scorer.hidden(batch)
        logprobs, entropies = self._scorer.score(
            batch, entropy_gradient=config.entropy_coef > 0, hidden=hidden
        )
        found = policy_loss(
            config,
            logprobs_N=logprobs,
            old_logprobs_N=batch.old_logprobs_N,
            advantages_N=batch.advantages_N,
            weights_N=batch.weights_N,
            sequences_N=batch.sequences_N,
            reference_logprobs_N=batch.reference_logprobs_N,
            corrections_N=batch.corrections_N,
        )
        loss = found.loss
        parts = {"policy_loss": found.policy, "clipped": found.clipped_N.sum(), "entropy": entropies.sum()}
        if found.kl_N is not None:
            parts["kl"] = found.kl_N.sum()
        if config.entropy_coef:
            # The mean over the step's tokens, as in TRL: the bonus does not depend on loss_type.
            loss = loss - config.entropy_coef * parts["entropy"] / step_tokens
        if self.critic is not None and hidden is not None:
            value, value_parts = self.critic.loss(hidden, batch)
            loss = loss + value / max(step_turns, 1)
            parts |= value_parts
        with torch.no_grad():
            parts["loss"] = loss
            # From the sampler to the policy: unbiased, since the tokens are the sampler's.
            parts["sampling_kl"] = kl_k3(batch.old_logprobs_N, logprobs).sum()
            parts["ratio_min"], parts["ratio_max"] = torch.aminmax(found.ratio_N)
            # One transfer for all: on a GPU each number fetched alone would wait for the device.
            values = torch.stack([value.float() for value in parts.values()]).tolist()
        return loss, dict(zip(parts, values, strict=True)) | {"tokens": float(len(logprobs))}


def _corrected(
    row: TokenRow, own: NDArray[np.float32], reported: NDArray[np.float32], config: GRPOConfig
) -> TokenRow:
    """Return a row with the importance weights of its tokens, from the learner's and sampler's log-probs."""
    weights_N = sampler_correction(
        torch.from_numpy(own),
        torch.from_numpy(reported),
        torch.zeros(row.targets.size, dtype=torch.int64),
        mode=config.importance_sampling_mode,
        clip_max=config.importance_sampling_clip_max,
        clip_min=config.importance_sampling_clip_min,
    )
    return replace(row, corrections=weights_N.numpy())
