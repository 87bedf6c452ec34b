"""Training health checks: warnings about KL, importance ratios, entropy, gradient norm, replies, and stalls.

A warning is given when a metric crosses its threshold, and again only after it has come back. The thresholds
are fields of the config (``kl_warning``, ``ratio_warning``, ``entropy_warning``, ``grad_norm_warning``).
Optimizer steps that were skipped because the loss or the gradient was not finite, and steps in which every
group failed, are reported every time.
Each cause of steps without a gradient (:mod:`art_trainer.tracking.stalls`) is reported once.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art_trainer.config import GRPOConfig
from art_trainer.tracking.stalls import StallDetector
from art_trainer.types import Group

FIRST_STEPS = 5
"""Entropies are compared with the mean of this many first steps; gradient norms need as many to begin."""
WINDOW = 20
"""Gradient norms are compared with the median of this many steps."""
_CUT = 0.5
"""Share of replies cut off at max_completion_length above which a model is not learning to end them."""
_FORKS = 0.75
"""Token histories a reply from which on an agent's conversations count as begun anew each time."""
_FLOORS = ("ratio/min", "entropy")
"""The metrics that must not be below their thresholds; the others must not be above."""
_MESSAGES = {
    "skipped_updates": (
        "{value:.0f} optimizer steps skipped, loss or gradient not finite. If this continues, lower "
        "learning_rate"
    ),
    "sampling_kl": (
        "the update moved the policy {value:.3g} nats per token away from the one that sampled (kl_warning "
        "is {setting:g}). Lower learning_rate, num_iterations or steps_per_generation"
    ),
    "ratio/max": (
        "a token became {value:.3g} times as likely as when it was sampled (ratio_warning is {setting:g}). "
        "Lower learning_rate or set delta; if another engine samples, set importance_sampling_correction"
    ),
    "ratio/min": (
        "a token became {value:.3g} times as likely as when it was sampled (ratio_warning is {setting:g}, so "
        "at least {limit:.3g}). Lower learning_rate or num_iterations"
    ),
    "entropy": (
        "the entropy fell to {value:.3g} nats per token, below {limit:.3g} (entropy_warning is {setting:g} "
        "of the first steps'). This is normal for a policy that has solved its task; otherwise raise "
        "epsilon_high, entropy_coef or temperature"
    ),
    "grad_norm": (
        "the gradient norm is {value:.3g}, above {limit:.3g} (grad_norm_warning is {setting:g} times the "
        "median of the last steps). It is clipped to max_grad_norm; if it continues, lower learning_rate"
    ),
    "completions/clipped_ratio": (
        "{value:.0%} of replies were cut off at max_completion_length. If they hold valid calls all the "
        "same, the model need not learn to end a reply, and goes on wherever the limit is larger: set "
        "or raise truncation_penalty. If not, raise max_completion_length"
    ),
}


@dataclass(frozen=True, slots=True)
class RunWarning:
    """A metric beyond its threshold, or a cause of steps without a gradient."""

    step: int
    name: str
    """The metric or the cause."""
    value: float
    threshold: float
    message: str
    """A sentence with step, value, threshold and what to do."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-able copy."""
        return {"kind": "warning", **dataclasses.asdict(self)}


class HealthMonitor:
    """Checks every step's metrics against the thresholds.

    Args:
        config: The thresholds.
        model: The model's name.
    """

    def __init__(self, config: GRPOConfig, model: str = "") -> None:
        self._config = config
        self._stalls = StallDetector({**config.to_mapping(), "model": model})
        self._reported: set[str] = set()
        self._entropies: list[float] = []
        self._norms: list[float] = []
        self._beyond: set[str] = set()

    def check(
        self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = ()
    ) -> list[RunWarning]:
        """Return the new warnings of a step.

        Args:
            step: Its number, from 1.
            metrics: Those of :mod:`art_trainer.training.metrics`. A step that trained on nothing is only
                checked for stalls.
            groups: Its groups; a warning quotes replies without a valid call.
        """
        found = [*self._check_faults(step, groups), *self._check_stall(step, metrics, groups)]
        found += self._check_histories(step, metrics, groups)
        if skipped := metrics.get("skipped_updates", 0.0):
            found.append(_warning(step, "skipped_updates", skipped, 0.0, 0.0))
        if metrics.get("trained_tokens"):
            beyond = [
                _warning(step, name, value, setting, limit)
                for name, value, setting, limit in self._limits(metrics)
                # "not in bounds" also catches a metric that is NaN.
                if setting and not (value >= limit if name in _FLOORS else value <= limit)
            ]
            found += [warning for warning in beyond if warning.name not in self._beyond]
            self._beyond = {warning.name for warning in beyond}
            if len(self._entropies) < FIRST_STEPS:
                self._entropies.append(metrics.get("entropy", 0.0))
            if metrics.get("grad_norm"):
                self._norms = [*self._norms, metrics["grad_norm"]][-WINDOW:]
        return found

    @property
    def stop_reason(self) -> str | None:
        """Why the run should stop: it has had no gradient for too long; ``None`` if it need not."""
        if self._config.keep_going or not self._stalls.must_stop:
            return None
        stall = self._stalls.find()
        return None if stall is None else stall.message

    def _check_stall(
        self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]
    ) -> list[RunWarning]:
        self._stalls.add(step, metrics)
        turns = (turn for group in groups for episode in group.episodes for turn in episode.turns)
        invalid = (turn.reply for turn in turns if turn.error is not None)
        stall = self._stalls.find(list(itertools.islice(invalid, 3)))
        if stall is None or stall.name in self._reported:
            return []
        self._reported.add(stall.name)
        message = f"step {step}: {stall.message}"
        if stall.dead and not self._config.keep_going:
            message += f" After {self._stalls.stop_after} steps in a row without a gradient the run stops."
        steps = float(stall.last - stall.first + 1)
        return [RunWarning(step, stall.name, steps, steps, message)]

    def _check_faults(self, step: int, groups: Sequence[Group]) -> Iterator[RunWarning]:
        """Warn of the first step with failed groups, and of every step in which all failed."""
        failed = [episode for group in groups for episode in group.episodes if episode.failed]
        left = [group for group in groups if not group.whole]
        if not left or ("failed_groups" in self._reported and len(left) < len(groups)):
            return
        self._reported.add("failed_groups")
        fault = textwrap.shorten(failed[0].error or failed[0].unjudged or failed[0].ending, 300)
        what = f"nothing was learned, every group failed ({len(groups)})"
        if len(left) < len(groups):
            what = f"{len(left)} of {len(groups)} groups failed, and nothing is learned from them"
        message = f"step {step}: {what}. The first fault: {fault}"
        yield RunWarning(step, "failed_groups", float(len(left)), 0.0, message)

    def _check_histories(
        self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]
    ) -> list[RunWarning]:
        """Warn once if most requests of your own agent begin a context anew; environments have a window."""
        histories, turns = metrics.get("histories_per_episode", 0.0), metrics.get("turns", 0.0)
        agents = any("outcome" in episode.facts for group in groups for episode in group.episodes)
        if not agents or turns < 3 or histories < _FORKS * turns or "histories" in self._reported:
            return []
        self._reported.add("histories")
        message = (
            f"step {step}: an episode of {turns:.1f} replies has {histories:.1f} token histories, so most "
            "contexts are read and trained on anew. The agent rewrites earlier messages, or the template "
            "leaves out earlier thinking"
        )
        return [RunWarning(step, "histories_per_episode", histories, _FORKS * turns, message)]

    def _limits(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, float, float, float]]:
        """Yield each metric's name, its value, the setting and the threshold that follows from it."""
        config = self._config
        kl, ratio = config.kl_warning, config.ratio_warning
        yield "sampling_kl", metrics.get("sampling_kl", metrics.get("kl", 0.0)), kl, kl
        yield "ratio/max", metrics.get("ratio/max", 1.0), ratio, ratio
        yield "ratio/min", metrics.get("ratio/min", 1.0), ratio, 1 / ratio if ratio else 0.0
        yield "completions/clipped_ratio", metrics.get("completions/clipped_ratio", 0.0), _CUT, _CUT
        entropy, norm = metrics.get("entropy", 0.0), metrics.get("grad_norm", 0.0)
        if len(self._entropies) >= FIRST_STEPS and not math.isnan(entropy):
            share = config.entropy_warning
            yield "entropy", entropy, share, share * statistics.fmean(self._entropies)
        if len(self._norms) >= FIRST_STEPS and not math.isnan(norm):
            factor = config.grad_norm_warning
            yield "grad_norm", norm, factor, factor * statistics.median(self._norms)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs to give the same warnings; JSON-able."""
        return {
            "entropies": self._entropies,
            "norms": self._norms,
            "above": sorted(self._beyond),
            "stalls": self._stalls.state(),
            "reported": sorted(self._reported),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state` returned."""
        self._entropies = [float(value) for value in state["entropies"]]
        self._norms = [float(value) for value in state["norms"]]
        self._beyond = set(state["above"])
        self._stalls.restore(state["stalls"])
        self._reported = set(state["reported"])


def _warning(step: int, name: str, value: float, setting: float, limit: float) -> RunWarning:
    message = _MESSAGES[name].format(value=value, setting=setting, limit=limit)
    return RunWarning(step, name, value, limit, f"step {step}: {message}")
