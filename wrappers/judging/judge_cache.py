"""A judge's answers on disk: what was asked once is not paid for twice, and a rerun says the same.

Rows are found by the content of the question: a hash of the model's name, the settings and the words that the
judge reads. Attempts' ids and their order in the group are no part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal

from art_gym.wrappers.judging.errors import JudgingError

_APPLICATION_ID = 0x61724A43  # "arJC"
_VERSION = 1
_PATIENCE_S = 60.0  # how long to wait for another process that writes
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY,
    model TEXT NOT NULL,
    outcome TEXT NOT NULL,
    answer TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    checksum TEXT NOT NULL
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """What a server said to one question."""

    model: str
    outcome: Literal["answered", "too_long"]
    """``"too_long"``: the server refused the question for its length; it is not asked again."""
    answer: str
    """The raw words of the accepted answer, explanations included; or of the refusal."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class JudgeCache:
    """A SQLite file that many judges, threads and processes use at the same time.

    Each answer is on disk before it is used, so an interrupted run loses nothing. The first answer to a
    question stays.

    Args:
        path: The file; it and its folder are made.

    Raises:
        JudgingError: Where the file is something else, of another version, or damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._database() as db:
            db.execute("BEGIN IMMEDIATE")
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and application != _APPLICATION_ID:
                raise JudgingError(f"{self.path} is a database of something else: name another file")
            if tables and version != _VERSION:
                raise JudgingError(
                    f"{self.path} is a judge cache of version {version}, this program writes {_VERSION}: "
                    "name another file"
                )
            db.execute(_TABLE)
            db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {_VERSION}")
            db.commit()

    @staticmethod
    def key(question: Mapping[str, Any]) -> str:
        """The hash (SHA-256 of canonical JSON) under which a question's answer is kept."""
        return hashlib.sha256(canonical_json(question).encode()).hexdigest()

    def get(self, key: str) -> CachedAnswer | None:
        """The answer to a question, if it was asked before.

        Raises:
            JudgingError: Where the file, or this row of it, is damaged.
        """
        with self._database() as db:
            row = db.execute(
                "SELECT model, outcome, answer, prompt_tokens, completion_tokens, checksum FROM answers "
                "WHERE key = ?",
                (key,),
            ).fetchone()
        if row is None:
            return None
        found = CachedAnswer(*row[:-1])
        if row[-1] != _checksum(key, found):
            raise JudgingError(f"{self.path} is damaged (row {key[:12]}…): delete it or name another file")
        return found

    def put(self, key: str, answer: CachedAnswer) -> CachedAnswer:
        """Keep an answer; return the one that is kept, which may be another's that came first.

        Raises:
            JudgingError: Where the file cannot be written or is damaged.
        """
        with self._database() as db:
            db.execute(
                "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)",
                (key, *astuple(answer), _checksum(key, answer)),
            )
            db.commit()
        return self.get(key) or answer

    def __len__(self) -> int:
        with self._database() as db:
            (count,) = db.execute("SELECT count(*) FROM answers").fetchone()
        return int(count)

    def __repr__(self) -> str:
        return f"JudgeCache({str(self.path)!r})"

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own for each use: it may then come from any thread, and after any fork."""
        try:
            with closing(sqlite3.connect(self.path, timeout=_PATIENCE_S)) as db:
                yield db
        except sqlite3.OperationalError as fault:
            raise JudgingError(f"the judge cache {self.path} cannot be used: {fault}") from fault
        except sqlite3.DatabaseError as fault:
            raise JudgingError(
                f"{self.path} is not a judge cache, or is damaged ({fault}): delete it or name another file"
            ) from fault


def canonical_json(value: Any) -> str:
    """JSON that is equal for equal values, in ASCII.

    Raises:
        JudgingError: For what JSON cannot hold.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as fault:
        raise JudgingError(f"cannot be written as JSON: {fault}") from fault


def _checksum(key: str, answer: CachedAnswer) -> str:
    """SQLite itself would not notice a digit of a score that changed on disk."""
    return hashlib.sha256(canonical_json([key, *astuple(answer)]).encode()).hexdigest()
