"""Weights & Biases: metrics, tables of episodes and actions, checkpoints as artifacts.

With a key it is online, without one offline: everything is then in ``RUN/wandb``, and once there is a key
``art-trainer sync RUN --to wandb`` sends the run from its folder (W&B's own ``wandb sync`` works too).
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import wandb
import wandb.errors

from art_trainer.tracking.callbacks import Outcome
from art_trainer.tracking.run_dir import private_folder
from art_trainer.tracking.sinks.backfill import events_after
from art_trainer.tracking.sinks.base import (
    CheckpointSaved,
    Cursor,
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


class WandbSink(Sink):
    """Logs into one W&B run, the same one when the training run is resumed.

    Every row has the training step as ``step``, and curves are drawn over it: W&B's own count of rows is
    another, since tables are rows too.

    New rows of the tables are logged now and then: it costs W&B the same few milliseconds for one as for
    hundreds. Until then they are in the run folder as well, and a later process is told their steps.

    Args:
        settings: The variables that begin with ``WANDB_`` and ``ART_LOG_``. Without a key the run is offline,
            unless ``WANDB_MODE`` says otherwise, such as ``"online"`` if ``wandb login`` has left one.

    Raises:
        SinkUnavailableError: If a number is not as needed.
    """

    name = "wandb"

    def __init__(self, settings: Mapping[str, str]) -> None:
        key, url = settings.get("WANDB_API_KEY"), settings.get("WANDB_BASE_URL")
        mode = settings.get("WANDB_MODE") or ("online" if key else OFFLINE)
        given = {"api_key": key, "base_url": url, "mode": mode}
        self._settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self._destination = OFFLINE if mode == OFFLINE else url or "https://api.wandb.ai"
        self._entity, self._project = settings.get("WANDB_ENTITY"), settings.get("WANDB_PROJECT")
        self._close_seconds = _number(settings, "ART_LOG_CLOSE_SECONDS", 5.0)
        self._table_seconds = _number(settings, "ART_LOG_TABLE_SECONDS", 30.0)
        self._table_episodes = int(_number(settings, "ART_LOG_TABLE_EPISODES", 128, least=1))
        self._next_tables = 0.0
        self._tables = {
            "episodes": _PlainTable(EpisodeRow._fields, (int, str, float, int, bool, float, float)),
            "actions": _PlainTable(ActionRow._fields, (int, str, int, str, float, str)),
        }
        self._rows: dict[str, list[list[Any]]] = {name: [] for name in self._tables}
        self._waiting: set[int] = set()  # steps of these rows
        self._missing: set[int] = set()  # steps whose rows an earlier process had not logged

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin a W&B run, or resume that of an earlier process."""
        super().open(run, resume=resume)
        resume = resume or {}
        self._id = str(resume.get("id") or uuid.uuid4().hex[:12])
        if resume.get("destination") == self._destination:
            self._missing = set(resume.get("unlogged", ()))
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
        """Add rows to both tables; log them if it is time."""
        self._add_rows(event)
        if time.monotonic() >= self._next_tables:
            self._log_tables()

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
        """The run's id and destination, and the steps whose rows are not in the tables yet."""
        unlogged = sorted(self._missing | self._waiting)
        return {"id": self._id, "destination": self._destination, "unlogged": unlogged}

    def close(self, outcome: Outcome) -> None:
        """Log the last rows and end the W&B run.

        Raises:
            TimeoutError: If not everything was uploaded in time; the rest is in ``RUN/wandb``.
        """
        try:
            self._log_tables()
        finally:
            self._wandb.finish(exit_code=_EXIT_CODES[outcome])

    def _add_rows(self, event: EpisodesPlayed) -> None:
        if event.step not in self._waiting:  # it comes again if logging it failed
            self._waiting.add(event.step)
            shown = replace(event, episodes=event.episodes[: self._table_episodes])
            self._rows["episodes"] += map(list, episode_rows(shown, self.run))
            self._rows["actions"] += map(list, action_rows(shown))

    def _add_missing_rows(self) -> None:
        """Add rows from the folder; steps that a resumed run has not come to yet stay missing."""
        last = max(self._missing)
        for event in events_after(self.run.folder, Cursor(min(self._missing), 0)):
            if event.step > last:
                break
            if isinstance(event, EpisodesPlayed) and event.step in self._missing:
                self._add_rows(event)
        self._missing -= self._waiting

    def _log_tables(self) -> None:
        """Log all waiting rows, in parts: W&B silently drops what is beyond its ``MAX_ROWS`` in one log."""
        if self._missing:
            self._add_missing_rows()
        most = wandb.Table.MAX_ROWS
        while tables := {name: table for name, table in self._tables.items() if self._rows[name]}:
            for name, table in tables.items():
                table.fill(self._rows[name][:most])
            self._wandb.log({_STEP: max(self._waiting), **tables})
            for name, table in tables.items():
                table.forget()
                del self._rows[name][:most]
        self._waiting.clear()
        self._next_tables = time.monotonic() + self._table_seconds


class _PlainTable(wandb.Table):
    """An incremental table of plain JSON values, which costs W&B less to write.

    W&B asks of each cell, when a row is added and again when a table goes into an artifact, whether it is an
    array, a tensor or a date. And it keeps all rows that were ever logged; here they are freed.
    """

    def __init__(self, columns: Sequence[str], types: Sequence[type]) -> None:
        super().__init__(columns=list(columns), dtype=list(types), optional=True, log_mode="INCREMENTAL")
        self._gone = 0  # rows that were logged

    def fill(self, rows: list[list[Any]]) -> None:
        """Set the rows to log next."""
        del self.data[self._gone :]
        self.add_data(*rows[0])  # W&B checks this one only
        self.data.extend(rows[1:])

    def forget(self) -> None:
        """Free the rows, which were logged; W&B goes by their number alone."""
        self.data[self._gone :] = [[]] * (len(self.data) - self._gone)
        self._gone = len(self.data)

    def to_json(self, run_or_artifact: Any) -> dict[str, Any]:
        """Return W&B's form of the table, with the new rows as they are."""
        if not isinstance(run_or_artifact, wandb.Artifact):
            return super().to_json(run_or_artifact)
        rows, self.data = self.data, []
        try:
            written = super().to_json(run_or_artifact)
        finally:
            self.data = rows
        new = rows[self._gone :]
        return {**written, "data": new, "nrows": len(new)}


def _number(settings: Mapping[str, str], name: str, default: float, least: float = 0.0) -> float:
    try:
        number = float(settings.get(name, default))
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        raise SinkUnavailableError(f"{name} is {settings[name]!r}: set a number of at least {least:g}")
    return number
