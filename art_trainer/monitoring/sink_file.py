"""What is kept about a run's sinks in its folder: ``RUN/sinks/NAME.json``, and the run's own ``run.json``.

::

    sinks/run.json      the run as its sinks were told of it
    sinks/wandb.json    {"cursor": [12, 1], "state": {"id": "x3k9"}}

A sink that refused events has them in its file, too, as ``"aside": [{"step": 7, "kind": "episodes",
"problem": "…"}]``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from art_trainer.monitoring.events import RunInfo
from art_trainer.monitoring.refusals import Refusals
from art_trainer.monitoring.source import START, Cursor
from art_trainer.run_folder import write_text


class Kept(NamedTuple):
    """What is known of a sink from earlier processes."""

    cursor: Cursor
    """The place of the last event it took."""
    state: dict[str, Any] | None
    """What it needs to go on; ``None`` where nothing was kept."""
    refusals: Refusals


@dataclass(frozen=True, slots=True)
class SinkFile:
    """How far one sink of a run is."""

    path: Path

    @classmethod
    def of(cls, run: Path, name: str) -> SinkFile:
        """The file of one of a run's sinks."""
        return cls(run / "sinks" / f"{name}.json")

    def read(self) -> Kept:
        """What was kept; nothing: the start.

        A file that cannot be understood counts as none: better to deliver again than not at all.
        """
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            step, rank = kept["cursor"]
            refusals = Refusals.from_json(kept.get("aside", ()))
            return Kept(Cursor(int(step), int(rank)), dict(kept["state"]), refusals)
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return Kept(START, None, Refusals())

    def write(self, cursor: Cursor, state: Mapping[str, Any], refusals: Refusals) -> None:
        """Keep all of it, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"cursor": list(cursor), "state": dict(state)}
        if len(refusals):
            kept["aside"] = refusals.to_json()
        write_text(self.path, json.dumps(kept) + "\n")

    def forget(self) -> None:
        """Keep nothing: the next sink of this name begins anew."""
        self.path.unlink(missing_ok=True)


def write_run_info(run: RunInfo) -> None:
    """Keep what the sinks were told of a run, for those that come later."""
    file = run.folder / "sinks" / "run.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(dataclasses.asdict(run) | {"folder": "."}, indent=1) + "\n")


def read_run_info(folder: Path) -> RunInfo | None:
    """What the sinks of a run were told; ``None`` for a run that had none.

    Raises:
        ValueError: Where the file is damaged.
    """
    file = folder / "sinks" / "run.json"
    if not file.exists():
        return None
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return RunInfo(**{**kept, "folder": folder, "tags": tuple(kept["tags"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
