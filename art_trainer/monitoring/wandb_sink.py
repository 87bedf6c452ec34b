"""Weights & Biases: metrics, tables of episodes and actions, checkpoints as artifacts.

With a key it is online, without one offline: everything then lies in ``RUN/wandb``, and once there is a key
``art-trainer sync RUN --to wandb`` sends the run from its folder (W&B's own ``wandb sync`` works too).
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping
from typing import Any, Self

import wandb
import wandb.errors

from art_trainer.monitoring.events import (
    CheckpointSaved,
    EpisodesPlayed,
    Event,
    Outcome,
    RunInfo,
    SinkUnavailableError,
    StepDone,
)
from art_trainer.monitoring.shown import shown_metrics
from art_trainer.monitoring.wandb_tables import WandbTables

OFFLINE = "offline"
_STEP = "step"
_EXIT_CODES = {"finished": 0, "interrupted": 130, "failed": 1}
_HEADROOM = 0.8
"""Share of the time to end that W&B may use to upload."""


class WandbSink:
    """Logs into one W&B run, the same one when the training run is resumed.

    Every row has the training step as ``step``, and curves are drawn over it: W&B's own count of rows is
    another, since tables are rows too.

    Args:
        key: The API key; without one the run is offline, unless ``mode`` says otherwise.
        mode: As W&B has it, such as ``"online"`` where ``wandb login`` has left a key.
        base_url: Address of a server of one's own.
        entity: Whose project it is.
        project: The project; ``None``: the run's.
        close_seconds: How long the end of the run may take.
        table_seconds: How often new rows of the tables are logged, at most; at the end all are.
        table_episodes: How many episodes of a step the tables show, at most.
    """

    name = "wandb"

    def __init__(
        self,
        key: str | None = None,
        *,
        mode: str | None = None,
        base_url: str | None = None,
        entity: str | None = None,
        project: str | None = None,
        close_seconds: float = 5.0,
        table_seconds: float = 30.0,
        table_episodes: int = 128,
    ) -> None:
        self._key = key
        self._mode = mode or ("online" if key else OFFLINE)
        self._base_url = base_url
        self._entity = entity
        self._project = project
        self._close_seconds = close_seconds
        self._id = ""
        self._info: RunInfo | None = None
        self._run: Any = None
        self._tables: WandbTables | None = None
        self._table_seconds = table_seconds
        self._table_episodes = table_episodes
        self._next_tables = 0.0

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """The settings that begin with ``WANDB_``, and with ``ART_LOG_``.

        Raises:
            SinkUnavailableError: Where one of the latter is no such number.
        """
        return cls(
            settings.get("WANDB_API_KEY"),
            mode=settings.get("WANDB_MODE"),
            base_url=settings.get("WANDB_BASE_URL"),
            entity=settings.get("WANDB_ENTITY"),
            project=settings.get("WANDB_PROJECT"),
            close_seconds=_seconds(settings, "ART_LOG_CLOSE_SECONDS", 5.0),
            table_seconds=_seconds(settings, "ART_LOG_TABLE_SECONDS", 30.0),
            table_episodes=_count(settings, "ART_LOG_TABLE_EPISODES", 128),
        )

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin a W&B run, or go on with that of an earlier process."""
        self._info = run
        self._id = str(resume["id"]) if resume else uuid.uuid4().hex[:12]
        run.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=self._project or run.project,
                entity=self._entity,
                name=run.name,
                id=self._id,
                resume="allow",
                reinit="create_new",
                dir=str(run.folder),
                config=dict(run.config),
                tags=list(run.tags),
                settings=self._settings(),
            )
        except (wandb.errors.UsageError, wandb.errors.AuthenticationError) as refused:
            raise SinkUnavailableError(str(refused)) from refused
        self._run.define_metric(_STEP, hidden=True)
        self._run.define_metric("*", step_metric=_STEP)
        went_on = resume is not None and resume.get("destination") == self._destination
        owed = resume.get("unlogged", ()) if resume and went_on else ()
        self._tables = WandbTables(run, owed, most_episodes=self._table_episodes)

    def deliver(self, event: Event) -> None:
        """Log a row of metrics, new rows of both tables where it is time, or a checkpoint's model."""
        assert self._tables is not None
        if isinstance(event, StepDone):
            self._run.log({_STEP: event.step, **shown_metrics(event.metrics)})
        elif isinstance(event, EpisodesPlayed):
            self._tables.add(event)
            if self._tables.full or time.monotonic() >= self._next_tables:
                self._log_tables(self._tables)
        elif isinstance(event, CheckpointSaved):
            self._log_model(event)

    def flush(self) -> None:
        """Each delivery is in W&B's own process and log, which outlive this one, or can be read again."""

    def state(self) -> dict[str, Any]:
        """The run's id, where it is, and the steps whose rows are not in the tables yet."""
        unlogged = [] if self._tables is None else self._tables.unlogged
        return {"id": self._id, "destination": self._destination, "unlogged": unlogged}

    def close(self, outcome: Outcome) -> None:
        """Log the last rows and end the W&B run.

        Raises:
            TimeoutError: Where not everything was uploaded in time; the rest is in ``RUN/wandb``.
        """
        try:
            if self._tables is not None:
                self._log_tables(self._tables)
        finally:
            self._run.finish(exit_code=_EXIT_CODES[outcome])

    @property
    def _destination(self) -> str:
        return OFFLINE if self._mode == OFFLINE else self._base_url or "https://api.wandb.ai"

    def _settings(self) -> Any:
        given: dict[str, Any] = {"api_key": self._key, "base_url": self._base_url, "mode": self._mode}
        return wandb.Settings(
            **{name: value for name, value in given.items() if value is not None},
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            save_code=False,
            init_timeout=30,
            finish_timeout=_HEADROOM * self._close_seconds,
            finish_timeout_raises=True,
        )

    def _log_tables(self, tables: WandbTables) -> None:
        while row := tables.to_log():
            self._run.log(row)
            tables.logged()
            self._next_tables = time.monotonic() + self._table_seconds

    def _log_model(self, event: CheckpointSaved) -> None:
        assert self._info is not None
        metadata = {"step": event.step, "env": self._info.env_id, "model": self._info.model}
        artifact = wandb.Artifact(f"{self._info.name}-model", "model", metadata=metadata)
        weights = event.folder / "model"
        root = weights if weights.is_dir() else event.folder
        # W&B copies each file, so that it may be pruned afterwards; add_dir would print.
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            artifact.add_file(str(file), name=str(file.relative_to(root)))
        self._run.log_artifact(artifact, aliases=[*event.aliases, f"step-{event.step}"])


def _seconds(settings: Mapping[str, str], name: str, default: float) -> float:
    try:
        seconds = float(settings.get(name, default))
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise SinkUnavailableError(f"{name} is {settings[name]!r}: set a number of seconds")
    return seconds


def _count(settings: Mapping[str, str], name: str, default: int) -> int:
    said = settings.get(name, str(default))
    if not (said.isdecimal() and int(said) > 0):
        raise SinkUnavailableError(f"{name} is {said!r}: set a whole number from 1")
    return int(said)
