"""Index of a run's recorded episodes: filters, sorting and text search while the run continues.

The index keeps a row of numbers and a short preview for each episode, in a temporary SQLite database; the
text stays in the file. New episodes are read in portions: a request does a part of the work, answers with
what is known so far, and says how much is missing.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from art_trainer.errors import RecordError
from art_trainer.tracking.episode_store import FILE, STEP
from art_trainer.tracking.frame_file import Frame, read_frames

LARGEST = 2**31 - 1
_WORK_SECONDS = 0.3
"""How long a request may read new episodes, and as long again search; at least a step of each."""
_PREVIEW = 120
_SCHEMA = """
DROP TABLE IF EXISTS episodes;
DROP TABLE IF EXISTS hits;
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY, frame INTEGER, place INTEGER, step INTEGER, "group" INTEGER, task TEXT,
    turns INTEGER, tokens INTEGER, invalid INTEGER, replaced INTEGER, success INTEGER, ending TEXT,
    reward REAL, preview TEXT
);
CREATE INDEX by_place ON episodes (frame, place);
CREATE TABLE hits (id INTEGER PRIMARY KEY);
"""
_COLUMNS = (
    "step", "place", '"group"', "task", "turns", "tokens", "invalid", "replaced", "success", "ending",
    "reward", "preview",
)  # fmt: skip

SortKey = Literal["step", "reward", "task", "outcome", "turns", "tokens", "invalid"]
Outcome = Literal[
    "success", "failure", "terminated", "truncated", "context_full", "env_error", "policy_error",
    "unjudged", "invalid", "replaced",
]  # fmt: skip
_CONDITIONS = {
    "text": "id IN hits",
    "task": "instr(casefold(task), casefold(?))",
    "reward_min": "reward >= ?",
    "reward_max": "reward <= ?",
    "step_min": "step >= ?",
    "step_max": "step <= ?",
}
_OUTCOMES = {
    "success": "success = 1",
    "failure": "success = 0",
    "invalid": "invalid > 0",
    "replaced": "replaced",
}
_Text = Annotated[str, Field(max_length=200)]
_Step = Annotated[int | None, Field(ge=0, le=LARGEST)]
_Bound = Annotated[float | None, Field(allow_inf_nan=False)]


class EpisodeQuery(BaseModel):
    """Filters, order and page of the table of episodes.

    Attributes:
        text: Occurs in what was said, shown or judged, in any case.
        task: A part of the task's name.
        outcome: How the episode ended.
        reward_min: Smallest reward.
        reward_max: Largest reward.
        step_min: First step.
        step_max: Last step.
        sort: The column to sort by; equal rows are in the order of their steps.
        descending: Largest first.
        offset: Rows to skip.
        limit: Most rows.
    """

    model_config = ConfigDict(frozen=True)

    text: _Text = ""
    task: _Text = ""
    outcome: Outcome | None = None
    reward_min: _Bound = None
    reward_max: _Bound = None
    step_min: _Step = None
    step_max: _Step = None
    sort: SortKey = "step"
    descending: bool = True
    offset: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 100

    def _where(self) -> tuple[str, list[Any]]:
        """The SQL condition and its parameters."""
        given = {name: value for name in _CONDITIONS if (value := getattr(self, name)) not in (None, "")}
        conditions = [_CONDITIONS[name] for name in given]
        parameters = [value for name, value in given.items() if name != "text"]
        if self.outcome in _OUTCOMES:
            conditions.append(_OUTCOMES[self.outcome])
        elif self.outcome is not None:
            conditions.append("ending = ?")
            parameters.append(self.outcome)
        return " AND ".join(conditions) or "1", parameters

    def _order(self) -> str:
        """The SQL order; rewards that are not numbers are last."""
        columns = ("success", "ending") if self.sort == "outcome" else (self.sort,)
        direction = "DESC" if self.descending else "ASC"
        return ", ".join([*(f"{column} {direction} NULLS LAST" for column in columns), "id"])


class EpisodeIndex:
    """The episodes of one run; any thread may call. Methods raise ``OSError`` if the file cannot be read.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        self._lock = threading.Lock()
        # An empty name is a temporary file that SQLite deletes.
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._db.create_function("casefold", 1, str.casefold, deterministic=True)
        self._restart()

    def count(self) -> int:
        """How many episodes the file holds, by its headers."""
        with self._lock:
            self._follow()
            return _count(self._frames)

    def frame(self, step: int) -> Frame | None:
        """The frame of a step; ``None`` if it has none."""
        with self._lock:
            self._follow()
            return next((frame for frame in self._frames if frame.header["step"] == step), None)

    def page(self, query: EpisodeQuery) -> dict[str, Any]:
        """Return the rows of a page, after some work on what is new.

        Returns:
            ``rows``; ``matches``: how many rows pass the filters, as far as is known; ``known`` and
            ``recorded``: episodes that were read, and all in the file; ``searched``: the share that was
            searched for the text; ``complete``: whether asking again would give the same; ``fault``: what is
            wrong with the file.
        """
        with self._lock:
            self._follow()
            self._read_new(time.monotonic() + _WORK_SECONDS)
            searched = self._search(query.text, time.monotonic() + _WORK_SECONDS)
            where, parameters = query._where()
            (matches,) = self._db.execute(
                f"SELECT count(*) FROM episodes WHERE {where}", parameters
            ).fetchone()
            found = self._db.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM episodes WHERE {where} ORDER BY {query._order()} "
                "LIMIT ? OFFSET ?",
                [*parameters, query.limit, query.offset],
            )
            return {
                "rows": [_shown(row) for row in found],
                "matches": matches,
                "known": _count(self._frames[: self._read]),
                "recorded": _count(self._frames),
                "searched": searched,
                "complete": self._read == len(self._frames) and searched == 1,
                "fault": next(iter(self._damaged.values()), self._fault),
            }

    def _restart(self) -> None:
        self._db.executescript(_SCHEMA)
        self._frames: list[Frame] = []
        self._read = 0  # frames that were read
        self._damaged: dict[int, str] = {}
        self._fault: str | None = None
        self._text = ""
        self._searched: set[int] = set()

    def _follow(self) -> None:
        """Read new headers; begin again if a resumed run has cut off the steps that it does again."""
        self._fault = None
        if self._frames and not self._is_unchanged(self._frames[-1]):
            self._restart()
        try:
            for frame in read_frames(self.file, self._frames[-1].end if self._frames else 0):
                if frame.header["kind"] == STEP:
                    self._frames.append(frame)
        except RecordError as error:
            self._fault = str(error)

    def _is_unchanged(self, frame: Frame) -> bool:
        try:
            return next(read_frames(self.file, frame.offset), None) == frame
        except RecordError:
            return False

    def _read_new(self, until: float) -> None:
        """Read new frames for a while, at least one."""
        while self._read < len(self._frames):
            frame, number = self._frames[self._read], self._read
            self._read += 1
            try:
                rows = [(number, place, *_row(json.loads(line))) for place, line in enumerate(frame.lines())]
            except RecordError as error:
                self._damaged[number] = str(error)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._damaged[number] = f"{frame}: not an episode ({error!r})"
            else:
                marks = ", ".join("?" * (1 + len(rows[0]))) if rows else ""
                self._db.execute("BEGIN")
                self._db.executemany(f"INSERT INTO episodes VALUES ({marks})", [(None, *row) for row in rows])
                self._db.execute("COMMIT")
            if time.monotonic() >= until:
                break

    def _search(self, text: str, until: float) -> float:
        """Search frames for a text, the newest first; return the share of them that is searched."""
        if text != self._text:
            self._text, self._searched = text, set()
            self._db.execute("DELETE FROM hits")
        if not text:
            return 1.0
        readable = set(range(self._read)) - self._damaged.keys()
        for number in sorted(readable - self._searched, reverse=True):
            self._db.executemany(
                "INSERT INTO hits SELECT id FROM episodes WHERE frame = ? AND place = ?",
                [(number, place) for place in _places(self._frames[number], text)],
            )
            self._searched.add(number)
            if time.monotonic() >= until:
                break
        return len(self._searched) / len(readable) if readable else 1.0


def _count(frames: list[Frame]) -> int:
    return sum(int(frame.header["episodes"]) for frame in frames)


def _row(data: Mapping[str, Any]) -> tuple[Any, ...]:
    """The columns of an episode from ``step`` on.

    Raises:
        KeyError, TypeError, ValueError: The line is not an episode.
    """
    turns, reward = data["turns"], float(sum(turn["reward"] for turn in data["turns"]))
    text = data.get("error") or (turns[-1]["reply"] if turns else "")
    return (
        int(data["step"]),
        int(data["group"]),
        data["task_id"],
        len(turns),
        sum(_sampled_tokens(span) for history in data["histories"] for span in history),
        sum(turn["error"] is not None for turn in turns),
        bool(data["replaced"]),
        data.get("success"),
        "unjudged" if data.get("unjudged") is not None else str(data["ending"]),
        float(f"{reward:.6g}") if math.isfinite(reward) else None,
        " ".join(str(text)[: 2 * _PREVIEW].split())[:_PREVIEW],
    )


def _sampled_tokens(span: Mapping[str, Any]) -> int:
    """Count sampled tokens by the length of their log-probs: four bytes each, in base64."""
    text = span.get("logprobs") or ""
    return (len(text) // 4 * 3 - text.count("=")) // 4


def _shown(values: tuple[Any, ...]) -> dict[str, Any]:
    row = {name.strip('"'): value for name, value in zip(_COLUMNS, values, strict=True)}
    success = None if row["success"] is None else bool(row["success"])
    return {**row, "replaced": bool(row["replaced"]), "success": success}


def _places(frame: Frame, text: str) -> list[int]:
    """The places of a frame's episodes that hold a text, in any case."""
    folded = text.casefold()
    # Lines are ASCII, so most need no reading as JSON. Case folding may change other letters, as "ß" to "ss".
    needle = json.dumps(text.lower())[1:-1].encode("ascii") if text.isascii() else b""
    return [
        place
        for place, line in enumerate(frame.lines())
        if needle in line.lower() and any(folded in one.casefold() for one in _texts(json.loads(line)))
    ]


def _texts(data: Mapping[str, Any]) -> list[str]:
    said = [text for turn in data["turns"] for text in (turn["reply"], turn["observation"])]
    judged = [judgement["explanation"] for judgement in data.get("judgements", {}).values()]
    return [data["observation"], data.get("error") or "", *said, *judged]
