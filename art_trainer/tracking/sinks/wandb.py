"""Weights & Biases: metrics, tables of episodes and actions, checkpoints as artifacts.

With a key it is online, without one offline: everything is then in ``RUN/wandb``, and once there is a key
``art-trainer sync RUN --to wandb`` sends the run from its folder (W&B's own ``wandb sync`` works too).
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import wandb
import wandb.errors

from art_trainer.tracking.callbacks import Outcome
from art_trainer.tracking.run_dir import private_folder
from art_trainer.tracking.sinks.base import (
    CheckpointSaved,
    EpisodesPlayed,
    RunInfo,
    Sink,
    SinkUnavailableError,
    StepDone,
)
from art_trainer.tracking.sinks.rows import (
    ActionRow,
    EpisodeRow,
    action_rows,
    dashboard_metrics,
    episode_rows,
)

OFFLINE = "offline"
_STEP = "step"
_EXIT_CODES = {"finished": 0, "interrupted": 130, "failed": 1}
_UPLOAD_SHARE = 0.8  # of the time to close, for W&B's uploads
_EPISODE_TYPES = (int, str, float, int, bool, float, float)
_ACTION_TYPES = (int, str, int, str, float, str)
_SHOWN = 128  # episodes of a step in the tables, whose rows are most of what this sink costs


class WandbSink(Sink):
    """Logs into one W&B run, the same one when the training run is resumed.

    Every row has the training step as ``step``, and curves are drawn over it: W&B's own count of rows is
    another, since tables are rows too.

    Args:
        settings: The variables that begin with ``WANDB_``, and ``ART_LOG_CLOSE_SECONDS``. Without a key the
            run is offline, unless ``WANDB_MODE`` says otherwise, such as ``"online"`` if ``wandb login`` has
            left one.

    Raises:
        SinkUnavailableError: If ``ART_LOG_CLOSE_SECONDS`` is not as needed.
    """

    name = "wandb"

    def __init__(self, settings: Mapping[str, str]) -> None:
        key, url = settings.get("WANDB_API_KEY"), settings.get("WANDB_BASE_URL")
        mode = settings.get("WANDB_MODE") or ("online" if key else OFFLINE)
        given = {"api_key": key, "base_url": url, "mode": mode}
        self._settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self._destination = OFFLINE if mode == OFFLINE else url or "https://api.wandb.ai"
        self._entity, self._project = settings.get("WANDB_ENTITY"), settings.get("WANDB_PROJECT")
        self._close_seconds = _close_seconds(settings)

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin a W&B run, or resume that of an earlier process."""
        super().open(run, resume=resume)
        self._id = str((resume or {}).get("id") or uuid.uuid4().hex[:12])
        private_folder(run.folder)
        settings = wandb.Settings(
            **self._settings,
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            save_code=False,
            init_timeout=30,
            finish_timeout=_UPLOAD_SHARE * self._close_seconds,
            finish_timeout_raises=True,
        )
        try:
            self._wandb: Any = wandb.init(
                project=self._project or run.project,
                entity=self._entity,
                name=run.name,
                id=self._id,
                resume="allow",
                reinit="create_new",
                dir=str(run.folder),
                config=dict(run.config),
                tags=list(run.tags),
                settings=settings,
            )
        except (wandb.errors.UsageError, wandb.errors.AuthenticationError) as refused:
            raise SinkUnavailableError(str(refused)) from refused
        self._wandb.define_metric(_STEP, hidden=True)
        self._wandb.define_metric("*", step_metric=_STEP)

    def on_metrics(self, event: StepDone) -> None:
        """Log a step's metrics."""
        self._wandb.log({_STEP: event.step, **dashboard_metrics(event.metrics)})

    def on_episodes(self, event: EpisodesPlayed) -> None:
        """Log a table of a step's first episodes, and one of their actions."""
        shown = replace(event, episodes=event.episodes[:_SHOWN])
        tables = {
            "episodes": _table(EpisodeRow._fields, _EPISODE_TYPES, episode_rows(shown, self.run)),
            "actions": _table(ActionRow._fields, _ACTION_TYPES, action_rows(shown)),
        }
        self._wandb.log({_STEP: event.step, **tables})

    def on_checkpoint(self, event: CheckpointSaved) -> None:
        """Log a checkpoint's model as an artifact."""
        metadata = {"step": event.step, "env": self.run.env_id, "model": self.run.model}
        artifact = wandb.Artifact(f"{self.run.name}-model", "model", metadata=metadata)
        weights = event.folder / "model"
        root = weights if weights.is_dir() else event.folder
        # W&B copies each file, so that it may be pruned afterwards; add_dir would print.
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            artifact.add_file(str(file), name=str(file.relative_to(root)))
        self._wandb.log_artifact(artifact, aliases=[*event.aliases, f"step-{event.step}"])

    def state(self) -> dict[str, Any]:
        """The run's id and destination."""
        return {"id": self._id, "destination": self._destination}

    def close(self, outcome: Outcome) -> None:
        """End the W&B run.

        Raises:
            TimeoutError: If not everything was uploaded in time; the rest is in ``RUN/wandb``.
        """
        self._wandb.finish(exit_code=_EXIT_CODES[outcome])


def _table(columns: Sequence[str], types: Sequence[type], rows: Iterable[tuple[Any, ...]]) -> wandb.Table:
    """A table of the first rows, as many as W&B takes: it drops more without a word."""
    data = list(map(list, islice(rows, wandb.Table.MAX_ROWS)))
    return wandb.Table(columns=list(columns), data=data, dtype=list(types), optional=True)


def _close_seconds(settings: Mapping[str, str]) -> float:
    name = "ART_LOG_CLOSE_SECONDS"
    try:
        number = float(settings.get(name, 5.0))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise SinkUnavailableError(f"{name} is {settings[name]!r}: set a number of at least 0")
    return number
