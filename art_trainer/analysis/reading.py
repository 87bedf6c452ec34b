"""The one place that reads a run's episodes and metrics: a group in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art_trainer.episodes import Episode
from art_trainer.errors import RecordError
from art_trainer.records import iter_episodes


@dataclass(slots=True)
class Broken:
    """What could not be read, as a killed run or a damaged disk leaves it.

    Attributes:
        lines: Lines of ``metrics.jsonl`` that are not whole.
        words: What was wrong with the episodes' records, after which no more of them were read.
    """

    lines: int = 0
    words: list[str] = field(default_factory=list)


def iter_groups(run: Path, broken: Broken) -> Iterator[tuple[int, list[Episode]]]:
    """Recorded training episodes by group, each with its step, in the order they were played.

    Args:
        run: The run's folder.
        broken: Damage is noted here; what was read before it counts.
    """
    place: tuple[int, bool, int] = (0, False, -1)
    members: list[Episode] = []
    try:
        for record in iter_episodes(run):
            following = (record.step, record.replaced, record.group)
            if members and place != following:
                yield place[0], members
                members = []
            place = following
            members.append(record.episode)
    except RecordError as error:
        broken.words.append(str(error))
    if members:
        yield place[0], members


def iter_metrics(run: Path, broken: Broken) -> Iterator[dict[str, Any]]:
    """The lines of ``metrics.jsonl``; those that are not whole are counted."""
    file = run / "metrics.jsonl"
    if not file.exists():
        return
    with file.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                record = json.loads(line)
            except ValueError:
                broken.lines += 1
                continue
            if isinstance(record, dict):
                yield record
            else:
                broken.lines += 1
