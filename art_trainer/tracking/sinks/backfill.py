"""Backfill: a run's events rebuilt from its folder, and how far each sink is in them.

A run's folder has ``sinks/run.json``, the :class:`RunInfo`, and a file for each sink, ``sinks/NAME.json``::

    {"cursor": [12, 1], "state": {"id": "x3k9"},
     "dead_letters": [{"step": 7, "kind": "episodes", "problem": "HTTP 400: …"}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art_trainer.tracking.episode_store import iter_steps, recorded_steps
from art_trainer.tracking.run_dir import (
    RunFolder,
    checkpoint_step,
    list_checkpoints,
    private_folder,
    write_text,
)
from art_trainer.tracking.sinks.base import (
    EVENT_KINDS,
    START,
    CheckpointSaved,
    Cursor,
    EpisodesPlayed,
    Event,
    RunInfo,
    StepDone,
)
from art_trainer.tracking.sinks.redaction import is_secret_name


def events_after(folder: Path, cursor: Cursor = START) -> Iterator[Event]:
    """Yield the events of a run after ``cursor``, in order; the run may still be in progress.

    Pruned checkpoints are missing, and only the newest of the others has the alias ``latest``.

    Args:
        folder: The run folder.
        cursor: The position of the last event that is not wanted.

    Raises:
        RecordError: If the recorded episodes are damaged.
    """
    # A step's episodes are written first, then its metrics, then its checkpoint, and all of that before
    # anything of a later step. The folder may grow while it is read, and whoever has an event never asks for
    # an earlier one. So checkpoints are listed before the metrics and again after them; later ones do not
    # count.
    checkpoints = folder / "checkpoints"
    seen = [checkpoint_step(path) for path in list_checkpoints(checkpoints)]
    lines = RunFolder(folder).metrics().records
    metrics = {int(line["step"]): line for line in lines if isinstance(line.get("step"), int | float)}
    found = {checkpoint_step(path): path for path in list_checkpoints(checkpoints)}
    saved = {step: path for step, path in found.items() if step <= max([*seen, *metrics], default=-1)}
    # Episodes count once their step has its metrics.
    played = {step for step in recorded_steps(folder) if step in metrics and Cursor(step, 1) > cursor}
    records = iter_steps(folder, played)
    for step in sorted({*metrics, *saved}):
        if step in metrics and Cursor(step, 0) > cursor:
            numbers = {name: float(v) for name, v in metrics[step].items() if isinstance(v, int | float)}
            yield StepDone(step, numbers)
        if step in played:
            groups = next(records).groups
            yield EpisodesPlayed(step, tuple(episode for group in groups for episode in group.episodes))
        if step in saved and Cursor(step, 2) > cursor:
            yield CheckpointSaved(step, saved[step], ("latest",) if step == max(saved) else ())


@dataclass(slots=True)
class SinkProgress:
    """How far one sink is in a run.

    Attributes:
        cursor: The last event that was delivered.
        state: What the sink needs to resume; ``None`` if it was never opened.
        dead_letters: Events that it refused, and why.
    """

    cursor: Cursor = START
    state: dict[str, Any] | None = None
    dead_letters: dict[Cursor, str] = field(default_factory=dict)

    @classmethod
    def load(cls, run: Path, name: str) -> SinkProgress:
        """Read ``sinks/NAME.json``. If it cannot be understood everything is delivered again."""
        try:
            data = json.loads(_file(run, name).read_text(encoding="utf-8"))
            step, kind = data["cursor"]
            letters = {
                Cursor(int(one["step"]), EVENT_KINDS.index(one["kind"])): str(one["problem"])
                for one in data.get("dead_letters", ())
            }
            return cls(Cursor(int(step), int(kind)), dict(data["state"]), letters)
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def save(self, run: Path, name: str) -> None:
        """Write the file, whole or not at all."""
        letters = [
            {"step": cursor.step, "kind": EVENT_KINDS[cursor.kind], "problem": problem}
            for cursor, problem in sorted(self.dead_letters.items())
        ]
        _write(_file(run, name), {"cursor": self.cursor, "state": self.state, "dead_letters": letters})


def describe_run(folder: Path, settings: Mapping[str, Any], *, max_turns: int | None = None) -> RunInfo:
    """Describe a run to its sinks.

    Args:
        folder: The run folder.
        settings: All its settings, as in ``run.yaml``; secrets among them are left out.
        max_turns: Most turns of a training episode, if known.
    """
    return RunInfo(folder, _without_secrets(settings), max_turns)


def write_run_info(run: RunInfo) -> None:
    """Write ``sinks/run.json``, for sinks that are added later."""
    data = {"max_turns": run.max_turns, "config": run.config}
    _write(_file(run.folder, "run"), data)


def read_run_info(folder: Path) -> RunInfo:
    """Read ``sinks/run.json``; for a run that had no sinks, ``run.yaml``.

    Raises:
        ValueError: If the file is damaged.
    """
    file = _file(folder, "run")
    if not file.exists():
        return describe_run(folder, RunFolder(folder).settings())
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return RunInfo(folder, dict(data["config"]), data["max_turns"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error


def _file(run: Path, name: str) -> Path:
    return run / "sinks" / f"{name}.json"


def _write(file: Path, data: Mapping[str, Any]) -> None:
    private_folder(file.parent)
    write_text(file, json.dumps(data) + "\n")


def _without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Copy settings, however deep, without those whose names say that they are secret."""
    return {
        name: _without_secrets(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if not is_secret_name(str(name))
    }
