"""Supervised learning: cross-entropy on the replies of episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from art_trainer.episodes import Episode
from art_trainer.errors import DivergedError
from art_trainer.optimization import UpdateGuard, make_optimizer, schedule_factor
from art_trainer.packing import Row, pack
from art_trainer.policy import TrainablePolicy
from art_trainer.scoring import Scorer

MAX_SKIPPED = 10
"""Steps in a row that may be skipped for a loss or gradient that is not finite."""


@dataclass(frozen=True, slots=True)
class ImitationConfig:
    """Settings of :func:`imitate`."""

    epochs: int = 1
    """Passes over the episodes."""
    batch_size: int = 32
    """Token histories an optimizer step: episodes, unless a window of history cuts them into more."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW; it falls in a line to ``lr_final_ratio`` of it."""
    lr_final_ratio: float = 0.1
    """What is left of the learning rate at the end."""
    warmup_steps: int = 0
    """Optimizer steps of the linear way up."""
    weight_decay: float = 0.0
    """AdamW's weight decay."""
    max_grad_norm: float = 1.0
    """Longest gradient a step takes."""
    tokens_per_microbatch: int = 4096
    """Most padded tokens in one forward pass."""


def imitate(
    policy: TrainablePolicy,
    episodes: Sequence[Episode],
    config: ImitationConfig | None = None,
    *,
    rng: np.random.Generator,
    on_step: Callable[[dict[str, float]], None] | None = None,
) -> list[float]:
    """Train the policy to give the replies of the episodes.

    Args:
        policy: Trained in place; its version rises by one.
        episodes: Demonstrations, corrections, or the policy's own best episodes.
        config: The settings.
        rng: Shuffles the histories.
        on_step: Called after each optimizer step with ``step``, ``steps`` (of how many), ``loss``,
            ``learning_rate`` and ``grad_norm``.

    Returns:
        The loss of each optimizer step before it was taken, nats per token.

    Raises:
        ValueError: Where the episodes have no sampled token.
        DivergedError: After ten steps in a row whose loss or gradient was not finite.
    """
    config = config or ImitationConfig()
    rows = [row for index, episode in enumerate(episodes) for row in _rows(index, episode)]
    if not rows:
        raise ValueError(
            f"none of the {len(episodes)} episodes has a sampled token: use collect_demonstrations, or a "
            "policy that records tokens"
        )
    steps = config.epochs * -(-len(rows) // config.batch_size)
    training = _Imitation(policy, config, steps)
    losses: list[float] = []
    for _ in range(config.epochs):
        order = rng.permutation(len(rows))
        for start in range(0, len(rows), config.batch_size):
            numbers = training.step([rows[index] for index in order[start : start + config.batch_size]])
            losses.append(numbers["loss"])
            if on_step is not None:
                on_step(numbers)
    policy.version += 1
    return losses


class _Imitation:
    """The optimizer of one call of :func:`imitate`."""

    def __init__(self, policy: TrainablePolicy, config: ImitationConfig, steps: int) -> None:
        policy.model.eval()
        self._config = config
        self._steps = steps
        self._scorer = Scorer(policy.model)
        self._optimizer = make_optimizer(
            policy.model, learning_rate=config.learning_rate, weight_decay=config.weight_decay
        )
        self._guard = UpdateGuard(self._optimizer, config.max_grad_norm)
        self._done = self._skipped = 0

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Take one optimizer step; return its numbers."""
        config = self._config
        rate = config.learning_rate * schedule_factor(
            self._done,
            self._steps,
            "linear",
            warmup_steps=config.warmup_steps,
            final_ratio=config.lr_final_ratio,
        )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        loss = self._backward(rows)
        norm = self._guard.step(loss)
        self._done += 1
        self._skipped = 0 if norm is not None else self._skipped + 1
        if self._skipped >= MAX_SKIPPED:
            raise DivergedError(
                f"{self._skipped} optimizer steps in a row had no finite loss or gradient: "
                "lower learning_rate"
            )
        numbers = {"step": self._done, "steps": self._steps, "loss": loss, "learning_rate": rate}
        return {**numbers, "grad_norm": norm if norm is not None else float("nan")}

    def _backward(self, rows: Sequence[Row]) -> float:
        """Add the gradient of the mean loss of the rows' tokens to the weights; return the loss."""
        scorer = self._scorer
        tokens = sum(row.targets.size for row in rows)
        loss = 0.0
        for batch in pack(
            rows, self._config.tokens_per_microbatch, share=scorer.shares_prefixes, device=scorer.device
        ):
            part = -scorer.score(batch)[0].sum() / tokens
            part.backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
        return loss


def _rows(index: int, episode: Episode) -> list[Row]:
    ones = np.ones(len(episode.turns) + 1)  # a reply that was never answered has its tokens too
    rows = [
        Row.from_history(history, advantages_T=ones, weight=1.0, group=index) for history in episode.histories
    ]
    return [row for row in rows if row.targets.size]
