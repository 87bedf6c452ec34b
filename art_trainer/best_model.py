"""Which checkpoint of a run was best, and whether the run still gets better.

The rules are those of Transformers' ``metric_for_best_model`` and its ``EarlyStoppingCallback``: the best is
the first of the highest; a rise of no more than the threshold is kept as the best, but does not count as
getting better. It only listens to evaluations; who trains saves, stops and loads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art_gym.errors import did_you_mean
from art_trainer.errors import ConfigError

if TYPE_CHECKING:
    from art_trainer.config import GRPOConfig

METRICS = ("eval_success", "eval_reward", "eval_turns", "eval_invalid_actions")
"""What an evaluation in training measures; ``success`` stands for ``eval_success``, and so on."""

_LOWER_IS_BETTER = ("eval_turns", "eval_invalid_actions")


def metric_name(wanted: str) -> str:
    """The full name of a metric of :data:`METRICS`, which may be given without ``eval_``.

    Raises:
        ConfigError: For any other name; names the near miss.
    """
    name = wanted if wanted.startswith("eval_") else f"eval_{wanted}"
    if name not in METRICS:
        raise ConfigError(f"metric_for_best_model is {wanted!r}{did_you_mean(name, METRICS)}")
    return name


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one evaluation means for the run."""

    improved: bool
    """It is the best so far: its weights are worth keeping."""
    stop: bool
    """As many evaluations as there was patience for have passed without getting better."""


class BestModel:
    """Listens to the evaluations of a run.

    Args:
        metric: Which figure is compared, see :data:`METRICS`; ``None``: the success rate, or the mean reward
            where the first evaluation tells no success.
        greater_is_better: Which way is up; ``None``: up, but for turns and invalid actions.
        patience: Evaluations in a row that may pass without getting better; ``None``: any number.
        threshold: How much better counts as getting better, in the metric's unit.

    Attributes:
        best_step: After which step the best evaluation was; ``None`` before the first.
        best_value: What it said.

    Raises:
        ConfigError: For an unknown metric, a patience below 1 or a threshold below 0.
    """

    def __init__(
        self,
        metric: str | None = None,
        *,
        greater_is_better: bool | None = None,
        patience: int | None = None,
        threshold: float = 0.0,
    ) -> None:
        if patience is not None and patience < 1:
            raise ConfigError(f"early_stopping_patience is {patience}: set at least 1, or null never to stop")
        if not 0 <= threshold < math.inf:
            raise ConfigError(f"early_stopping_threshold is {threshold}: set a finite number from 0")
        self._metric = None if metric is None else metric_name(metric)
        self._greater_is_better = greater_is_better
        self._patience = patience
        self._threshold = threshold
        self._waited = 0
        self._heard_step: int | None = None
        self.best_step: int | None = None
        self.best_value: float | None = None

    @property
    def metric(self) -> str | None:
        """The full name of what is compared; ``None`` where that waits for the first evaluation."""
        return self._metric

    def hear(self, step: int, metrics: Mapping[str, float]) -> Verdict:
        """Take in an evaluation.

        One of a step that was already heard, as a resumed run makes, changes nothing; nor does one that has
        no figure because a fault ended every episode.

        Args:
            step: After which training step; they grow.
            metrics: Of :meth:`art_trainer.trainer.GRPOTrainer.evaluate`.

        Raises:
            ConfigError: Where the metric that was named is not in the first evaluation.
        """
        if self._metric is None:
            self._metric = next((name for name in METRICS[:2] if name in metrics), None)
        value = None if self._metric is None else metrics.get(self._metric)
        if value is None:
            self._refuse_unknown(metrics)
            return Verdict(improved=False, stop=self.impatient)
        if self._heard_step is not None and step <= self._heard_step:
            return Verdict(improved=False, stop=self.impatient)
        self._heard_step = step
        rise = self._rise(value)
        self._waited = 0 if self.best_value is None or rise > self._threshold else self._waited + 1
        improved = rise > 0
        if improved:
            self.best_step, self.best_value = step, value
        return Verdict(improved=improved, stop=self.impatient)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it: JSON-able, for :meth:`restore`."""
        return {
            "metric": self._metric,
            "waited": self._waited,
            "heard_step": self._heard_step,
            "best_step": self.best_step,
            "best_value": self.best_value,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state`; one of another metric is of no use and is left."""
        if self._metric is not None and state["metric"] not in (None, self._metric):
            return
        self._metric = state["metric"] or self._metric
        self._waited = int(state["waited"])
        self._heard_step = state["heard_step"]
        self.best_step, self.best_value = state["best_step"], state["best_value"]

    @property
    def impatient(self) -> bool:
        """Whether as many evaluations as there is patience for have passed without getting better."""
        return self._patience is not None and self._waited >= self._patience

    def _rise(self, value: float) -> float:
        """How much better a value is than the best so far; not above 0 for one that is no number."""
        if math.isnan(value):
            return -math.inf
        if self.best_value is None:
            return math.inf
        greater = self._greater_is_better
        if greater is None:
            greater = self._metric not in _LOWER_IS_BETTER
        return value - self.best_value if greater else self.best_value - value

    def _refuse_unknown(self, metrics: Mapping[str, float]) -> None:
        there = [name for name in METRICS[:2] if name in metrics]
        if self._heard_step is None and self._metric in METRICS[:2] and there:
            raise ConfigError(
                f"metric_for_best_model is {self._metric!r}, but the first evaluation has none: the "
                f"environment does not tell it, or no episode came to its end. Set {there[0]!r}, or null"
            )


def best_model_for(config: GRPOConfig) -> BestModel:
    """The listener that a config asks for.

    Raises:
        ConfigError: For settings out of range, or that need evaluations where there are none.
    """
    if not config.eval_steps:
        for name in ("early_stopping_patience", "load_best_model_at_end", "metric_for_best_model"):
            if getattr(config, name):
                raise ConfigError(
                    f"{name} is {getattr(config, name)!r}, but nothing is evaluated in training: set "
                    "eval_steps too, such as 10"
                )
    return BestModel(
        config.metric_for_best_model,
        greater_is_better=config.greater_is_better,
        patience=config.early_stopping_patience,
        threshold=config.early_stopping_threshold,
    )
