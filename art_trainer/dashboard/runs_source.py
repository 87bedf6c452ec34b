"""Runs on this machine's disk, finished or under way, as the dashboard wants them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_trainer.dashboard.episode_query import EpisodePage, EpisodeQuery
from art_trainer.dashboard.episode_view import episode_view
from art_trainer.dashboard.metric_table import MetricRows
from art_trainer.dashboard.run_files import RunFiles
from art_trainer.dashboard.source import RunSummary, UnknownPlaceError

if TYPE_CHECKING:
    from art_trainer.remote.status import ServerStatus

MAX_RUNS = 200
"""Runs shown; folders that are found later are left out."""
_MARKS = ("config.json", "metrics.jsonl", "run.yaml", "episodes.jsonl.zst")
_FRESH = 0.5
"""Seconds for which a summary is not made again, however many look."""


class RunsSource:
    """Shows run folders; see :class:`art_trainer.dashboard.source.DashboardSource`.

    Args:
        folders: Folders of runs, or folders that hold some; runs that begin there later are found.
        status: What tells of the training server, where there is one.
    """

    def __init__(
        self, folders: Sequence[Path], status: Callable[[], ServerStatus | None] | None = None
    ) -> None:
        self._roots = [Path(folder) for folder in folders]
        self._status = status
        self._runs: list[RunFiles] = []
        self._known: set[Path] = set()
        self._lock = threading.Lock()
        self._summaries: tuple[float, list[RunSummary]] = (float("-inf"), [])

    def runs(self) -> list[RunSummary]:
        """All runs, in the order in which they were named or found."""
        with self._lock:
            made, summaries = self._summaries
            if time.monotonic() - made < _FRESH:
                return summaries
            self._find()
            names = _names([run.path for run in self._runs])
            summaries = [
                run.summary(i, name) for i, (run, name) in enumerate(zip(self._runs, names, strict=True))
            ]
            self._summaries = (time.monotonic(), summaries)
            return summaries

    def status(self) -> ServerStatus | None:
        """What the training server tells of itself; ``None`` without one."""
        return None if self._status is None else self._status()

    def metrics(self, run: int, after: str | None) -> MetricRows:
        """The rows after a cursor."""
        return self._run(run).metrics(after)

    def events(self, run: int) -> list[dict[str, Any]]:
        """Warnings, oldest first."""
        return self._run(run).events()

    def evaluations(self, run: int) -> list[dict[str, Any]]:
        """Evaluations before training, after it, and of baselines."""
        return self._run(run).evaluations()

    def episodes(self, run: int, query: EpisodeQuery) -> EpisodePage:
        """Rows of the table of episodes."""
        return self._run(run).episodes.page(query)

    def episode(self, run: int, step: int, place: int) -> Mapping[str, Any]:
        """A whole episode.

        Raises:
            UnknownPlaceError: Where it is not recorded.
            RecordError: Where the records are damaged.
        """
        found = self._run(run)
        frame = found.episodes.frame(step)
        view = None if frame is None else episode_view(found.path, frame, place)
        if view is None:
            raise UnknownPlaceError(f"run {run} has no recorded episode {place} of step {step}")
        return view

    def _run(self, number: int) -> RunFiles:
        if not self._runs:
            self.runs()
        if not 0 <= number < len(self._runs):
            known = f"there are {len(self._runs)}, from 0 on" if self._runs else "there is none yet"
            raise UnknownPlaceError(f"there is no run {number}: {known}")
        return self._runs[number]

    def _find(self) -> None:
        for root in self._roots:
            for folder in [root] if _is_run(root) or not root.is_dir() else sorted(root.iterdir()):
                place = folder.resolve()
                if place in self._known or len(self._runs) == MAX_RUNS or not _is_run(folder):
                    continue
                self._known.add(place)
                self._runs.append(RunFiles(folder))


def _is_run(folder: Path) -> bool:
    return any((folder / mark).is_file() for mark in _MARKS)


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, and with the parent's where two have one name."""
    short = [path.resolve().name for path in paths]
    often = Counter(short)
    return [
        name if often[name] == 1 else f"{path.resolve().parent.name}/{name}"
        for path, name in zip(paths, short, strict=True)
    ]
