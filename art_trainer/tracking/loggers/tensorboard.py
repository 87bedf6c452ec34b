"""TensorBoard: curves of the metrics, settings and transcripts as text, in ``RUN/tensorboard``."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorboard  # type: ignore[import-untyped]  # noqa: F401, PyTorch's message would not name it
from torch.utils.tensorboard import SummaryWriter

from art_trainer.tracking.callbacks import Outcome
from art_trainer.tracking.loggers.base import RunLogger, dashboard_metrics, episode_id, well_formed
from art_trainer.tracking.run_dir import private_folder
from art_trainer.types import Episode, Group

_LONGEST_TEXT = 4000
_FLUSH_SECONDS = 10


class TensorBoardLogger(RunLogger):
    """Writes event files, with values as float32. See them with ``tensorboard --logdir runs``.

    Of each step's episodes the first is shown as text. A resumed run hides the steps that it repeats.
    """

    name = "tensorboard"

    def on_begin(self, step: int) -> None:
        """Begin an event file; TensorBoard reads all files of a folder as one run."""
        folder = self.run.folder / "tensorboard"
        private_folder(folder)
        repeated = step + 1 if step else 0  # a run that begins again also evaluates again
        self._writer: Any = SummaryWriter(folder, purge_step=repeated, flush_secs=_FLUSH_SECONDS)
        if step == 0:
            settings = json.dumps(dict(self.run.config), indent=1, default=str)
            self._writer.add_text("settings", _indented(settings), 0)

    def on_logged(self, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """Write a step's metrics and its first episode."""
        step = int(metrics["step"])
        for name, value in dashboard_metrics(metrics).items():
            self._writer.add_scalar(name, value, step)
        if groups:
            self._writer.add_text("episode", _transcript(step, groups[0].episodes[0]), step)

    def on_checkpoint(self, step: int, folder: Path, aliases: tuple[str, ...]) -> None:
        """Nothing: TensorBoard shows no models."""

    def on_end(self, outcome: Outcome) -> None:
        """Write what is left."""
        self._writer.close()


def _transcript(step: int, episode: Episode) -> str:
    parts = [episode.observation]
    for turn in episode.turns:
        parts += [f"> {turn.reply}", turn.observation]
    shown = "\n\n".join(parts)
    shown = shown if len(shown) <= _LONGEST_TEXT else f"{shown[:_LONGEST_TEXT]} …"
    head = f"{episode_id(step, 0)}: reward {episode.reward:g}, {episode.ending.value}"
    return well_formed(f"{head}\n\n{_indented(shown)}")


def _indented(words: str) -> str:
    """Markdown in which nothing of the text is markup."""
    return textwrap.indent(words, "    ")
