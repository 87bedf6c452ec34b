"""What a training run leaves in its folder as it goes: settings, metrics, episodes, evaluations.

::

    config.json                       the trainer's settings
    metrics.jsonl                     one line a logged step, flushed at once
    episodes.jsonl.zst                every episode with its tokens, see :mod:`art_trainer.records`
    evaluations/step-000010.json      how each episode of the evaluation after step 10 came out
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from art_trainer.disk import fsync
from art_trainer.episodes import Group
from art_trainer.evaluation import Evaluation
from art_trainer.records.writer import EpisodeWriter
from art_trainer.run_folder import STEP, RunFolder


class RunLog:
    """Writes one run's files below a folder, which is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._episodes = EpisodeWriter(folder)

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go."""
        return self.folder / "checkpoints"

    def begin(self, config: Mapping[str, Any], step: int, weights: str | None = None) -> None:
        """Write the settings, and forget what is there of steps that a resumed run does again.

        A run that begins at step 0 also evaluates again.

        Args:
            config: The trainer's settings, JSON-able.
            step: Steps done so far.
            weights: The digest of the model's weights where the run begins, see
                :func:`art_trainer.records.weights.weights_digest`; a replay from there wants to know it.

        Raises:
            RecordError: Where the recorded episodes before that step are damaged.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._episodes.begin(config, step, weights)
        _replace(self.folder / "config.json", json.dumps(config, indent=1) + "\n")
        metrics = self._metrics_file
        if metrics.exists():
            lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
            _replace(metrics, "".join(line for line in lines if 0 < step >= _step_of(line)))
        for file in RunFolder(self.folder).evaluations.glob(f"{STEP}*.json"):
            number = file.stem.removeprefix(STEP)
            if number.isdecimal() and not 0 < step >= int(number):
                file.unlink()

    def write_metrics(self, metrics: Mapping[str, float]) -> None:
        """Append one line."""
        with self._metrics_file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(metrics) + "\n")

    def write_episodes(
        self, step: int, groups: Sequence[Group], limit: int | None = None, replaced: Sequence[Group] = ()
    ) -> None:
        """Write a step's episodes.

        Args:
            step: Its number.
            groups: What was learned from.
            limit: Most episodes to keep, of the first groups; ``None``: all, 0: none.
            replaced: What dynamic sampling put others in place of.
        """
        if limit != 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._episodes.write_step(step, groups, replaced, limit=limit)

    def write_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Write the results of an evaluation after a step, without its transcripts."""
        RunFolder(self.folder).write_evaluation(f"{STEP}{step:06d}", evaluation)

    def sync(self) -> None:
        """Force metrics and episodes to the disk: a checkpoint that follows must not know more than they."""
        self._episodes.sync()
        if self._metrics_file.exists():
            fsync(self._metrics_file)

    @property
    def _metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"


def _step_of(line: str) -> float:
    """Return a metrics line's step; a line cut off by a killed run belongs to no step."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _replace(file: Path, text: str) -> None:
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, file)
