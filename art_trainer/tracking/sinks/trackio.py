"""trackio: metrics and episodes in its local project database; see them with ``trackio show``.

Written through trackio's storage, not its client, whose thread drops what it cannot write with a warning.
Each row has an id, so what comes twice is stored once. ``trackio sync`` sends a project to a Hugging Face
Space.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from trackio import Table
from trackio.sqlite_storage import SQLiteStorage

from art_trainer.tracking.sinks.base import EpisodesPlayed, RunInfo, Sink, StepDone
from art_trainer.tracking.sinks.rows import dashboard_metrics, episode_rows


class TrackioSink(Sink):
    """Writes a run into its project's database, below ``TRACKIO_DIR``, which trackio reads itself."""

    name = "trackio"

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin a run, or resume the one of the same id."""
        super().open(run, resume=resume)
        self._id = str(resume["id"]) if resume else uuid.uuid4().hex
        # The settings go with the first row; trackio reserves names with an underscore.
        config = json.loads(json.dumps(dict(run.config), default=str)) | {"tags": list(run.tags)}
        self._config = None if resume else {k: v for k, v in config.items() if not k.startswith("_")}

    def on_metrics(self, event: StepDone) -> None:
        """Write a step's metrics."""
        self._write(event.step, "metrics", dashboard_metrics(event.metrics))

    def on_episodes(self, event: EpisodesPlayed) -> None:
        """Write a table of a step's episodes."""
        rows = [row._asdict() for row in episode_rows(event, self.run)]
        self._write(event.step, "episodes", {"episodes": {"_type": Table.TYPE, "_value": rows}})

    def state(self) -> dict[str, Any]:
        """The run's id."""
        return {"id": self._id}

    def _write(self, step: int, kind: str, row: Mapping[str, Any]) -> None:
        SQLiteStorage.bulk_log(
            self.run.project,
            self.run.name,
            [dict(row)],
            steps=[step],
            config=self._config,
            log_ids=[f"{self._id}-{step}-{kind}"],
            run_id=self._id,
        )
        self._config = None
