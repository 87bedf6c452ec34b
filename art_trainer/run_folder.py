"""The files of a run: written as it goes, readable at any moment, also after the process was killed.

::

    run.yaml                         every setting; ``--config run.yaml`` repeats the run
    metrics.jsonl                    one line per step
    evaluations/before.json          the same policy before training (a file per evaluation)
    evaluations/before.episodes.jsonl    and its transcripts, without tokens
    evaluations/step-000010.json     the one after step 10, of a run that evaluates as it goes
    checkpoints/                     what a resumed run starts from
    episodes.jsonl.zst               every training episode with its tokens, see art_trainer/records
    report.html                      all of the above for a reader
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from art_trainer.episodes import Episode
from art_trainer.evaluation import Evaluation

BEFORE = "before"
AFTER = "after"
BASELINE = "baseline-"
"""Prefix of the evaluations of the environment's baselines."""
STEP = "step-"
"""Prefix of the evaluations during training; the step's number follows."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The records of a JSONL file, and how many lines could not be read (a killed run cuts its last line)."""

    records: tuple[dict[str, Any], ...]
    broken: int = 0


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths, readers and writers of one run's folder."""

    path: Path

    @property
    def metrics_file(self) -> Path:
        """One JSON object per training step."""
        return self.path / "metrics.jsonl"

    @property
    def settings_file(self) -> Path:
        """Every setting of the run."""
        return self.path / "run.yaml"

    @property
    def evaluations(self) -> Path:
        """The folder of the evaluations."""
        return self.path / "evaluations"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def report_file(self) -> Path:
        """The report."""
        return self.path / "report.html"

    def settings(self) -> dict[str, Any]:
        """The run's settings; empty where they were not written.

        Raises:
            ValueError: Where ``run.yaml`` is no mapping of names to values.
        """
        return read_yaml(self.settings_file) if self.settings_file.exists() else {}

    def metrics(self) -> Lines:
        """The metrics of each step so far."""
        return read_lines(self.metrics_file)

    def evaluation(self, name: str) -> Evaluation | None:
        """One evaluation, ``None`` where it was not made.

        Raises:
            ValueError: Where the file is no evaluation.
        """
        file = self.evaluations / f"{name}.json"
        if not file.exists():
            return None
        try:
            return Evaluation.from_json(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file} is not an evaluation ({error})") from error

    def baselines(self) -> dict[str, Evaluation]:
        """The evaluations of the environment's baselines by name, in order of their names."""
        found = {}
        for file in sorted(self.evaluations.glob(f"{BASELINE}*.json")):
            evaluation = self.evaluation(file.stem)
            if evaluation is not None:
                found[file.stem.removeprefix(BASELINE)] = evaluation
        return found

    def transcripts(self, name: str) -> list[Episode]:
        """The episodes of one evaluation, in the order of its starts; those that can be read."""
        lines = read_lines(self.evaluations / f"{name}.episodes.jsonl")
        return [Episode.from_json(record) for record in lines.records]

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write ``run.yaml``."""
        self.path.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
        write_text(self.settings_file, text)

    def write_evaluation(
        self, name: str, evaluation: Evaluation, transcripts: Iterable[Episode] | None = None
    ) -> None:
        """Write an evaluation and its transcripts, without token ids: they are large and not for readers."""
        self.evaluations.mkdir(parents=True, exist_ok=True)
        if transcripts is not None:
            plain = (dataclasses.replace(episode, histories=()) for episode in transcripts)
            lines = [json.dumps(episode.to_json(), ensure_ascii=False) + "\n" for episode in plain]
            write_text(self.evaluations / f"{name}.episodes.jsonl", "".join(lines))
        write_text(self.evaluations / f"{name}.json", json.dumps(evaluation.to_json(), ensure_ascii=False))


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a YAML file that maps names to values.

    Raises:
        FileNotFoundError: Where there is no such file.
        ValueError: Where it is no YAML, or no mapping.
    """
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"no such file: {file}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ValueError(f"{file} must map setting names to values, as in `max_steps: 200`")
    return data


def read_lines(file: Path) -> Lines:
    """Read a JSONL file; lines that are not whole are counted, a missing file is empty."""
    if not file.exists():
        return Lines(())
    records: list[dict[str, Any]] = []
    broken = 0
    with file.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                record = json.loads(line)
            except ValueError:
                broken += 1
                continue
            if isinstance(record, dict):
                records.append(record)
            else:
                broken += 1
    return Lines(tuple(records), broken)


def write_text(file: Path, text: str) -> None:
    """Write a whole file or nothing: a reader never sees half of it."""
    partial = file.with_name(f".{file.name}.partial")
    # A lone surrogate in a transcript is data too; it must not stop the run.
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    os.replace(partial, file)
