"""MLflow: parameters, metrics, tags and the episodes' table, in the store of ``MLFLOW_TRACKING_URI``.

Without that variable they go into ``mlruns`` beside the run folder, which all runs share: a SQLite database
if SQLAlchemy is installed, else files (``mlflow-skinny`` alone writes no database).
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from art_trainer.tracking.callbacks import Outcome
from art_trainer.tracking.run_dir import private_folder
from art_trainer.tracking.sinks.base import (
    CheckpointSaved,
    EpisodesPlayed,
    Event,
    EventRefusedError,
    RunInfo,
    Sink,
    StepDone,
)
from art_trainer.tracking.sinks.http import PERMANENT
from art_trainer.tracking.sinks.rows import dashboard_metrics, episode_rows

_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_LONGEST_PARAMETER = 500
_PARAMETERS_PER_REQUEST = 100


class MlflowSink(Sink):
    """Writes a run into an MLflow experiment named as the project; each step's metrics in one request.

    Args:
        settings: ``MLFLOW_TRACKING_URI``; MLflow reads user names and passwords itself.
    """

    name = "mlflow"

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._uri = settings.get("MLFLOW_TRACKING_URI")

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Create the experiment and the run, or resume the run of an earlier process."""
        super().open(run, resume=resume)
        self._uri = self._uri or _local_store(run.folder.resolve().parent / "mlruns")
        self._client: Any = MlflowClient(tracking_uri=self._uri)
        if resume and resume.get("destination") == self._uri:
            self._id = str(resume["id"])
            self._client.update_run(self._id, status="RUNNING")
            return
        known = self._client.get_experiment_by_name(run.project)
        experiment_id = known.experiment_id if known else self._client.create_experiment(run.project)
        tags = {"env": run.env_id, "model": run.model, "folder": str(run.folder)}
        tags |= {tag: "true" for tag in run.tags if tag not in tags}
        self._id = self._client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
        self._log_parameters(run.config)

    def deliver(self, event: Event) -> None:
        """Take one event.

        Raises:
            EventRefusedError: If the server refused the event.
        """
        try:
            super().deliver(event)
        except MlflowException as fault:
            status = fault.get_http_status_code()  # type: ignore[no-untyped-call] # its signature lacks them
            if status in PERMANENT:
                raise EventRefusedError(str(fault)) from fault
            raise

    def on_metrics(self, event: StepDone) -> None:
        """Log a step's metrics."""
        now = int(time.time() * 1000)
        numbers = dashboard_metrics(event.metrics).items()
        self._client.log_batch(
            self._id, metrics=[Metric(name, value, now, event.step) for name, value in numbers]
        )

    def on_episodes(self, event: EpisodesPlayed) -> None:
        """Log the table of a step's episodes as an artifact."""
        rows = [json.dumps(row._asdict()) + "\n" for row in episode_rows(event, self.run)]
        self._client.log_text(self._id, "".join(rows), f"episodes/step-{event.step:06d}.jsonl")

    def on_checkpoint(self, event: CheckpointSaved) -> None:
        """Tag the run with the checkpoint's folder."""
        for alias in event.aliases:
            self._client.set_tag(self._id, f"checkpoint.{alias}", str(event.folder))

    def state(self) -> dict[str, Any]:
        """The run's id and store."""
        return {"id": self._id, "destination": self._uri}

    def close(self, outcome: Outcome) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._id, status=_STATUS[outcome])

    def _log_parameters(self, config: Mapping[str, Any]) -> None:
        params = (Param(name, str(value)[:_LONGEST_PARAMETER]) for name, value in config.items())
        while batch := list(islice(params, _PARAMETERS_PER_REQUEST)):
            self._client.log_batch(self._id, params=batch)


def _local_store(folder: Path) -> str:
    """Return the URI of a store in a folder, of the kind that the installed packages can write."""
    private_folder(folder)
    if importlib.util.find_spec("sqlalchemy") is not None:
        return f"sqlite:///{folder / 'mlflow.db'}"
    # MLflow refuses its file store unless it is asked for.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return folder.as_uri()
