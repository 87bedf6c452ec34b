"""TensorBoard: curves of the metrics, settings and transcripts as text, in ``RUN/tensorboard``."""

from __future__ import annotations

import errno
import io
import json
import os
import textwrap
import time
from collections.abc import Mapping
from typing import Any

# TensorBoard has no type hints.
from tensorboard.compat.proto import event_pb2  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]
from torch.utils.tensorboard import summary

from art_trainer.tracking.run_dir import private_folder
from art_trainer.tracking.sinks.base import EpisodesPlayed, RunInfo, Sink, StepDone
from art_trainer.tracking.sinks.rows import dashboard_metrics
from art_trainer.tracking.sinks.traces import well_formed

_LONGEST_TEXT = 4000
_summary: Any = summary  # its functions have no types


class TensorBoardSink(Sink):
    """Writes event files, with values as float32. See them with ``tensorboard --logdir runs``.

    Of each step's episodes the first is shown as text. Each event is appended whole or not at all, which
    TensorBoard's own writer does not promise.
    """

    name = "tensorboard"

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin an event file; TensorBoard reads all files of a folder as one run."""
        super().open(run, resume=resume)
        folder = run.folder / "tensorboard"
        private_folder(folder)
        # The name that TensorBoard looks for; the files of a run are read in the order of their times.
        self._file = folder / f"events.out.tfevents.{time.time_ns() // 1000}.{os.getpid()}"
        self._append(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume is None:
            settings = json.dumps(dict(run.config), indent=1, default=str)
            self._write(0, _summary.text("settings", _indented(settings)))

    def on_metrics(self, event: StepDone) -> None:
        """Write a step's metrics."""
        numbers = dashboard_metrics(event.metrics).items()
        self._write(event.step, *(_summary.scalar(name, value) for name, value in numbers))

    def on_episodes(self, event: EpisodesPlayed) -> None:
        """Write a step's first episode."""
        episode = event.episodes[0]
        parts = [episode.observation]
        for turn in episode.turns:
            parts += [f"> {turn.reply}", turn.observation]
        shown = "\n\n".join(parts)
        shown = shown if len(shown) <= _LONGEST_TEXT else f"{shown[:_LONGEST_TEXT]} …"
        head = f"{event.episode_id(0)}: reward {episode.reward:g}, {episode.ending.value}"
        self._write(event.step, _summary.text("episode", well_formed(f"{head}\n\n{_indented(shown)}")))

    def _write(self, step: int, *summaries: Any) -> None:
        event = event_pb2.Event(wall_time=time.time(), step=step)
        for one in summaries:
            event.summary.MergeFrom(one)
        self._append(event)

    def _append(self, event: Any) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        data = record.getvalue()
        with self._file.open("ab", buffering=0) as stream:
            size = stream.tell()
            if stream.write(data) != len(data):
                stream.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _indented(words: str) -> str:
    """Markdown in which nothing of the text is markup."""
    return textwrap.indent(words, "    ")
