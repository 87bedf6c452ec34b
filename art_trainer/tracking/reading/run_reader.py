"""Run folders for the dashboard: finished runs and runs in progress."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from art_trainer.errors import NotRecordedError
from art_trainer.formatting import finite
from art_trainer.tracking.reading.episode_index import EpisodeIndex
from art_trainer.tracking.reading.episode_view import episode_view
from art_trainer.tracking.reading.tail_reader import MetricTable, TailReader
from art_trainer.tracking.run_dir import AFTER, BASELINE, BEFORE, STEP, UNTRAINED, RunFolder
from art_trainer.tracking.stalls import StallDetector
from art_trainer.types import Interval

MAX_EVENTS = 1_000
"""Warnings kept, the newest."""
MAX_RUNS = 200
"""Runs shown; folders that are found later are left out."""
_LARGE, _LAST = 2**18, 2**15
"""Of metrics of more bytes than the first a summary reads only so many at their end, until they are shown."""
_SUMMARY_SECONDS = 0.5
"""How long a summary is reused, however many clients ask."""
_LATEST = (
    "reward", "success", "eval_success", "eval_reward", "kl", "entropy", "loss", "tokens_per_second",
)  # fmt: skip
_PACE_STEPS = 10
_QUIET_SECONDS = 120.0
"""A run counts as quiet if nothing was written for so long, or for five steps if these take longer."""


class RunReader:
    """Reads one run's folder; any thread may call. All methods raise ``OSError`` if a file cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.episodes = EpisodeIndex(path)
        self._folder = RunFolder(path)
        self._lock = threading.Lock()
        file = self._folder.metrics_file
        self.read_whole = not file.exists() or file.stat().st_size <= _LARGE
        self._metrics = MetricTable(file, None if self.read_whole else _LAST)
        self._event_lines = TailReader(self._folder.warnings_file)
        self._stalls, self._stalls_generation = StallDetector({}), ""
        self._event_generation = ""
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._parsed: dict[Path, tuple[int, dict[str, Any]]] = {}

    def summary(self) -> dict[str, Any]:
        """Summarise the run's state.

        Returns:
            ``env`` and ``model``; ``state``: ``starting``, ``running``, ``quiet`` (nothing was written for a
            while), ``stopped`` (before its end, with a report) or ``finished``; ``step`` and
            ``max_steps``; ``seconds_left`` at the speed of the newest steps; ``stall``,
            ``title`` and ``message`` of what keeps the run from learning;
            ``quiet_seconds`` since anything was written; numbers that change with new ``metrics``,
            ``episodes``, ``warnings`` and ``evaluations``; ``latest`` values of some metrics. ``None`` is
            unknown. Of a long file of metrics only the end is read, without ``stall``, until
            :meth:`metrics` has read the whole.
        """
        episodes, events = self.episodes.count(), self.events()
        with self._lock:
            settings = self._read(self._folder.settings_file, self._folder.settings)
            self._update(settings)
            latest = {key: found[-1] for key in ("step", *_LATEST) if (found := self._metrics.latest(key))}
            step, planned = int(latest.pop("step", 0)), settings.get("max_steps")
            max_steps = planned if isinstance(planned, int) and planned > 0 else None
            left = max(0, max_steps - step) if max_steps else None
            quiet, pace = self._quiet_seconds(), self._pace()
            state = "running" if step else "starting"
            if left == 0 and not self._is_evaluating():
                state = "finished"
            elif self._is_newest(self._folder.report_file):  # it is written whatever ends a run
                evaluated = self._is_newest(self._folder.evaluations / f"{AFTER}.json")
                state = "finished" if evaluated else "stopped"  # early stopping is an end
            elif quiet is not None and quiet > max(_QUIET_SECONDS, 5 * (pace or 0.0)):
                state = "quiet"
            return {
                **{key: str(settings[key]) if settings.get(key) else None for key in ("env", "model")},
                "state": state,
                "step": step,
                "max_steps": max_steps,
                "seconds_left": pace * left if pace is not None and left and state == "running" else None,
                "stall": self._stall(),
                "quiet_seconds": quiet,
                "metrics": self._metrics.cursor,
                "episodes": episodes,
                "warnings": len(events),
                "evaluations": self._evaluations_version(),
                "latest": latest,
            }

    def metrics(self, after: str | None) -> dict[str, Any]:
        """The rows after a cursor, see :class:`~art_trainer.tracking.reading.tail_reader.MetricTable`."""
        with self._lock:
            if not self.read_whole:
                self.read_whole, self._metrics = True, MetricTable(self._folder.metrics_file)
            self._update(self._read(self._folder.settings_file, self._folder.settings))
            return self._metrics.after(after)

    def events(self) -> list[dict[str, Any]]:
        """The newest warnings, the oldest first."""
        with self._lock:
            records = self._event_lines.read()
            if self._event_generation != self._event_lines.generation:
                self._event_generation = self._event_lines.generation
                self._events.clear()
            self._events.extend(map(finite, records))
            return list(self._events)

    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations before and after training, and of baselines; those during it are metrics.

        One whose file is damaged has a ``fault``.
        """
        order = {UNTRAINED: 0, BEFORE: 1, AFTER: 2}
        found = (file for file in self._folder.evaluations.glob("*.json") if not file.stem.startswith(STEP))
        with self._lock:
            return [
                self._read(file, lambda: self._evaluation(file.stem))  # noqa: B023 (called at once)
                for file in sorted(found, key=lambda file: (order.get(file.stem, 3), file.stem))
            ]

    def episode(self, step: int, place: int) -> dict[str, Any]:
        """A whole episode, see :func:`~art_trainer.tracking.reading.episode_view.episode_view`.

        Raises:
            NotRecordedError: It is not recorded.
            RecordError: The records are damaged.
        """
        frame = self.episodes.frame(step)
        view = None if frame is None else episode_view(self.path, frame, place)
        if view is None:
            raise NotRecordedError(f"there is no recorded episode {place} of step {step}")
        return view

    def _evaluation(self, name: str) -> dict[str, Any]:
        shown = {"name": name.removeprefix(BASELINE), "baseline": name.startswith(BASELINE)}
        try:
            evaluation = self._folder.evaluation(name)
        except ValueError as error:
            return {**shown, "fault": str(error)}
        assert evaluation is not None
        numbers = {
            "policy": evaluation.policy,
            "split": evaluation.split,
            "episodes": len(evaluation.counted),
            "faults": evaluation.faults,
            "success": _interval(evaluation.success),
            "reward": _interval(evaluation.reward),
        }
        return {**shown, **finite(numbers)}

    def _read(self, file: Path, parse: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A small file's content, parsed once for each time it was written; empty if it is damaged."""
        changed = file.stat().st_mtime_ns if file.exists() else 0
        if self._parsed.get(file, (-1,))[0] != changed:
            self._parsed[file] = (changed, {})
            with contextlib.suppress(ValueError):
                self._parsed[file] = (changed, parse())
        return self._parsed[file][1]

    def _update(self, settings: dict[str, Any]) -> None:
        """Read new metrics, and look for what keeps the run from learning."""
        records = self._metrics.update()
        if self._stalls_generation != self._metrics.generation:
            self._stalls, self._stalls_generation = StallDetector(settings), self._metrics.generation
        for record in records:
            step = record.get("step")
            if isinstance(step, int | float) and math.isfinite(step):
                self._stalls.add(int(step), record)

    def _stall(self) -> dict[str, str] | None:
        stall = self._stalls.find() if self.read_whole else None
        if stall is None:
            return None
        return {"title": f"{'cannot learn: ' * stall.dead}{stall.title}", "message": stall.message}

    def _evaluations_version(self) -> str:
        times = [file.stat().st_mtime_ns for file in self._folder.evaluations.glob("*.json")]
        return f"{len(times)}-{max(times, default=0)}"

    def _is_evaluating(self) -> bool:
        """Whether the evaluation after training is missing, and there is the one before."""
        first, last = (self._folder.evaluations / f"{name}.json" for name in (BEFORE, AFTER))
        return first.exists() and not last.exists()

    def _is_newest(self, file: Path) -> bool:
        """Whether a file is newer than settings and metrics."""
        files = (file, self._folder.settings_file, self._folder.metrics_file)
        written, *others = (one.stat().st_mtime if one.exists() else 0.0 for one in files)
        return written > max(others)

    def _quiet_seconds(self) -> float | None:
        files = (self._folder.metrics_file, self.episodes.file, self._folder.settings_file)
        times = [file.stat().st_mtime for file in files if file.exists()]
        return max(0.0, time.time() - max(times)) if times else None

    def _pace(self) -> float | None:
        """Seconds of a step, the median of the newest."""
        rollouts, updates = (
            self._metrics.latest(f"time/{name}", _PACE_STEPS) for name in ("rollout", "update")
        )
        return statistics.median(updates) + statistics.median(rollouts or [0.0]) if updates else None


def _interval(interval: Interval | None) -> dict[str, float] | None:
    if interval is None:
        return None
    return {"value": interval.value, "low": interval.low, "high": interval.high}


class RunsSource:
    """What the dashboard shows: run folders on this machine. Several threads may call.

    Args:
        folders: Run folders, or folders that hold some; runs that start there later are found.
        status: Returns the training server's state, if there is a server.
    """

    def __init__(
        self, folders: Sequence[Path], status: Callable[[], BaseModel | None] = lambda: None
    ) -> None:
        self.status = status
        self._roots = [Path(folder) for folder in folders]
        self._runs: dict[Path, RunReader] = {}  # by resolved folder, in the order they were found
        self._lock = threading.Lock()
        self._summaries: tuple[float, list[dict[str, Any]]] = (float("-inf"), [])

    def runs(self) -> list[dict[str, Any]]:
        """The summaries of all runs, each with its ``id``, a number that it keeps, and its ``name``."""
        with self._lock:
            made, summaries = self._summaries
            if time.monotonic() - made >= _SUMMARY_SECONDS:
                self._find()
                base = os.path.commonpath([path.parent for path in self._runs]) if self._runs else ""
                summaries = [
                    {"id": number, "name": str(path.relative_to(base)), **run.summary()}
                    for number, (path, run) in enumerate(self._runs.items())
                ]
                self._summaries = (time.monotonic(), summaries)
            return summaries

    def run(self, number: int) -> RunReader:
        """The reader of a run, by its number in :meth:`runs`.

        Raises:
            NotRecordedError: There is no such run.
        """
        if not self._runs:
            self.runs()
        readers = list(self._runs.values())
        if number >= len(readers):
            raise NotRecordedError(f"there is no run {number}: there are {len(readers)}, from 0 on")
        return readers[number]

    def read_one(self) -> None:
        """Read a run whose metrics no page has asked for, so that in time all summaries are complete."""
        reader = next((run for run in list(self._runs.values()) if not run.read_whole), None)
        if reader is not None:
            reader.metrics(None)

    def ending(self) -> dict[str, Any]:
        """All that the overview shows, read anew: for pages whose server ends with its run."""
        readers = list(self._runs.values())
        shown = [
            {"metrics": run.metrics(None), "events": run.events(), "evaluations": run.evaluations()}
            for run in readers
        ]
        with self._lock:
            self._summaries = (float("-inf"), [])
        return {"shown": shown, "runs": self.runs(), "folders": [str(run.path) for run in readers]}

    def _find(self) -> None:
        for root in self._roots:
            alone = RunFolder(root).holds_run or not root.is_dir()
            for folder in [root] if alone else sorted(root.iterdir()):
                place = folder.resolve()
                if place not in self._runs and len(self._runs) < MAX_RUNS and RunFolder(folder).holds_run:
                    self._runs[place] = RunReader(folder)
