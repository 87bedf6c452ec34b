"""Run folder: the files of a training run, readable at any moment, also after the process was killed.

::

    run.yaml                         all settings; ``--config run.yaml`` repeats the run
    metrics.jsonl                    one line per step
    events.jsonl                     health warnings
    costs.jsonl                      seconds, CPU-seconds and GPU-seconds; one line each time it was run
    episodes.jsonl.zst               every training episode with its tokens, see ``episode_store``
    evaluations/before.json          the evaluation before training; also after, baseline-NAME, step-000010
    evaluations/before.episodes.jsonl    its transcripts, without tokens
    warm-start/model/                the model after imitation, or its last whole round
    checkpoints/step-000010/         model, optimizer and trainer state
    wandb/, tensorboard/             what these loggers write
    report.html                      a summary to read

Only its owner can read it (modes 0700 and 0600): episodes hold what agents saw, such as people's mail.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import yaml

from art_trainer.errors import ConfigError, RecordError
from art_trainer.formatting import append_bytes, fsync
from art_trainer.tracking.episode_schema import episode_from_json, episode_to_json, without_observations
from art_trainer.tracking.episode_store import FILE, append_episodes, begin_episodes
from art_trainer.types import Episode, Group

if TYPE_CHECKING:
    from art_trainer.rollout.evaluate import Evaluation
    from art_trainer.tracking.health import RunWarning

UNTRAINED = "untrained"
"""The evaluation of a pretrained model that is going to imitate; ``before`` is the one after that."""
BEFORE = "before"
AFTER = "after"
BASELINE = "baseline-"
"""Prefix of the evaluations of the environment's baselines."""
STEP = "step-"
"""Prefix of checkpoints and of the evaluations during training; the step's number follows."""
RETIRED = ".retired"
"""Ending of a checkpoint's hidden name while it is replaced."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The records of a JSONL file, and how many lines could not be read: a killed run cuts its last line."""

    records: tuple[dict[str, Any], ...]
    broken: int = 0


class RunFolder:
    """Paths, readers and writers of one run's folder; the first write makes it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.metrics_file = self.path / "metrics.jsonl"
        """One JSON object per training step."""
        self.warnings_file = self.path / "events.jsonl"
        """One JSON object per health warning."""
        self.settings_file = self.path / "run.yaml"
        """All settings of the run."""
        self.costs_file = self.path / "costs.jsonl"
        """One JSON object each time that the run was started or resumed, and ended."""
        self.evaluations = self.path / "evaluations"
        """The folder of the evaluations."""
        self.warm_start = self.path / "warm-start"
        """The folder of the weights after a warm start."""
        self.checkpoints = self.path / "checkpoints"
        """The folder of the checkpoints."""
        self.report_file = self.path / "report.html"
        """The report."""

    @property
    def holds_run(self) -> bool:
        """Whether there is a run: its settings, metrics, episodes or evaluations."""
        files = (self.settings_file, self.metrics_file, self.path / FILE, self.evaluations)
        return any(file.exists() for file in files)

    def settings(self) -> dict[str, Any]:
        """The run's settings; empty if they were not written.

        Raises:
            ConfigError: If ``run.yaml`` is not a mapping of names to values.
        """
        return read_yaml(self.settings_file) if self.settings_file.exists() else {}

    def metrics(self) -> Lines:
        """The metrics of each step so far."""
        return _read_numbers(self.metrics_file)

    def evaluation(self, name: str) -> Evaluation | None:
        """One evaluation; ``None`` if it was not made.

        Raises:
            RecordError: If the file is not an evaluation.
        """
        from art_trainer.rollout.evaluate import Evaluation  # it loads PyTorch

        file = self.evaluations / f"{name}.json"
        if not file.exists():
            return None
        try:
            return Evaluation.from_json(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{file} is not an evaluation ({error}): delete it to resume") from error

    def baselines(self) -> dict[str, Evaluation]:
        """The evaluations of the environment's baselines, sorted by name."""
        names = [file.stem for file in sorted(self.evaluations.glob(f"{BASELINE}*.json"))]
        return {name.removeprefix(BASELINE): found for name in names if (found := self.evaluation(name))}

    def transcripts(self, name: str) -> list[Episode]:
        """The readable episodes of one evaluation, in the order they were started."""
        file = self.evaluations / f"{name}.episodes.jsonl"
        try:
            return [episode_from_json(record) for record in read_lines(file).records]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordError(f"{file} has a line that is not an episode ({error!r})") from error

    def begin(self, config: Mapping[str, Any], step: int, *, keep_after: bool = False) -> None:
        """Write ``run.yaml`` and drop what is there of later steps, which a resumed run repeats.

        A ``run.yaml`` of the same run that says more, such as the environment, stays as it is.

        Args:
            config: The trainer's settings, JSON-able.
            step: Steps done so far; a run that begins at 0 also evaluates again.
            keep_after: Keep the evaluations after training, until new ones replace them: no step follows.

        Raises:
            RecordError: If the recorded episodes before that step are damaged.
        """
        private_folder(self.path)
        begin_episodes(self.path, config, step)
        if step == 0:
            self.costs_file.unlink(missing_ok=True)
        known = self.settings()
        self.write_settings(known if {**known, **config} == known else config)
        for lines in (self.metrics_file, self.warnings_file):
            _keep_steps(lines, step)
        for file in () if keep_after else self.evaluations.glob(f"{AFTER}[.-]*"):
            file.unlink()
        for file in self.evaluations.glob(f"{STEP}*.json"):
            number = file.stem.removeprefix(STEP)
            if number.isdecimal() and not 0 < step >= int(number):
                file.unlink()

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write ``run.yaml``."""
        private_folder(self.path)
        text = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
        write_text(self.settings_file, text)

    def write_metrics(self, metrics: Mapping[str, float]) -> None:
        """Append a step's line of metrics."""
        _append(self.metrics_file, metrics)

    def write_warning(self, warning: RunWarning) -> None:
        """Append a health warning."""
        _append(self.warnings_file, warning.to_json())

    def start_cost(self, gpus: Callable[[], int]) -> Callable[[], None]:
        """Return what appends the time since now: of the clock, CPUs, and as many GPUs as are used then."""
        began, used = time.monotonic(), sum(os.times()[:4])

        def write() -> None:
            seconds, cpu = time.monotonic() - began, sum(os.times()[:4]) - used
            private_folder(self.path)
            taken = {"seconds": seconds, "cpu_seconds": cpu, "gpu_seconds": seconds * gpus()}
            _append(self.costs_file, taken)

        return write

    def cost(self) -> dict[str, float]:
        """What the run took: ``seconds``, ``cpu_seconds``, ``gpu_seconds``, ``price`` if it is known.

        Processes that were killed are missing. Empty if none has ended.
        """
        lines = _read_numbers(self.costs_file).records
        names = ("seconds", "cpu_seconds", "gpu_seconds") if lines else ()
        found = {name: sum(line.get(name, 0.0) for line in lines) for name in names}
        price = self.settings().get("price_per_hour")
        if found and isinstance(price, int | float):
            found["price"] = price * found["seconds"] / 3600
        return found

    def write_episodes(
        self, step: int, groups: Sequence[Group], limit: int | None = None, replaced: Sequence[Group] = ()
    ) -> None:
        """Append a step's episodes.

        Args:
            step: Its number, from 1.
            groups: The groups that were trained on.
            limit: Most episodes to keep, of the first groups; ``None``: all, 0: none.
            replaced: Groups that dynamic sampling replaced.

        Raises:
            OSError: If there is no room; the file is as it was before.
        """
        if limit != 0:
            private_folder(self.path)
            append_episodes(self.path, step, groups, replaced, limit=limit)

    def write_evaluation(
        self, name: str | int, evaluation: Evaluation, transcripts: Iterable[Episode] | None = None
    ) -> None:
        """Write an evaluation and its transcripts; token ids are left out, they are large.

        Args:
            name: Its name, or the step it was made after.
            evaluation: The results.
            transcripts: Its episodes.
        """
        name = f"{STEP}{name:06d}" if isinstance(name, int) else name
        private_folder(self.evaluations)
        if transcripts is not None:
            plain = [dataclasses.replace(episode, histories=()) for episode in transcripts]
            if not self.settings().get("log_observations", True):
                plain = [group.episodes[0] for group in without_observations(Group((one,)) for one in plain)]
            lines = [json.dumps(episode_to_json(episode), ensure_ascii=False) + "\n" for episode in plain]
            write_text(self.evaluations / f"{name}.episodes.jsonl", "".join(lines))
        write_text(self.evaluations / f"{name}.json", json.dumps(evaluation.to_json(), ensure_ascii=False))

    def sync(self) -> None:
        """Force metrics and episodes to the disk, so that no checkpoint is ahead of them."""
        for file in (self.path / FILE, self.metrics_file):
            if file.exists():
                fsync(file)


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a mapping with two equal keys, of which YAML's own loader takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for place, (key, _) in enumerate(node.value):
            if key.value in names[:place]:
                raise yaml.MarkedYAMLError(
                    None, None, f"the key `{key.value}` is there twice", key.start_mark
                )
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """Read YAML whose mappings have no key twice; a ``yaml.YAMLError`` for anything else."""
    return yaml.load(text, _UniqueKeys)  # a SafeLoader


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a YAML file that maps names to values.

    Raises:
        FileNotFoundError: If there is no such file.
        ConfigError: If it is not YAML, or not a mapping.
    """
    try:
        data = parse_yaml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"no such file: {file}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{file} must map setting names to values, as in `max_steps: 200`")
    return data


def read_lines(file: Path) -> Lines:
    """Read a JSONL file; broken lines are counted, a missing file is empty."""
    if not file.exists():
        return Lines(())
    with file.open(encoding="utf-8", errors="replace") as stream:
        found = [parse_line(line) for line in stream]
    records = tuple(record for record in found if record is not None)
    return Lines(records, len(found) - len(records))


def _read_numbers(file: Path) -> Lines:
    """Read a JSONL file as :func:`read_lines` does, but keep only finite numbers that a float can hold."""
    found = read_lines(file)
    numbers = ({name: one for name, one in line.items() if _is_number(one)} for line in found.records)
    return Lines(tuple(numbers), found.broken)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def parse_line(line: str | bytes) -> dict[str, Any] | None:
    """One line of a JSONL file; ``None`` if it is not an object."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def require_writable(path: Path, *, folder: bool = False) -> None:
    """Check that a file, or a folder, can be written: before the work, not after it.

    Raises:
        ConfigError: If it cannot; says why.
    """
    if not folder and path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder, name a file in it")
    place = next(one for one in (path, *path.absolute().parents) if one.exists())
    if (folder or place != path) and not place.is_dir():
        raise ConfigError(f"cannot write {path}: {place} is not a folder")
    try:
        TemporaryFile(dir=place if place.is_dir() else place.absolute().parent).close()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror} in {place}") from error


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for its owner alone: episodes may hold mail."""
    for folder in (*reversed(path.parents), path):
        folder.mkdir(0o700, exist_ok=True)


def write_text(file: Path, text: str) -> None:
    """Write a file atomically, for its owner alone: a reader never sees half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = hidden_path(file, ".partial")
    try:
        partial.touch(0o600)
        # A lone surrogate in a transcript must not stop the run.
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(partial, file)
    except OSError as error:
        error.filename = str(file)  # a full disk names none
        raise
    finally:
        partial.unlink(missing_ok=True)


def _append(file: Path, record: Mapping[str, Any]) -> None:
    # A lone surrogate in an environment's error must not stop the run.
    line = json.dumps(record, ensure_ascii=False).encode("utf-8", errors="backslashreplace")
    append_bytes(file, line + b"\n")


def _keep_steps(file: Path, step: int) -> None:
    """Rewrite a JSONL file without the lines of steps after ``step``; 0 keeps none, not even step 0's.

    Lines that a killed process cut off are dropped as well.
    """
    if file.exists():
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        write_text(file, "".join(line for line in lines if 0 < step >= _step_of(line)))


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


_CHECKPOINT = re.compile(rf"{STEP}(\d{{6,}})")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step belongs."""
    return folder / f"{STEP}{step:06d}"


def checkpoint_step(path: Path) -> int:
    """Return the step that a checkpoint's name says.

    Raises:
        ValueError: For another name than :func:`checkpoint_path` and :func:`list_checkpoints` give.
    """
    match = _CHECKPOINT.fullmatch(path.name.removeprefix(".").removesuffix(RETIRED))
    if match is None:
        raise ValueError(f"{path.name} is not the name of a checkpoint, as in step-000100")
    return int(match[1])


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest step first.

    One that was being replaced when its process was killed is among them, under the name it was given then.
    """
    found: dict[int, Path] = {}
    for path in folder.glob("*step-*"):
        name = path.name.removeprefix(".").removesuffix(RETIRED)
        if path.is_dir() and _CHECKPOINT.fullmatch(name):
            whole = folder / name
            if path == whole or (path == hidden_path(whole, RETIRED) and not whole.exists()):
                found[checkpoint_step(path)] = path
    return [found[step] for step in sorted(found)]


def hidden_path(path: Path, ending: str) -> Path:
    """Return a hidden name beside a path, for what is being written or replaced."""
    return path.with_name(f".{path.name}{ending}")
