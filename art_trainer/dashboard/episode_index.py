"""A table of a run's recorded episodes in memory, made while the file is being written.

An episode is a row of some tens of bytes and a short preview; its words stay in the file. Looking at a new
episode takes tens of microseconds, so it is done in portions: a request does a part of the work, answers
with what is known so far, and says how much is missing. What was found for a text is remembered until
another one is asked for.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from art_trainer.dashboard.episode_query import (
    ENDINGS,
    ROW,
    UNJUDGED,
    EpisodePage,
    EpisodeQuery,
    matching,
    ordered,
)
from art_trainer.dashboard.episode_rows import preview_of, raw_needle, row_of, said_in
from art_trainer.dashboard.growing_frames import GrowingFrames, RecordedStep
from art_trainer.errors import RecordError

MAX_EPISODES = 500_000
"""Rows kept in memory; the oldest steps go first."""
WORK_SECONDS = 0.3
"""How long a request may look at new episodes, and as long again search for a text."""


@dataclass(slots=True)
class _Rows:
    """Rows and previews, with room to grow."""

    data: np.ndarray = field(default_factory=lambda: np.empty(1024, ROW))
    previews: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.previews)

    @property
    def filled(self) -> np.ndarray:
        return self.data[: len(self)]

    def extend(self, rows: list[Any], previews: list[str]) -> None:
        wanted = len(self) + len(rows)
        if wanted > len(self.data):
            grown = np.empty(max(wanted, 2 * len(self.data)), ROW)
            grown[: len(self)] = self.filled
            self.data = grown
        self.data[len(self) : wanted] = np.array(rows, ROW)
        self.previews += previews

    def keep(self, start: int, end: int) -> None:
        self.data = self.data[start:end].copy()
        self.previews = self.previews[start:end]


@dataclass(slots=True)
class _Search:
    """What a text was found in: places, by the number of the frame."""

    text: str
    found: dict[int, np.ndarray] = field(default_factory=dict)


class EpisodeIndex:
    """The episodes of one run; any thread may ask.

    Args:
        folder: The run's folder.
        max_episodes: About how many rows to keep.
        work_seconds: How long one call looks at episodes that it does not know yet, a frame at least.
    """

    def __init__(
        self, folder: Path, *, max_episodes: int = MAX_EPISODES, work_seconds: float = WORK_SECONDS
    ) -> None:
        self._frames = GrowingFrames(folder)
        self.file = self._frames.file
        self._max = max_episodes
        self._seconds = work_seconds
        self._lock = threading.Lock()
        self._done = 0
        self._rows = _Rows()
        self._tasks: dict[str, int] = {}
        self._names: list[str] = []
        self._search = _Search("")
        self._sorted: tuple[EpisodeQuery, np.ndarray] | None = None
        self._damaged: dict[int, str] = {}

    def count(self) -> int:
        """How many episodes the file holds, by its headers.

        Raises:
            OSError: Where the file cannot be read.
        """
        with self._lock:
            self._follow()
            return _episodes(self._frames.steps)

    def frame(self, step: int) -> RecordedStep | None:
        """Where a step's episodes lie; ``None`` where it has none.

        Raises:
            OSError: Where the file cannot be read.
        """
        with self._lock:
            self._follow()
            found = (frame for frame in reversed(self._frames.steps) if frame.header["step"] == step)
            return next(found, None)

    def page(self, query: EpisodeQuery) -> EpisodePage:
        """Return the rows of a page, after some work on what is new.

        Raises:
            OSError: Where the file cannot be read.
        """
        with self._lock:
            self._follow()
            self._work(time.monotonic() + self._seconds)
            searched = self._search_for(query.text, time.monotonic() + self._seconds)
            order = self._order(query)
            shown = order[query.offset : query.offset + query.limit]
            steps = self._frames.steps
            return EpisodePage(
                rows=tuple(self._row(int(index)) for index in shown),
                matches=len(order),
                known=len(self._rows),
                recorded=_episodes(steps),
                left_out=_episodes(steps[: self._done]) - len(self._rows),
                searched=searched,
                fault=next(iter(self._damaged.values()), self._frames.fault),
            )

    def _follow(self) -> None:
        """Take up what was written and forget what was cut off."""
        kept = self._frames.update()
        if kept >= self._done:
            return
        self._done = kept
        self._rows.keep(0, int(np.searchsorted(self._rows.filled["frame"], kept)))
        self._damaged = {number: words for number, words in self._damaged.items() if number < kept}
        self._search, self._sorted = _Search(""), None

    def _work(self, until: float) -> None:
        """Look at new episodes, a frame at a time, for a while."""
        while self._done < len(self._frames.steps):
            frame = self._frames.steps[self._done]
            rows, previews = [], []
            try:
                for place, line in enumerate(frame.lines()):
                    data = json.loads(line)
                    rows.append(row_of(data, place, self._done, self._task(data["task_id"])))
                    previews.append(preview_of(data))
            except RecordError as error:
                self._damaged[self._done] = str(error)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._damaged[self._done] = f"{frame.named()}: not an episode ({error!r})"
            else:
                self._rows.extend(rows, previews)
            self._done += 1
            self._sorted = None
            if time.monotonic() >= until:
                break
        over = len(self._rows) - self._max
        if over > 0:
            frames = self._rows.filled["frame"]
            start = int(np.searchsorted(frames, min(frames[over - 1], frames[-1] - 1), side="right"))
            self._rows.keep(start, len(self._rows))
            self._sorted = None

    def _task(self, name: str) -> int:
        number = self._tasks.setdefault(name, len(self._names))
        if number == len(self._names):
            self._names.append(name)
        return number

    def _search_for(self, text: str, until: float) -> float:
        """Search frames for a text, the newest first; return the share of the episodes that is searched."""
        if not text or not len(self._rows):
            return 1.0
        if self._search.text != text:
            self._search, self._sorted = _Search(text), None
        words, needle = text.casefold(), raw_needle(text)
        numbers, counts = np.unique(self._rows.filled["frame"], return_counts=True)
        searched, worked = 0, False
        for number, count in zip(numbers[::-1].tolist(), counts[::-1].tolist(), strict=True):
            if number not in self._search.found:
                if worked and time.monotonic() >= until:
                    break
                worked = True
                places = _places(self._frames.steps[number], words, needle)
                self._search.found[number] = np.array(places, np.int32)
                self._sorted = None
            searched += count
        return searched / len(self._rows)

    def _order(self, query: EpisodeQuery) -> np.ndarray:
        """Return the indices of the rows that match, in order; remembered for the next page."""
        whole = dataclasses.replace(query, offset=0, limit=0)
        if self._sorted is None or self._sorted[0] != whole:
            rows = self._rows.filled
            chosen = matching(rows, query, self._names)
            if query.text:
                chosen &= self._holding_text()
            self._sorted = (whole, ordered(rows, chosen, query, self._names))
        return self._sorted[1]

    def _holding_text(self) -> np.ndarray:
        """Return for each row whether the text was found in it."""
        rows = self._rows.filled
        found = np.zeros(len(rows), bool)
        for number, places in self._search.found.items():
            start, end = np.searchsorted(rows["frame"], [number, number + 1])
            found[start:end] = np.isin(rows["place"][start:end], places)
        return found

    def _row(self, index: int) -> dict[str, Any]:
        row = self._rows.data[index]
        success, ending, reward = int(row["success"]), int(row["ending"]), float(row["reward"])
        return {
            **{name: int(row[name]) for name in ("step", "place", "group", "turns", "tokens", "invalid")},
            "replaced": bool(row["replaced"]),
            "task": self._names[int(row["task"])],
            "reward": float(f"{reward:.6g}") if np.isfinite(reward) else None,
            "success": None if success < 0 else bool(success),
            "ending": "unjudged" if ending == UNJUDGED else str(ENDINGS[ending]),
            "preview": self._rows.previews[index],
        }


def _episodes(frames: list[RecordedStep]) -> int:
    return sum(int(frame.header["episodes"]) for frame in frames)


def _places(frame: RecordedStep, words: str, needle: bytes | None) -> list[int]:
    """Return the places of a frame's episodes that hold a text."""
    return [
        place
        for place, line in enumerate(frame.lines())
        if (needle is None or needle in line.lower()) and said_in(json.loads(line), words)
    ]
