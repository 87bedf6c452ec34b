"""Warnings about numbers that announce a run's ruin, with words for what to do.

A warning is given when a number crosses its threshold, and again only after it has come back: a run that
stays bad says so once. What a threshold is compared with is stated under each field of the config
(``kl_warning``, ``ratio_warning``, ``entropy_warning``, ``grad_norm_warning``). Optimizer steps that were
skipped for a loss or gradient that is not finite are told of every time.

They are appended to ``events.jsonl`` in the run's folder, one JSON object a line::

    {"kind": "warning", "step": 12, "name": "ratio/max", "value": 315.0, "threshold": 100.0, "words": "…"}
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from art_trainer.config import GRPOConfig

FIRST_STEPS = 5
"""Steps whose mean entropy a later one is compared with, and gradients to know before one can be too long."""
WINDOW = 20
"""Steps whose median gradient a later one is compared with."""


@dataclass(frozen=True, slots=True)
class RunWarning:
    """A number beyond its threshold."""

    step: int
    name: str
    """The metric."""
    value: float
    threshold: float
    words: str
    """A sentence with step, value, threshold and what to do."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-able copy."""
        return {"kind": "warning", **dataclasses.asdict(self)}


@runtime_checkable
class HearsWarnings(Protocol):
    """A trainer's callback that also wants warnings."""

    def on_warning(self, warning: RunWarning) -> None:
        """A number is beyond its threshold."""


class Watch:
    """Looks at every step's metrics.

    Args:
        config: The thresholds.
    """

    def __init__(self, config: GRPOConfig) -> None:
        self._config = config
        self._entropies: list[float] = []
        self._norms: list[float] = []
        self._above: set[str] = set()

    def check(self, step: int, metrics: Mapping[str, float]) -> list[RunWarning]:
        """Return what is to be said about a step.

        Args:
            step: Its number, from 1.
            metrics: Those of :mod:`art_trainer.metrics`. A step that trained on nothing says nothing.
        """
        said = []
        skipped = metrics.get("skipped_updates", 0.0)
        if skipped:
            words = (
                f"step {step}: {skipped:.0f} optimizer steps skipped, loss or gradient not finite. Where it "
                "goes on, lower learning_rate"
            )
            said.append(RunWarning(step, "skipped_updates", skipped, 0.0, words))
        if metrics.get("trained_tokens"):
            found = list(self._beyond(metrics))
            for name, value, threshold, words in found:
                if name not in self._above:
                    said.append(RunWarning(step, name, value, threshold, f"step {step}: {words}"))
            self._above = {name for name, *_ in found}
            self._remember(metrics)
        return said

    def _beyond(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, float, float, str]]:
        """Yield the metrics beyond their thresholds: name, value, threshold, words."""
        config = self._config
        kl = metrics.get("sampling_kl", metrics.get("kl", 0.0))
        if config.kl_warning and not kl <= config.kl_warning:
            yield (
                "sampling_kl", kl, config.kl_warning,
                f"the update left the policy that sampled by {kl:.3g} nats per token (kl_warning is "
                f"{config.kl_warning:g}). Lower learning_rate, num_iterations or steps_per_generation",
            )  # fmt: skip
        limit = config.ratio_warning
        high, low = metrics.get("ratio/max", 1.0), metrics.get("ratio/min", 1.0)
        if limit and not high <= limit:
            yield (
                "ratio/max", high, limit,
                f"a token became {high:.3g} times as likely as when it was sampled (ratio_warning is "
                f"{limit:g}). Lower learning_rate, or set delta; with another program as sampler, set "
                "importance_sampling_correction",
            )  # fmt: skip
        if limit and not low >= 1 / limit:
            yield (
                "ratio/min", low, 1 / limit,
                f"a token became {low:.3g} times as likely as when it was sampled (ratio_warning is "
                f"{limit:g}, so at least {1 / limit:.3g}). Lower learning_rate or num_iterations",
            )  # fmt: skip
        yield from self._collapse(metrics.get("entropy", 0.0))
        yield from self._jump(metrics.get("grad_norm", 0.0))

    def _collapse(self, entropy: float) -> Iterator[tuple[str, float, float, str]]:
        share = self._config.entropy_warning
        if not share or len(self._entropies) < FIRST_STEPS:
            return
        threshold = share * statistics.fmean(self._entropies)
        if entropy < threshold:
            yield (
                "entropy", entropy, threshold,
                f"the entropy fell to {entropy:.3g} nats per token, below {threshold:.3g} (entropy_warning "
                f"is {share:g} of the first {FIRST_STEPS} steps'). A policy that has learned its task may do "
                "so; one that has not explores no more: raise epsilon_high, entropy_coef or temperature",
            )  # fmt: skip

    def _jump(self, norm: float) -> Iterator[tuple[str, float, float, str]]:
        factor = self._config.grad_norm_warning
        if not factor or len(self._norms) < FIRST_STEPS:
            return
        threshold = factor * statistics.median(self._norms)
        if norm > threshold:
            yield (
                "grad_norm", norm, threshold,
                f"the gradient's length is {norm:.3g}, above {threshold:.3g} (grad_norm_warning is "
                f"{factor:g} times the median of the last steps). max_grad_norm, "
                f"{self._config.max_grad_norm:g}, bounds the step; where it goes on, lower learning_rate",
            )  # fmt: skip

    def _remember(self, metrics: Mapping[str, float]) -> None:
        if len(self._entropies) < FIRST_STEPS:
            self._entropies.append(metrics.get("entropy", 0.0))
        if metrics.get("grad_norm"):
            self._norms = [*self._norms, metrics["grad_norm"]][-WINDOW:]

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs to warn of the same, JSON-able."""
        return {"entropies": self._entropies, "norms": self._norms, "above": sorted(self._above)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state` returned."""
        self._entropies = [float(value) for value in state["entropies"]]
        self._norms = [float(value) for value in state["norms"]]
        self._above = set(state["above"])


class EventLog:
    """``events.jsonl`` of a run's folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "events.jsonl"

    def begin(self, step: int) -> None:
        """Forget the events of steps after this one, which a resumed run does again."""
        if not self.file.exists():
            return
        lines = self.file.read_text(encoding="utf-8").splitlines(keepends=True)
        partial = self.file.with_name(f".{self.file.name}.partial")
        partial.write_text("".join(line for line in lines if _step_of(line) <= step), encoding="utf-8")
        os.replace(partial, self.file)

    def write(self, warning: RunWarning) -> None:
        """Append one line."""
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(warning.to_json(), ensure_ascii=False) + "\n")


def _step_of(line: str) -> float:
    """Return an event's step; a line that a killed run cut off belongs to no step."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
