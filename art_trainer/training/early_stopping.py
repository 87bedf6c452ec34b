"""Early stopping: which checkpoint of a run is best, and whether the run still improves.

The rules are those of Transformers' ``metric_for_best_model`` and its ``EarlyStoppingCallback``: the best is
the first of the highest; a rise of no more than the threshold is kept as the best, but does not count as
getting better. It only records evaluations; the trainer saves, stops and loads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from art_trainer.config import BestMetric, GRPOConfig
from art_trainer.errors import ConfigError

_USUAL: tuple[BestMetric, ...] = ("eval_success", "eval_reward")
"""What is compared unless a metric is named: the first that the evaluation has."""
_LOWER_IS_BETTER = ("eval_turns", "eval_invalid_actions")


class EarlyStopping:
    """Tracks the best evaluation of a run (Transformers' ``EarlyStoppingCallback``).

    Args:
        config: ``metric_for_best_model`` (``None``: the success rate, or the mean reward if the first
            evaluation has none), ``greater_is_better`` (``None``: yes, but for turns and invalid actions),
            ``early_stopping_patience`` and ``early_stopping_threshold``.

    Attributes:
        metric: The full name of what is compared; ``None`` if that waits for the first evaluation.
        best_step: After which step the best evaluation was; ``None`` before the first.
        best_value: Its value.
    """

    def __init__(self, config: GRPOConfig) -> None:
        self.metric: str | None = config.metric_for_best_model
        self.best_step: int | None = None
        self.best_value: float | None = None
        self._greater_is_better = config.greater_is_better
        self._patience = config.early_stopping_patience
        self._threshold = config.early_stopping_threshold
        self._waited = 0
        self._last_step: int | None = None

    @property
    def should_stop(self) -> bool:
        """Whether the patience is used up: that many evaluations in a row did not improve."""
        return self._patience is not None and self._waited >= self._patience

    def update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Record an evaluation; return whether it is the best so far.

        A step that was already recorded, as after a resume, changes nothing; nor does an evaluation without
        the metric, because a fault ended every episode.

        Args:
            step: After which training step; they grow.
            metrics: Of :meth:`art_trainer.training.trainer.GRPOTrainer.evaluate`.

        Raises:
            ConfigError: If the metric that was named is not in the first evaluation.
        """
        if self.metric is None:
            self.metric = next((name for name in _USUAL if name in metrics), None)
        value = None if self.metric is None else metrics.get(self.metric)
        if value is None:
            there = [name for name in _USUAL if name in metrics]
            if self._last_step is None and self.metric in _USUAL and there:
                raise ConfigError(
                    f"metric_for_best_model is {self.metric!r}, but the first evaluation has none: the "
                    f"environment does not report it, or no episode was finished. Set {there[0]!r}, or null"
                )
            return False
        if self._last_step is not None and step <= self._last_step:
            return False
        self._last_step = step
        rise = self._rise(value)
        self._waited = 0 if self.best_value is None or rise > self._threshold else self._waited + 1
        if rise > 0:
            self.best_step, self.best_value = step, value
        return rise > 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it: JSON-able, for :meth:`restore`."""
        return {
            "metric": self.metric,
            "waited": self._waited,
            "last_step": self._last_step,
            "best_step": self.best_step,
            "best_value": self.best_value,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state`; one of another metric is of no use and is left."""
        if self.metric is not None and state["metric"] not in (None, self.metric):
            return
        self.metric = state["metric"] or self.metric
        self._waited = int(state["waited"])
        self._last_step = state["last_step"]
        self.best_step, self.best_value = state["best_step"], state["best_value"]

    def _rise(self, value: float) -> float:
        """How much better a value is than the best so far; not above 0 for one that is no number."""
        if math.isnan(value):
            return -math.inf
        if self.best_value is None:
            return math.inf
        greater = self._greater_is_better
        if greater is None:
            greater = self.metric not in _LOWER_IS_BETTER
        return value - self.best_value if greater else self.best_value - value
