"""One run's folder, read as often as somebody looks."""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art_trainer.dashboard.episode_index import EpisodeIndex
from art_trainer.dashboard.growing import GrowingLines
from art_trainer.dashboard.json_values import finite
from art_trainer.dashboard.metric_table import MetricRows, MetricTable
from art_trainer.dashboard.source import RunState, RunSummary
from art_trainer.run_folder import AFTER, BASELINE, BEFORE, STEP, RunFolder
from art_trainer.statistics import Interval

MAX_EVENTS = 1_000
"""Events kept, the newest."""
_SHOWN = (
    "reward", "success", "eval_success", "eval_reward", "kl", "entropy", "loss", "tokens_per_second",
)  # fmt: skip
_PACE_STEPS = 10
_QUIET_AFTER = 120.0
"""Seconds without a word after which a run counts as quiet, where its steps are not slower than that."""


class RunFiles:
    """Reads one run's folder; any thread may call.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.episodes = EpisodeIndex(path)
        self._folder = RunFolder(path)
        self._lock = threading.Lock()
        self._metrics = MetricTable(self._folder.metrics_file)
        self._event_lines = GrowingLines(path / "events.jsonl")
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._settings: tuple[float, dict[str, Any]] = (-1.0, {})
        self._evaluations: dict[str, tuple[int, dict[str, Any]]] = {}

    def summary(self, number: int, name: str) -> RunSummary:
        """Say in short where the run stands.

        Args:
            number: The run's number.
            name: Its name.

        Raises:
            OSError: Where a file cannot be read.
        """
        recorded = self.episodes.count()
        with self._lock:
            self._metrics.update()
            self._read_events()
            settings = self._read_settings()
            step = int(self._metrics.last("step") or 0)
            wanted = settings.get("max_steps")
            max_steps = wanted if isinstance(wanted, int) and wanted > 0 else None
            quiet, pace = self._quiet_seconds(), self._pace()
            state = _state(step, max_steps, quiet, pace)
            left = max_steps - step if max_steps and state != "finished" else None
            latest = {name: value for name in _SHOWN if (value := self._metrics.last(name)) is not None}
            return RunSummary(
                id=number,
                name=name,
                env=_text(settings.get("env")),
                model=_text(settings.get("model")),
                state=state,
                step=step,
                max_steps=max_steps,
                seconds_left=pace * left if pace is not None and left and state == "running" else None,
                quiet_seconds=quiet,
                metrics=self._metrics.cursor,
                episodes=recorded,
                warnings=len(self._events),
                evaluations=self._evaluations_changed(),
                latest=latest,
            )

    def metrics(self, after: str | None) -> MetricRows:
        """The rows after a cursor.

        Raises:
            OSError: Where the file cannot be read.
        """
        with self._lock:
            self._metrics.update()
            return self._metrics.after(after)

    def events(self) -> list[dict[str, Any]]:
        """The newest warnings, oldest first.

        Raises:
            OSError: Where the file cannot be read.
        """
        with self._lock:
            self._read_events()
            return [finite(event) for event in self._events]

    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations, before training, after it, and those of baselines.

        Those during training are in the metrics. One whose file is damaged has its ``fault`` in words.

        Raises:
            OSError: Where a file cannot be read.
        """
        with self._lock:
            found = {file.stem for file in self._folder.evaluations.glob("*.json")}
            names = {name for name in found if not name.startswith(STEP)}
            first = [name for name in (BEFORE, AFTER) if name in names]
            return [self._evaluation(name) for name in [*first, *sorted(names - set(first))]]

    def _evaluation(self, name: str) -> dict[str, Any]:
        changed = (self._folder.evaluations / f"{name}.json").stat().st_mtime_ns
        known = self._evaluations.get(name)
        if known is not None and known[0] == changed:
            return known[1]
        shown: dict[str, Any] = {"name": name.removeprefix(BASELINE), "baseline": name.startswith(BASELINE)}
        try:
            evaluation = self._folder.evaluation(name)
        except ValueError as error:
            shown["fault"] = str(error)
        else:
            assert evaluation is not None
            shown |= {
                "policy": evaluation.policy,
                "split": evaluation.split,
                "episodes": len(evaluation.counted),
                "faults": evaluation.faults,
                "success": _interval(evaluation.success),
                "reward": _interval(evaluation.reward),
            }
        self._evaluations[name] = (changed, finite(shown))
        return self._evaluations[name][1]

    def _evaluations_changed(self) -> str:
        files = sorted(self._folder.evaluations.glob("*.json"))
        return f"{len(files)}-{max((file.stat().st_mtime_ns for file in files), default=0)}"

    def _read_events(self) -> None:
        generation = self._event_lines.generation
        records = self._event_lines.read()
        if self._event_lines.generation != generation:
            self._events.clear()
        self._events.extend(records)

    def _read_settings(self) -> Mapping[str, Any]:
        """Settings of the command that trains, and of the trainer, which knows nothing of models."""
        files = (self._folder.settings_file, self.path / "config.json")
        changed = max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
        if changed != self._settings[0]:
            found: dict[str, Any] = {}
            # The page can do without; `art-trainer report` says what is wrong with the file.
            with contextlib.suppress(ValueError):
                found |= self._folder.settings()
            if files[1].exists():
                found |= _json_object(files[1].read_text(encoding="utf-8", errors="replace"))
            self._settings = (changed, found)
        return self._settings[1]

    def _quiet_seconds(self) -> float | None:
        files = (self._folder.metrics_file, self.episodes.file, self.path / "config.json")
        times = [file.stat().st_mtime for file in files if file.exists()]
        return max(0.0, time.time() - max(times)) if times else None

    def _pace(self) -> float | None:
        """Seconds of a step, the median of the last few."""
        rollouts = self._metrics.latest("time/rollout", _PACE_STEPS)
        updates = self._metrics.latest("time/update", _PACE_STEPS)
        if not updates:
            return None
        return statistics.median(updates) + (statistics.median(rollouts) if rollouts else 0.0)


def _state(step: int, max_steps: int | None, quiet: float | None, pace: float | None) -> RunState:
    if max_steps is not None and step >= max_steps:
        return "finished"
    if quiet is not None and quiet > max(_QUIET_AFTER, 5 * (pace or 0.0)):
        return "quiet"
    return "running" if step else "starting"


def _interval(interval: Interval | None) -> dict[str, float] | None:
    if interval is None:
        return None
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _json_object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
