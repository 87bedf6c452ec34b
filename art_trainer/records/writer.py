"""Writes every training episode to the run's folder, as the run goes.

::

    episodes.jsonl.zst     a frame a step, see :mod:`art_trainer.records.frames`

Two kinds of frames: ``settings``, one line with the settings that the steps after it were made with, written
when the run begins and again where a resumed run has others; and ``step``, a line an episode. What a step's
update needs is in them: tokens, masks, log-probs, versions, rewards, judgements, and which attempts are a
group.

A frame is handed to the operating system when its step ends, so a killed process loses nothing. It is forced
to the disk before a checkpoint is written: a run that goes on after a power cut starts from a checkpoint, and
does again what came after it.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from art_trainer.disk import fsync
from art_trainer.episodes import Group
from art_trainer.errors import RecordError
from art_trainer.records.encoding import encode_episode
from art_trainer.records.frames import append_frame, walk

FILE = "episodes.jsonl.zst"
SETTINGS, STEP = "settings", "step"
_NOT_OF_THE_UPDATE = ("output_dir",)


class EpisodeWriter:
    """Appends to one run's episodes. It keeps no file open, so there is nothing to close.

    Args:
        folder: The run's folder, which must exist when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE

    def begin(self, config: Mapping[str, Any], step: int, weights: str | None = None) -> None:
        """Forget the steps that a resumed run does again, and note the settings where they are new.

        Args:
            config: The trainer's settings, JSON-able.
            step: Steps done so far.
            weights: What :func:`art_trainer.records.weights.weights_digest` says of the model, where the run
                begins.

        Raises:
            RecordError: Where the file is damaged before that step: move it away to go on without.
        """
        known = self._cut(step)
        settings = {name: value for name, value in config.items() if name not in _NOT_OF_THE_UPDATE}
        settings = json.loads(json.dumps(settings))
        if known == settings:
            return
        line = json.dumps({"kind": SETTINGS, "after": step, "config": settings, "weights": weights})
        append_frame(self.file, {"kind": SETTINGS, "after": step}, [line])

    def write_step(
        self, step: int, groups: Sequence[Group], replaced: Sequence[Group] = (), *, limit: int | None = None
    ) -> None:
        """Append a step.

        Args:
            step: Its number, from 1.
            groups: What was learned from, in order.
            replaced: What dynamic sampling played and put others in place of.
            limit: Most episodes to keep, of the first groups; such a step cannot be replayed.

        Raises:
            OSError: Where there is no room; the file is as it was before.
        """
        played = sum(len(group.episodes) for group in (*groups, *replaced))
        kept = played if limit is None else min(limit, played)
        header = {
            "kind": STEP,
            "step": step,
            "groups": len(groups),
            "replaced": len(replaced),
            "episodes": kept,
            "left_out": played - kept,
        }
        append_frame(self.file, header, itertools.islice(_lines(step, groups, replaced), kept))

    def sync(self) -> None:
        """Force what was written to the disk."""
        if self.file.exists():
            fsync(self.file)

    def _cut(self, step: int) -> dict[str, Any] | None:
        """Cut off what comes after a step; return the settings of what is left, where there are any."""
        if not self.file.exists():
            return None
        kept, last, settings, fault = 0, 0, None, "it breaks off"
        try:
            for frame in walk(self.file):
                is_settings = frame.header["kind"] == SETTINGS
                after = frame.header["after" if is_settings else "step"]
                if step == 0 or after > step:
                    fault = ""
                    break
                kept = frame.end
                if is_settings:
                    (line,) = frame.lines()
                    settings = json.loads(line)["config"]
                else:
                    last = after
        except RecordError as error:
            fault = str(error)
        # What a checkpoint knows of was on the disk before it: it cannot have been cut off by a kill.
        size = self.file.stat().st_size
        if fault and last < step and kept < size:
            raise RecordError(
                f"{self.file} lacks episodes between steps {last} and {step}: {fault}; to go on without "
                "them, move the file away"
            )
        if kept < size:
            os.truncate(self.file, kept)
        return settings


def _lines(step: int, groups: Sequence[Group], replaced: Sequence[Group]) -> Iterator[str]:
    for batch, is_replaced in ((groups, False), (replaced, True)):
        for index, group in enumerate(batch):
            place = {"kind": "episode", "step": step, "group": index, "replaced": is_replaced}
            for episode in group.episodes:
                yield encode_episode(episode, place)
