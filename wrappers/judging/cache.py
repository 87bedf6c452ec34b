"""A judge's answers on disk: no question is paid for twice, and a rerun gives the same scores.

The key of an answer is a hash of its question: the model's name, the settings and the prompt. Attempts' ids
and their order in the group are no part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from art_gym.wrappers.judging.base import JudgingError

_FILE_TYPE = 0x61724A44  # SQLite's application_id: "arJD"; another format takes another one
_TIMEOUT_S = 60.0  # how long to wait for another process that writes
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, outcome TEXT NOT NULL, answer TEXT NOT NULL, checksum TEXT NOT NULL
) WITHOUT ROWID
"""


class CachedAnswer(NamedTuple):
    """What a server answered to one question."""

    outcome: Literal["answered", "too_long"]
    """``"too_long"``: the server refused the question for its length; it is not asked again."""
    answer: str
    """The raw text of the accepted answer, including the explanations; or of the refusal."""


class JudgeCache:
    """A SQLite file that many judges, threads and processes use at the same time.

    Each answer is on disk before it is used, so an interrupted run loses nothing. The first answer to a
    question stays.

    Args:
        path: The file; it and its folder are made.

    Raises:
        JudgingError: If the file is something else, of another version, or damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch(0o600)  # answers may quote mail
        with self._database() as db:
            db.execute("BEGIN IMMEDIATE")
            (file_type,) = db.execute("PRAGMA application_id").fetchone()
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and file_type != _FILE_TYPE:
                raise JudgingError(
                    f"{self.path} is a database of something else, or of another version: name another file"
                )
            db.execute(_TABLE)
            db.execute(f"PRAGMA application_id = {_FILE_TYPE}")
            db.commit()

    @staticmethod
    def key(question: Mapping[str, Any]) -> str:
        """The SHA-256 of a question's canonical JSON: the key of its answer."""
        return hashlib.sha256(canonical_json(question).encode()).hexdigest()

    def get(self, key: str) -> CachedAnswer | None:
        """The answer to a question, if it was asked before.

        Raises:
            JudgingError: If the file, or this row of it, is damaged.
        """
        with self._database() as db:
            row = db.execute("SELECT outcome, answer, checksum FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        found = CachedAnswer(*row[:2])
        if row[2] != _checksum(key, found):
            raise JudgingError(f"{self.path} is damaged (row {key[:12]}…): delete it or name another file")
        return found

    def put(self, key: str, answer: CachedAnswer) -> CachedAnswer:
        """Store an answer; return the one that is stored, which may be another's that came first.

        Raises:
            JudgingError: If the file cannot be written or is damaged.
        """
        with self._database() as db:
            db.execute(
                "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", (key, *answer, _checksum(key, answer))
            )
            db.commit()
        return self.get(key) or answer

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own for each use: it may then come from any thread, and after any fork."""
        try:
            with closing(sqlite3.connect(self.path, timeout=_TIMEOUT_S)) as db:
                yield db
        except sqlite3.DatabaseError as error:
            raise JudgingError(
                f"{self.path} cannot be used as a judge cache ({error}): delete it or name another file"
            ) from error


def canonical_json(value: Any) -> str:
    """JSON that is equal for equal values, in ASCII.

    Raises:
        JudgingError: For what JSON cannot hold.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise JudgingError(f"cannot be written as JSON: {error}") from error


def _checksum(key: str, answer: CachedAnswer) -> str:
    """SQLite itself would not notice a digit of a score that changed on disk."""
    return JudgeCache.key({"key": key, "answer": answer})
