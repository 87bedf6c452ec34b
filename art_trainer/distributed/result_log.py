"""Write-ahead log of accepted results: a SQLite database, on disk before a result is acknowledged.

Whoever gets the connection first commits everything that waits in one transaction (group commit), with
``synchronous=FULL`` in WAL mode. A killed process loses nothing that was acknowledged; SQLite drops a torn
tail. The key (batch, group, member, round) makes each result count once.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_trainer.errors import TrainerError
from art_trainer.formatting import fsync
from art_trainer.tracking.episode_schema import episode_from_json, episode_to_line
from art_trainer.tracking.run_dir import private_folder
from art_trainer.types import Episode, GroupSpec

if TYPE_CHECKING:  # it imports torch
    from art_trainer.distributed.protocol import RunSpec

FOLDER = "journal"
"""Name of a run's log folder in its run folder."""
FILE = "results.sqlite"
_VERSION = 1
"""Of the tables, in ``PRAGMA user_version``."""
_TABLES = f"""
BEGIN;
CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE results (
    batch INTEGER, group_id TEXT, member INTEGER, round INTEGER, crc32 INTEGER NOT NULL, entry TEXT NOT NULL,
    PRIMARY KEY (batch, group_id, member, round)
);
PRAGMA user_version = {_VERSION};
COMMIT;
"""
# A key that is there already was never acknowledged: the commit failed after it had reached the disk.
_INSERT = "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?)"
_RESTORE = "Restore the file from a copy, or delete it: its episodes are then played again"
_Row = tuple[Any, ...]
_log = logging.getLogger(__name__)


class ResultLogError(TrainerError, RuntimeError):
    """A log that cannot be written or read, is damaged, or belongs to another process or run."""


class _UnreadableError(ResultLogError):
    """A log that only deleting helps."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A result that counts."""

    task: GroupSpec
    member: int
    """Which attempt of the group, from 0."""
    round: int
    """How often the attempt had been requested again before; the highest counts."""
    episode: Episode


class ResultLog:
    """The accepted results of a run. Any thread may call it; one process at a time may open a folder.

    Args:
        folder: Where the database is; created if missing.

    Raises:
        ResultLogError: If another process has it open, or it is damaged or of another version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._db = _open(self.folder)
        self._io_lock = threading.Lock()
        """Guards the connection."""
        self._waiting: deque[tuple[list[_Row], Future[None]]] = deque()
        """Rows, and what becomes of them."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries and return when they are on disk.

        Raises:
            ResultLogError: If they cannot be written, as on a full disk; the log is unchanged and the caller
                may try again. Or if the log is closed.
            TypeError: If an entry holds what JSON cannot.
        """
        written: Future[None] = Future()
        self._waiting.append(([_to_row(entry) for entry in entries], written))
        with self._io_lock:
            if not written.done():  # another caller may have committed it meanwhile
                self._commit_waiting()
        written.result()

    def replay(self, batch: int | None = None) -> Iterator[Entry]:
        """Read entries by batch, in the order in which they were written.

        Args:
            batch: The only batch to read; by default all.

        Raises:
            ResultLogError: If an entry is damaged.
        """
        query = "SELECT rowid, crc32, entry FROM results WHERE ? IS NULL OR batch = ?"
        order = "ORDER BY batch, round, rowid"
        for rowid, crc32, text in self._read(f"{query} {order}", (batch, batch)):
            if zlib.crc32(text.encode()) != crc32:
                raise ResultLogError(f"{self.folder / FILE} is damaged in row {rowid}. {_RESTORE}")
            yield _from_json(json.loads(text))

    @property
    def empty(self) -> bool:
        """Whether there is nothing to replay."""
        return not self._read("SELECT 1 FROM results LIMIT 1")

    def discard_before(self, batch: int) -> None:
        """Delete the entries of all batches before one.

        If that fails, as on a full disk, they stay until a later call; nobody asks for them again.

        Raises:
            ResultLogError: If the log is closed.
        """
        try:
            with self._io_lock:
                self._write([("DELETE FROM results WHERE batch < ?", [(batch,)])])
        except ResultLogError as error:
            if isinstance(error.__cause__, sqlite3.ProgrammingError):
                raise
            _log.warning("old results stay on disk for now: %s", error)

    def bind_to_run(self, run: RunSpec) -> None:
        """Record the run's settings in an empty log; compare them with those of a log that has results.

        Groups are named by seed and position, so another run's groups have the same names. Their episodes
        must not be trained on.

        Raises:
            ResultLogError: If the log holds results of another run.
        """
        settings = run.model_dump(mode="json")
        settings |= {f"sampling.{name}": value for name, value in settings.pop("sampling").items()}
        stored = {name: json.loads(value) for name, value in self._read("SELECT * FROM run")}
        # A setting that only one of two versions of this program knows is not compared.
        changed = [name for name in stored if name in settings and stored[name] != settings[name]]
        if changed and not self.empty:
            name = changed[0]
            raise ResultLogError(
                f"{self.folder} holds results of another run: there {name} is {stored[name]!r}, in this run "
                f"{settings[name]!r}. Continue with that run's settings, or delete the folder: its episodes "
                "are then played again"
            )
        rows = [(name, json.dumps(value)) for name, value in settings.items()]
        with self._io_lock:
            self._write([("DELETE FROM run", [()]), ("INSERT INTO run VALUES (?, ?)", rows)])

    def close(self) -> None:
        """Let other processes open the folder."""
        with self._io_lock:
            self._db.close()

    def _commit_waiting(self) -> None:
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        try:
            self._write([(_INSERT, [row for rows, _ in taken for row in rows])])
        except BaseException as error:  # every caller learns of it; later ones are served
            for _, written in taken:
                written.set_exception(error)
        else:
            for _, written in taken:
                written.set_result(None)

    def _write(self, statements: Sequence[tuple[str, Sequence[_Row]]]) -> None:
        """Run statements in one transaction; the caller holds the connection's lock."""
        try:
            with self._db:
                for statement, rows in statements:
                    self._db.executemany(statement, rows)
        except sqlite3.Error as error:
            raise _failure(self.folder, "written", error) from error

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            with self._io_lock:
                return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise _failure(self.folder, "read", error) from error


def require_unused(folder: Path) -> None:
    """Check that no other process has a log open, before a run changes anything.

    Raises:
        ResultLogError: If one has.
    """
    if folder.is_dir():
        with suppress(_UnreadableError):
            _open(folder).close()


def discard(folder: Path) -> None:
    """Delete a log, even if it is damaged.

    Raises:
        ResultLogError: If another process has it open, or it cannot be deleted.
    """
    if not folder.is_dir():
        return
    require_unused(folder)
    try:
        for file in folder.glob(f"{FILE}*"):
            file.unlink()
    except OSError as error:
        raise ResultLogError(f"{folder} cannot be deleted: {error.strerror}") from error


def _open(folder: Path) -> sqlite3.Connection:
    """Open a log; the connection keeps an exclusive lock until it is closed or the process ends."""
    try:
        private_folder(folder)
        (folder / FILE).touch(0o600)
        db = sqlite3.connect(folder / FILE, timeout=0.0, check_same_thread=False)
        try:
            _prepare(folder, db)
        except BaseException:
            db.close()
            raise
    except (OSError, sqlite3.Error) as error:
        raise _failure(folder, "opened", error) from error
    return db


def _prepare(folder: Path, db: sqlite3.Connection) -> None:
    """Lock the database, and create or check its tables."""
    for setting in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
        db.execute(f"PRAGMA {setting}")
    db.execute("BEGIN EXCLUSIVE")  # in this locking mode the lock outlives the transaction
    db.commit()
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        db.executescript(_TABLES)
        fsync(folder)
        fsync(folder.parent)
    elif version != _VERSION:
        raise _UnreadableError(f"{folder / FILE} has version {version}, this program reads {_VERSION}")
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise _UnreadableError(f"{folder / FILE} is damaged ({found}). {_RESTORE}")


def _failure(folder: Path, what: str, error: Exception) -> ResultLogError:
    if "locked" in str(error):
        return ResultLogError(
            f"the result log {folder} is in use: another server trains this run. Stop that one first, or "
            "train into another folder"
        )
    if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _UnreadableError(f"{folder / FILE} is damaged ({error}). {_RESTORE}")
    return ResultLogError(
        f"{folder / FILE} cannot be {what}: {error}. Accepted results are safe; others can be sent again"
    )


def _to_row(entry: Entry) -> _Row:
    """Return a row of ``results``."""
    task = entry.task
    place = {
        "task": {
            "seed": task.seed,
            "size": task.size,
            "rng_seed": task.rng_seed,
            "options": None if task.options is None else dict(task.options),
            "batch": task.batch,
        },
        "member": entry.member,
        "round": entry.round,
    }
    text = episode_to_line(entry.episode, place)
    return task.batch, task.id, entry.member, entry.round, zlib.crc32(text.encode()), text


def _from_json(data: dict[str, Any]) -> Entry:
    task = data["task"]
    return Entry(
        task=GroupSpec(**{**task, "rng_seed": tuple(task["rng_seed"])}),
        member=data["member"],
        round=data["round"],
        episode=episode_from_json(data),
    )
