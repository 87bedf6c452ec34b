"""Episode store: writes and reads every training episode of a run, in ``episodes.jsonl.zst``.

The file has two kinds of frames: ``settings``, one line with the trainer's settings for the steps after it,
written when the run begins and again if a resumed run has others; and ``step``, a line an episode. They hold
all that a step's update needs: tokens, masks, log-probs, versions, rewards, judgements and the groups.

A frame is handed to the operating system when its step ends, so a killed process loses nothing, and forced to
the disk before a checkpoint is written. Readers need memory for one step; they may read during the run.

Zstandard and JSON lines take less space than Parquet for episodes, and any program can read them.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from art_trainer.errors import RecordError
from art_trainer.tracking.episode_schema import episode_from_json, episode_to_line
from art_trainer.tracking.frame_file import Frame, append_frame, read_frames
from art_trainer.types import Episode, Group

FILE = "episodes.jsonl.zst"
SETTINGS, STEP = "settings", "step"


def begin_episodes(folder: Path, config: Mapping[str, Any], step: int) -> None:
    """Drop the steps that a resumed run repeats, and write the settings if they are new.

    Args:
        folder: The run folder.
        config: The trainer's settings, JSON-able.
        step: Steps done so far.

    Raises:
        RecordError: If the file is damaged before that step.
    """
    known = _truncate_after(folder / FILE, step)
    settings = {name: value for name, value in config.items() if name != "output_dir"}
    if known != json.loads(json.dumps(settings)):
        line = json.dumps({"kind": SETTINGS, "after": step, "config": settings})
        append_frame(folder / FILE, {"kind": SETTINGS, "after": step}, [line])


def append_episodes(
    folder: Path,
    step: int,
    groups: Sequence[Group],
    replaced: Sequence[Group] = (),
    *,
    limit: int | None = None,
) -> None:
    """Append a step's episodes; see :meth:`art_trainer.tracking.run_dir.RunFolder.write_episodes`.

    Raises:
        OSError: If there is no room; the file is as it was before.
    """
    played = sum(len(group.episodes) for group in (*groups, *replaced))
    kept = played if limit is None else min(limit, played)
    counts = {"groups": len(groups), "replaced": len(replaced), "episodes": kept, "left_out": played - kept}
    lines = islice(_lines(step, groups, replaced), kept)
    append_frame(folder / FILE, {"kind": STEP, "step": step, **counts}, lines)


def _truncate_after(file: Path, step: int) -> Mapping[str, Any] | None:
    """Drop what follows a step; return the settings in force there, if there are any."""
    end, last, settings, fault = 0, 0, None, "it ends there"
    try:
        for frame in read_frames(file):
            after = frame.header["after" if frame.header["kind"] == SETTINGS else "step"]
            if step == 0 or after > step:
                fault = ""
                break
            end = frame.end
            if frame.header["kind"] == SETTINGS:
                settings = _settings(frame)
            else:
                last = after
    except RecordError as error:
        fault = str(error)
    size = file.stat().st_size if file.exists() else 0
    # A checkpoint's steps were on the disk before it: a kill cannot have cut them off.
    if fault and last < step and end < size:
        raise RecordError(
            f"{file} lacks episodes between steps {last} and {step}: {fault}; to continue without them, move "
            "the file away"
        )
    if end < size:
        os.truncate(file, end)
    return settings


def _lines(step: int, groups: Sequence[Group], replaced: Sequence[Group]) -> Iterator[str]:
    for batch, is_replaced in ((groups, False), (replaced, True)):
        for index, group in enumerate(batch):
            place = {"kind": "episode", "step": step, "group": index, "replaced": is_replaced}
            yield from (episode_to_line(episode, place) for episode in group.episodes)


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """An episode and its place in the run.

    Attributes:
        step: The training step, from 1.
        group: The number of its group in the step, from 0; replaced groups are counted apart.
        replaced: Whether dynamic sampling replaced its group: nothing was learned from it.
        episode: The episode.
    """

    step: int
    group: int
    replaced: bool
    episode: Episode


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The episodes of one step.

    Attributes:
        step: Its number, from 1.
        groups: The groups that were trained on, in order.
        replaced: Groups that dynamic sampling replaced.
        left_out: How many episodes were played but not kept; above 0 the update cannot be repeated.
    """

    step: int
    groups: tuple[Group, ...]
    replaced: tuple[Group, ...]
    left_out: int


def iter_steps(run: Path | str, steps: Container[int] | None = None) -> Iterator[StepRecord]:
    """Yield the recorded steps in order.

    Args:
        run: The run folder.
        steps: Which, such as ``range(10, 20)``; others are skipped unread. By default all.

    Raises:
        RecordError: If a record is damaged, or written by a newer version.
    """
    for frame in step_frames(run, steps):
        batches: tuple[dict[int, list[Episode]], ...] = (defaultdict(list), defaultdict(list))
        for found in _episodes(frame):
            batches[found.replaced][found.group].append(found.episode)
        groups, replaced = (tuple(Group(tuple(b[index])) for index in sorted(b)) for b in batches)
        yield StepRecord(frame.header["step"], groups, replaced, frame.header["left_out"])


def iter_episodes(run: Path | str, steps: Container[int] | None = None) -> Iterator[RecordedEpisode]:
    """Yield every episode, also those of replaced groups; as :func:`iter_steps`, in less memory."""
    for frame in step_frames(run, steps):
        yield from _episodes(frame)


def recorded_settings(run: Path | str) -> list[Mapping[str, Any]]:
    """Return the trainer's settings in the order they came into force; raises as :func:`iter_steps`."""
    return [_settings(frame) for frame in read_frames(Path(run) / FILE) if frame.header["kind"] == SETTINGS]


def require_observations(run: Path | str) -> None:
    """Raise ``RecordError`` for a run that was recorded without what the environment showed."""
    if not all(settings.get("log_observations", True) for settings in recorded_settings(run)):
        raise RecordError(
            f"{run} lacks what the environment showed: it was recorded with log_observations: false"
        )


def step_frames(run: Path | str, steps: Container[int] | None = None) -> Iterator[Frame]:
    """Yield the frames of the recorded steps; raises as :func:`iter_steps`."""
    for frame in read_frames(Path(run) / FILE):
        if frame.header["kind"] == STEP and (steps is None or frame.header["step"] in steps):
            yield frame


def _settings(frame: Frame) -> Mapping[str, Any]:
    (line,) = frame.lines()
    found: Mapping[str, Any] = json.loads(line)["config"]
    return found


def _episodes(frame: Frame) -> Iterator[RecordedEpisode]:
    for number, line in enumerate(frame.lines(), start=1):
        try:
            data = json.loads(line)
            episode = episode_from_json(data)
            yield RecordedEpisode(frame.header["step"], data["group"], data["replaced"], episode)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{frame}, line {number}: not an episode ({error!r})") from error
