"""Reads a run's recorded episodes, also while it is being trained, one step in memory at a time.

Version 1 is what :mod:`art_trainer.records.writer` writes. Version 0, of runs before it, is one JSON file a
step, ``episodes/step-000001.jsonl``, with transcripts of some episodes and without their tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_trainer.episodes import Episode, Group
from art_trainer.errors import RecordError
from art_trainer.records.encoding import decode_episode
from art_trainer.records.frames import Frame, walk
from art_trainer.records.writer import FILE, SETTINGS, STEP

_OLD_NAME = re.compile(r"step-(\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """An episode and its place in the run.

    Attributes:
        step: The step it was played for, from 1.
        group: The number of its group in the step, from 0; replaced groups are counted apart.
        replaced: Whether dynamic sampling put another group in its place: nothing was learned from it.
        episode: The episode.
    """

    step: int
    group: int
    replaced: bool
    episode: Episode


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What was played for one step.

    Attributes:
        step: Its number, from 1.
        groups: What was learned from, in order.
        replaced: What dynamic sampling put others in place of.
        left_out: How many episodes were not kept; ``None`` where nobody knows.
        schema: The version it was written in; 0 has no tokens.
    """

    step: int
    groups: tuple[Group, ...]
    replaced: tuple[Group, ...]
    left_out: int | None
    schema: int

    @property
    def complete(self) -> bool:
        """Whether the update can be done again from it."""
        return self.left_out == 0 and self.schema > 0


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    """What the steps after ``after`` were made with.

    Attributes:
        after: Steps done when these settings came into force.
        config: The trainer's settings, apart from its folder.
        weights: The digest of the model's weights then, where the run began.
    """

    after: int
    config: Mapping[str, Any]
    weights: str | None


@dataclass(frozen=True, slots=True)
class _Source:
    """Where one step's episodes lie: a frame, or a file of version 0."""

    step: int
    place: Frame | Path

    def episodes(self) -> Iterator[RecordedEpisode]:
        place = self.place
        named = str(place) if isinstance(place, Path) else place.named()
        lines = _file_lines(place) if isinstance(place, Path) else place.lines()
        starts: dict[tuple[str, int], int] = {}  # of version 0, which numbers no groups
        for number, line in enumerate(lines, start=1):
            try:
                data = json.loads(line)
                if isinstance(place, Path):
                    episode = Episode.from_json(data)
                    group = starts.setdefault((episode.task_id, episode.seed), len(starts))
                    yield RecordedEpisode(self.step, group, False, episode)
                else:
                    yield RecordedEpisode(self.step, data["group"], data["replaced"], decode_episode(data))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise RecordError(f"{named}, line {number}: not an episode ({error!r})") from error

    def record(self) -> StepRecord:
        batches: tuple[dict[int, list[Episode]], ...] = ({}, {})
        for found in self.episodes():
            batches[found.replaced].setdefault(found.group, []).append(found.episode)
        groups, replaced = (
            tuple(Group(tuple(members)) for _, members in sorted(batch.items())) for batch in batches
        )
        if isinstance(self.place, Path):
            return StepRecord(self.step, groups, replaced, None, 0)
        header = self.place.header
        return StepRecord(self.step, groups, replaced, header["left_out"], header["schema"])


def recorded_steps(run: Path | str) -> list[int]:
    """The steps that a run has episodes of, in order; none where nothing is recorded.

    Raises:
        RecordError: Where the file is damaged.
    """
    return [source.step for source in _sources(Path(run))]


def iter_steps(run: Path | str, steps: Container[int] | None = None) -> Iterator[StepRecord]:
    """Give what was played step by step.

    Args:
        run: The run's folder.
        steps: Which, such as ``range(10, 20)``; others are skipped unread. By default all.

    Raises:
        RecordError: Where a record is damaged, or written by a newer version.
    """
    return (source.record() for source in _sources(Path(run)) if steps is None or source.step in steps)


def iter_episodes(run: Path | str, steps: Container[int] | None = None) -> Iterator[RecordedEpisode]:
    """Give episode after episode, also those of replaced groups; as :func:`iter_steps`, in less memory."""
    for source in _sources(Path(run)):
        if steps is None or source.step in steps:
            yield from source.episodes()


def read_step(run: Path | str, step: int) -> StepRecord:
    """What was played for one step.

    Raises:
        RecordError: Where that step is not recorded, or damaged.
    """
    for record in iter_steps(run, (step,)):
        return record
    known = recorded_steps(run)
    have = f"it has {len(known)} steps from {known[0]} to {known[-1]}" if known else "it has none"
    raise RecordError(f"{run} has no recorded episodes of step {step}: {have}")


def read_groups(run: Path | str, step: int) -> tuple[Group, ...]:
    """The groups that a step learned from; raises as :func:`read_step`."""
    return read_step(run, step).groups


def read_episodes(run: Path | str, step: int) -> tuple[Episode, ...]:
    """All episodes played for a step, those of replaced groups last; raises as :func:`read_step`."""
    record = read_step(run, step)
    return tuple(episode for group in (*record.groups, *record.replaced) for episode in group.episodes)


def recorded_settings(run: Path | str) -> list[RecordedSettings]:
    """The settings of a run in the order they came into force; none for a run of version 0.

    Raises:
        RecordError: Where the file is damaged.
    """
    found = []
    for frame in walk(Path(run) / FILE):
        if frame.header.get("kind") == SETTINGS:
            (line,) = frame.lines()
            data = json.loads(line)
            found.append(RecordedSettings(data["after"], data["config"], data["weights"]))
    return found


def _sources(run: Path) -> Iterator[_Source]:
    """Give the steps in order; what a run of version 0 did after it was gone on with is in the new file."""
    frames = (frame for frame in walk(run / FILE) if frame.header.get("kind") == STEP)
    first = next(frames, None)
    for step, file in _old_files(run):
        if first is None or step < first.header["step"]:
            yield _Source(step, file)
    if first is not None:
        yield _Source(first.header["step"], first)
    for frame in frames:
        yield _Source(frame.header["step"], frame)


def _old_files(run: Path) -> list[tuple[int, Path]]:
    found = []
    for file in (run / "episodes").glob("step-*.jsonl"):
        match = _OLD_NAME.fullmatch(file.name)
        if match is not None:
            found.append((int(match[1]), file))
    return sorted(found)


def _file_lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        yield from stream
