"""TensorBoard: curves of the metrics, the settings and transcripts as text, in ``RUN/tensorboard``."""

from __future__ import annotations

import errno
import io
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

# TensorBoard has no type hints.
from tensorboard.compat.proto import (  # type: ignore[import-untyped]
    event_pb2,
    summary_pb2,
    tensor_pb2,
    tensor_shape_pb2,
)
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from art_trainer.monitoring.events import EpisodesPlayed, Event, Outcome, RunInfo, StepDone
from art_trainer.monitoring.shown import shown_metrics

_LONGEST_TEXT = 4000


class TensorBoardSink:
    """Writes event files; values are 32-bit there. Look at them with ``tensorboard --logdir runs``.

    Of the episodes of each step it shows the first as text. Each event is appended whole or not at all.
    """

    name = "tensorboard"

    def __init__(self) -> None:
        self._file = Path()

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """It has no settings."""
        return cls()

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin an event file; TensorBoard reads all of a folder as one run."""
        folder = run.folder / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        # The name that TensorBoard looks for; the files of a run are read in the order of their times.
        self._file = folder / f"events.out.tfevents.{time.time_ns() // 1000}.{os.getpid()}"
        self._append(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume is None:
            text = json.dumps(dict(run.config), indent=1, default=str)
            self._write([_text("settings", "    " + text.replace("\n", "\n    "))], run.resumed_from_step)

    def deliver(self, event: Event) -> None:
        """Write the metrics of a step, or its first episode."""
        if isinstance(event, StepDone):
            value_of = summary_pb2.Summary.Value
            numbers = shown_metrics(event.metrics).items()
            self._write([value_of(tag=name, simple_value=value) for name, value in numbers], event.step)
        elif isinstance(event, EpisodesPlayed):
            self._write([_text("episode", _transcript(event))], event.step)

    def flush(self) -> None:
        """Every delivery is in the file."""

    def state(self) -> dict[str, Any]:
        """Nothing is needed to go on."""
        return {}

    def close(self, outcome: Outcome) -> None:
        """Nothing is open."""

    def _write(self, values: list[Any], step: int) -> None:
        summary = summary_pb2.Summary(value=values)
        self._append(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))

    def _append(self, event: Any) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        data = record.getvalue()
        with self._file.open("ab", buffering=0) as stream:
            size = stream.tell()
            if stream.write(data) != len(data):
                stream.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _transcript(event: EpisodesPlayed) -> str:
    """The first episode as Markdown, every text indented so that nothing in it is markup."""
    episode = event.episodes[0]
    parts = [episode.observation]
    for turn in episode.turns:
        parts += [f"> {turn.reply}", turn.observation]
    told = "\n\n".join(parts)
    told = told if len(told) <= _LONGEST_TEXT else f"{told[:_LONGEST_TEXT]} …"
    head = f"{event.episode_id(0)}: reward {episode.reward:g}, {episode.ending.value}"
    return f"{head}\n\n    " + told.replace("\n", "\n    ")


def _text(tag: str, text: str) -> Any:
    """A text summary, as TensorBoard's text plugin reads it."""
    plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    words = text.encode("utf-8", errors="replace")
    tensor = tensor_pb2.TensorProto(dtype="DT_STRING", string_val=[words], tensor_shape=shape)
    metadata = summary_pb2.SummaryMetadata(plugin_data=plugin)
    return summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
