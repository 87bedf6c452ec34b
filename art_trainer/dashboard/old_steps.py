"""Episodes that were recorded before the file of frames: one file of JSON lines a step, schema version 0.

Nothing writes such files any more. They hold transcripts of some episodes, mostly without tokens. Here each
looks like a frame of today's file, line by line, so that the rest of the dashboard knows one form alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_trainer.episodes import Episode
from art_trainer.errors import RecordError
from art_trainer.records.encoding import encode_episode
from art_trainer.records.writer import STEP

_FOLDER = "episodes"
_NAME = re.compile(r"step-(\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class OldStep:
    """One step's file.

    Attributes:
        file: The file.
        header: What a frame's header says of the same: ``kind``, ``step`` and how many ``episodes``.
    """

    file: Path
    header: Mapping[str, Any]

    def lines(self) -> Iterator[bytes]:
        """Give its episodes as today's lines, the attempts of a group one after the other.

        Raises:
            RecordError: Where a line is no episode.
        """
        groups: dict[tuple[str, int], list[Episode]] = {}
        for number, line in enumerate(self._stored(), start=1):
            try:
                episode = Episode.from_json(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise RecordError(f"{self.file}, line {number}: not an episode ({error!r})") from error
            groups.setdefault((episode.task_id, episode.seed), []).append(episode)
        for group, episodes in enumerate(groups.values()):
            place = {"step": self.header["step"], "group": group, "replaced": False}
            yield from (encode_episode(episode, place).encode("ascii") for episode in episodes)

    def named(self) -> str:
        """Words for messages."""
        return str(self.file)

    def _stored(self) -> list[bytes]:
        try:
            return self.file.read_bytes().splitlines()
        except FileNotFoundError as error:
            raise RecordError(f"{self.file} is not there any more") from error


def old_steps(run: Path) -> list[OldStep]:
    """Return the steps that a run has in files of version 0, in order.

    Raises:
        OSError: Where a file cannot be read.
    """
    found = []
    for file in (run / _FOLDER).glob("step-*.jsonl"):
        match = _NAME.fullmatch(file.name)
        if match is not None:
            with file.open("rb") as stream:
                episodes = sum(1 for _ in stream)
            found.append(OldStep(file, {"kind": STEP, "step": int(match[1]), "episodes": episodes}))
    return sorted(found, key=lambda step: int(step.header["step"]))
