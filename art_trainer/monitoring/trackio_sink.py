"""trackio: metrics and episodes in its local project database; look at them with ``trackio show``.

Written through trackio's storage, not its client: the client's own thread drops what it cannot write, with a
warning, while here a failure must be known. Each row has an id, so what comes twice is kept once. ``trackio
sync`` sends a project to a Hugging Face Space.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, Self

from trackio import Table
from trackio.sqlite_storage import SQLiteStorage

from art_trainer.monitoring.events import EpisodesPlayed, Event, Outcome, RunInfo, StepDone
from art_trainer.monitoring.shown import episode_rows, shown_metrics


class TrackioSink:
    """Writes a run into its project's database, below ``TRACKIO_DIR``."""

    name = "trackio"

    def __init__(self) -> None:
        self._run: RunInfo | None = None
        self._id = ""
        self._config: dict[str, Any] | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """``TRACKIO_DIR`` is read by trackio itself."""
        return cls()

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin a run, or go on with the one of the same id."""
        self._run = run
        self._id = str(resume["id"]) if resume else uuid.uuid4().hex
        # The settings go with the first row; trackio keeps names with an underscore for itself.
        config = json.loads(json.dumps(dict(run.config), default=str)) | {"tags": list(run.tags)}
        self._config = None if resume else {k: v for k, v in config.items() if not k.startswith("_")}

    def deliver(self, event: Event) -> None:
        """Write the metrics of a step, or a table of its episodes."""
        assert self._run is not None
        if isinstance(event, StepDone):
            self._write(event.step, "metrics", shown_metrics(event.metrics))
        elif isinstance(event, EpisodesPlayed):
            rows = [row._asdict() for row in episode_rows(event, self._run)]
            self._write(event.step, "episodes", {"episodes": {"_type": Table.TYPE, "_value": rows}})

    def flush(self) -> None:
        """Every delivery is committed."""

    def state(self) -> dict[str, Any]:
        """The run's id."""
        return {"id": self._id}

    def close(self, outcome: Outcome) -> None:
        """Nothing is open."""

    def _write(self, step: int, what: str, row: Mapping[str, Any]) -> None:
        assert self._run is not None
        SQLiteStorage.bulk_log(
            self._run.project,
            self._run.name,
            [dict(row)],
            steps=[step],
            config=self._config,
            log_ids=[f"{self._id}-{step}-{what}"],
            run_id=self._id,
        )
        self._config = None
