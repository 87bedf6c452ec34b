"""MLflow: parameters, metrics, tags and the episodes' table, in the store of ``MLFLOW_TRACKING_URI``.

Without an address they go into ``mlruns`` beside the run's folder, which all runs share: a SQLite database
where SQLAlchemy is installed, else files (``mlflow-skinny`` alone writes no database).
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from art_trainer.monitoring.events import (
    CheckpointSaved,
    EpisodesPlayed,
    Event,
    EventRefusedError,
    Outcome,
    RunInfo,
    StepDone,
)
from art_trainer.monitoring.replies import ABOUT_THE_REQUEST
from art_trainer.monitoring.shown import episode_rows, shown_metrics

_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_LONGEST_PARAMETER = 500
_PARAMETERS_PER_REQUEST = 100


class MlflowSink:
    """Writes a run into an MLflow experiment of the project's name; each step's metrics in one request.

    Args:
        address: Where the store is; ``None``: beside the run's folder.
    """

    name = "mlflow"

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._client: Any = None
        self._id = ""
        self._run: RunInfo | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """``MLFLOW_TRACKING_URI``; user names and passwords are read by MLflow itself."""
        return cls(settings.get("MLFLOW_TRACKING_URI"))

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Create the experiment and the run, or go on with the run of an earlier process."""
        from mlflow import MlflowClient

        self._address = self._address or _local_store(run.folder.resolve().parent / "mlruns")
        self._client = MlflowClient(tracking_uri=self._address)
        self._run = run
        if resume and resume.get("destination") == self._address:
            self._id = str(resume["id"])
            self._client.update_run(self._id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(run.project)
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(run.project)
        )
        tags = {"env": run.env_id, "model": run.model, "folder": str(run.folder)}
        tags |= {tag: "true" for tag in run.tags if tag not in tags}
        self._id = self._client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
        self._log_parameters(run.config)

    def deliver(self, event: Event) -> None:
        """Write the metrics of a step, the table of its episodes, or where its checkpoint lies.

        Raises:
            EventRefusedError: Where the server says that it is the event's fault.
        """
        from mlflow.exceptions import MlflowException

        try:
            self._write(event)
        except MlflowException as fault:
            status = fault.get_http_status_code()  # type: ignore[no-untyped-call] # its signature lacks them
            if status in ABOUT_THE_REQUEST:
                raise EventRefusedError(str(fault)) from fault
            raise

    def flush(self) -> None:
        """Every delivery is a request that was answered."""

    def state(self) -> dict[str, Any]:
        """The run's id, and where it is."""
        return {"id": self._id, "destination": self._address}

    def close(self, outcome: Outcome) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._id, status=_STATUS[outcome])

    def _write(self, event: Event) -> None:
        from mlflow.entities import Metric

        assert self._run is not None
        if isinstance(event, StepDone):
            now = int(time.time() * 1000)
            numbers = shown_metrics(event.metrics).items()
            self._client.log_batch(
                self._id, metrics=[Metric(name, value, now, event.step) for name, value in numbers]
            )
        elif isinstance(event, EpisodesPlayed):
            rows = [json.dumps(row._asdict()) + "\n" for row in episode_rows(event, self._run)]
            self._client.log_text(self._id, "".join(rows), f"episodes/step-{event.step:06d}.jsonl")
        elif isinstance(event, CheckpointSaved):
            for alias in event.aliases:
                self._client.set_tag(self._id, f"checkpoint.{alias}", str(event.folder))

    def _log_parameters(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:_LONGEST_PARAMETER]) for name, value in config.items()]
        for first in range(0, len(params), _PARAMETERS_PER_REQUEST):
            self._client.log_batch(self._id, params=params[first : first + _PARAMETERS_PER_REQUEST])


def _local_store(folder: Path) -> str:
    """The address of a store in a folder, of the kind that what is installed can write."""
    folder.mkdir(parents=True, exist_ok=True)
    if importlib.util.find_spec("sqlalchemy") is not None:
        return f"sqlite:///{folder / 'mlflow.db'}"
    # MLflow refuses its file store unless told that it is wanted.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return folder.as_uri()
