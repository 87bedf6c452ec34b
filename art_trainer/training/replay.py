"""Repeat a run's updates from its records, and compare the numbers with those it logged.

The updates after a checkpoint (or after the start, if its weights can be made again) are applied to its
weights, optimizer and generators with the recorded episodes, up to the step asked for. On the same machine,
with as many threads, every number is the one in ``metrics.jsonl`` to the last bit: an update has no
randomness but the learner's own generator. A record that was tampered with, or code that computes otherwise
than it did, shows as a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from art_trainer.config import GRPOConfig
from art_trainer.errors import ReplayError
from art_trainer.models.weights_io import weights_digest
from art_trainer.tracking.episode_store import (
    RecordedSettings,
    StepRecord,
    iter_steps,
    recorded_settings,
    require_observations,
)
from art_trainer.tracking.run_dir import RunFolder, checkpoint_step, list_checkpoints
from art_trainer.training.checkpoint import read_checkpoint
from art_trainer.training.learner import Learner

BuildModel = Callable[[Path | None], nn.Module]
"""Makes a run's model: that of a checkpoint of the run, or with ``None`` as the run began."""

_CLOCKS = "time/"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One number of a step, as it was logged and as it came out this time."""

    name: str
    logged: float
    replayed: float
    tolerance: float = 0.0
    """The largest relative difference that counts as equal."""

    @property
    def equal(self) -> bool:
        """Whether both are the same number, or both not a number."""
        if math.isnan(self.logged) or math.isnan(self.replayed):
            return math.isnan(self.logged) and math.isnan(self.replayed)
        return math.isclose(self.logged, self.replayed, rel_tol=self.tolerance, abs_tol=0.0)


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """One step done again; ``numbers`` is empty if the run logged nothing of it."""

    step: int
    numbers: tuple[Comparison, ...]

    @property
    def differences(self) -> tuple[Comparison, ...]:
        """The numbers that are not those logged."""
        return tuple(number for number in self.numbers if not number.equal)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The steps of a replay, in order."""

    start: Path | None
    """The checkpoint it resumed from; ``None`` for the start of the run."""
    steps: tuple[ReplayedStep, ...]
    weights: str
    """The digest of the weights after the last step."""

    @property
    def equal(self) -> bool:
        """Whether every logged number came out again."""
        return not any(step.differences for step in self.steps)


def replay(
    run: Path | str,
    step: int,
    *,
    build: BuildModel,
    tolerance: float = 0.0,
    on_step: Callable[[ReplayedStep], None] = lambda step: None,
) -> ReplayResult:
    """Do the updates up to a step again and compare them with the log.

    Args:
        run: The run's folder.
        step: The step, from 1.
        build: Makes the model.
        tolerance: The largest relative difference that counts as equal; 0 asks for the same bits.
        on_step: Called for each step as it is done.

    Raises:
        RecordError: If a record is missing or damaged.
        CheckpointError: If the checkpoint to start from is damaged.
        ReplayError: If something else is missing, or the start cannot be made again.
    """
    folder = RunFolder(Path(run))
    settings = recorded_settings(folder.path)
    if not settings:
        raise ReplayError(
            f"{run} has no recorded settings: it was not trained by a version that records them"
        )
    require_observations(folder.path)
    lines = folder.metrics().records
    logged = {int(line["step"]): line for line in lines if line.get("step", 0) >= 1}
    if step not in logged:
        near = f"it has {len(logged)} steps, up to {max(logged)}" if logged else "it has none"
        raise ReplayError(f"metrics.jsonl of {run} has no line of step {step} to compare with: {near}")
    before = [path for path in list_checkpoints(folder.checkpoints) if checkpoint_step(path) < step]
    start = before[-1] if before else None
    learner = _learner_at(start, build, settings)
    records = iter_steps(folder.path, range(learner.step + 1, step + 1))
    done = []
    for wanted in range(learner.step + 1, step + 1):
        record = _complete(next(records, None), wanted, folder)
        learner = _with_settings(learner, _in_force(settings, wanted))
        metrics = learner.update(record.groups, record.replaced)
        known = logged.get(wanted, {})
        numbers = [
            Comparison(name, known[name], value, tolerance)
            for name, value in metrics.items()
            if name in known and not name.startswith(_CLOCKS)
        ]
        done.append(ReplayedStep(wanted, tuple(numbers)))
        on_step(done[-1])
    return ReplayResult(start, tuple(done), weights_digest(learner.model))


def _in_force(settings: Sequence[RecordedSettings], step: int) -> GRPOConfig:
    """Return the settings that a step was made with."""
    return GRPOConfig.from_mapping([one for one in settings if one.after < step][-1].config)


def _learner_at(start: Path | None, build: BuildModel, settings: Sequence[RecordedSettings]) -> Learner:
    """Return the learner as it was after a checkpoint, or at the start of the run."""
    model = build(start)
    if start is None:
        _require_same_start(model, settings[0])
        return Learner(model, _in_force(settings, 1))
    learner = Learner(model, _in_force(settings, checkpoint_step(start) + 1))
    read_checkpoint(start, learner)
    return learner


def _require_same_start(model: nn.Module, settings: RecordedSettings) -> None:
    """Refuse a start that is not the one the run had; one that nobody took the digest of is believed."""
    if settings.weights is not None and weights_digest(model) != settings.weights:
        raise ReplayError(
            "the model that the run began with cannot be made again: its weights are others now (a model, an "
            "environment's texts or a version changed); steps after the oldest checkpoint can be replayed"
        )


def _with_settings(learner: Learner, config: GRPOConfig) -> Learner:
    """Return a learner with these settings, as if the run had been gone on with in a new process."""
    if config == learner.config:
        return learner
    fresh = Learner(learner.model, config)
    fresh.optimizer.state.update(learner.optimizer.state)
    fresh.restore(learner.state())
    if learner.reference is not None and fresh.reference is not None:
        fresh.reference.load_state_dict(learner.reference.state_dict())
    if learner.critic is not None and fresh.critic is not None:
        fresh.critic.load_tensors(learner.critic.tensors())
    return fresh


def _complete(record: StepRecord | None, wanted: int, folder: RunFolder) -> StepRecord:
    if record is None or record.step != wanted:
        raise ReplayError(f"{folder.path} has no recorded episodes of step {wanted}")
    if record.left_out:
        raise ReplayError(
            f"{folder.path} kept only a part of the episodes of step {wanted}: a run can be replayed that "
            "keeps all, with log_episodes: null"
        )
    return record
