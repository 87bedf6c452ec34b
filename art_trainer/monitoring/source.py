"""A run's events, rebuilt from its folder: what a sink that fell behind, or was not there, reads instead."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple

from art_trainer.checkpoint import list_checkpoints
from art_trainer.episodes import Episode
from art_trainer.monitoring.events import CheckpointSaved, EpisodesPlayed, Event, StepDone
from art_trainer.records.reader import iter_steps, recorded_steps
from art_trainer.run_folder import RunFolder, read_lines

_RANK: dict[type[Event], int] = {StepDone: 0, EpisodesPlayed: 1, CheckpointSaved: 2}
_CHECKPOINT = re.compile(r"\.?step-(\d+)")


class Cursor(NamedTuple):
    """The place of an event in its run; cursors compare as the events follow each other."""

    step: int
    rank: int


START = Cursor(-1, 0)
"""Before every event."""


def cursor_of(event: Event) -> Cursor:
    """The event's place."""
    return Cursor(event.step, _RANK[type(event)])


def events_after(folder: Path, cursor: Cursor = START) -> Iterator[Event]:
    """Yield a run's events that follow ``cursor``, in order; the run may still be going on.

    Checkpoints that were pruned are not among them, and of those that are left only the newest is called the
    latest.

    Args:
        folder: The run's folder.
        cursor: The place of the last event that is not wanted.

    Raises:
        RecordError: Where the recorded episodes are damaged.
    """
    # A step's episodes are written first, then its line, then its checkpoint, and all of that before anything
    # of a later step. What is read here must have no gap, though it grows meanwhile: whoever has an event
    # never asks for an earlier one again. So checkpoints are listed before the lines and again after them,
    # and nothing counts that is newer than the last of what was found by then.
    checkpoints = folder / "checkpoints"
    newest = max(_saved(checkpoints), default=-1)
    lines = read_lines(RunFolder(folder).metrics_file).records
    done = {int(line["step"]): line for line in lines if isinstance(line.get("step"), int | float)}
    newest = max([newest, *done])
    saved = {step: path for step, path in _saved(checkpoints).items() if step <= newest}
    # Episodes come with their step's line; not every step has one.
    played = [step for step in recorded_steps(folder) if step in done and Cursor(step, 1) > cursor]
    episodes = _episodes(folder, frozenset(played))
    for step in sorted({*done, *played, *saved}):
        if step in done and Cursor(step, 0) > cursor:
            numbers = {name: float(v) for name, v in done[step].items() if isinstance(v, int | float)}
            yield StepDone(step, numbers)
        if step in played:
            yield EpisodesPlayed(step, next(episodes))
        if step in saved and Cursor(step, 2) > cursor:
            yield CheckpointSaved(step, saved[step], ("latest",) if step == max(saved) else ())


def _episodes(folder: Path, steps: Container[int]) -> Iterator[tuple[Episode, ...]]:
    """The episodes that each of these steps learned from, one step in memory at a time."""
    for record in iter_steps(folder, steps):
        yield tuple(episode for group in record.groups for episode in group.episodes)


def _saved(checkpoints: Path) -> dict[int, Path]:
    """The checkpoints by their steps."""
    found = {path: _CHECKPOINT.match(path.name) for path in list_checkpoints(checkpoints)}
    return {int(match[1]): path for path, match in found.items() if match}
