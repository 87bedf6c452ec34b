"""What a training run leaves in its folder as it goes: settings, metrics, transcripts.

::

    config.json                    the trainer's settings
    metrics.jsonl                  one line a logged step, flushed at once
    episodes/step-000001.jsonl     transcripts of some groups of that step, without tokens
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from art_trainer.episodes import Group


class RunLog:
    """Writes one run's files below a folder, which is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go."""
        return self.folder / "checkpoints"

    def begin(self, config: Mapping[str, Any], step: int) -> None:
        """Write the settings, and forget metrics of steps that a resumed run does again.

        A run that begins at step 0 also evaluates again.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        _replace(self.folder / "config.json", json.dumps(config, indent=1) + "\n")
        metrics = self.folder / "metrics.jsonl"
        if metrics.exists():
            lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
            _replace(metrics, "".join(line for line in lines if 0 < step >= _step_of(line)))

    def write_metrics(self, metrics: Mapping[str, float]) -> None:
        """Append one line."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(metrics) + "\n")

    def write_episodes(self, step: int, groups: Sequence[Group], limit: int) -> None:
        """Write the transcripts of the first ``limit`` episodes, whole groups first."""
        episodes = [episode for group in groups for episode in group.episodes][:limit]
        if not episodes:
            return
        folder = self.folder / "episodes"
        folder.mkdir(exist_ok=True)
        plain = [dataclasses.replace(episode, histories=()).to_json() for episode in episodes]
        _replace(folder / f"step-{step:06d}.jsonl", "".join(json.dumps(one) + "\n" for one in plain))


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
