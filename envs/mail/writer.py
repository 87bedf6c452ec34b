"""Writing a mail store: one SQLite file, built beside its target and moved into place when it is complete.

Messages are staged first and copied in order of their dates when the store is closed. So a row number says
when a mail was sent relative to the others, and every date bound of a search is a range of rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from art_gym.envs.mail.message import Address, Message, bare_id, to_utc

APPLICATION_ID = 0x4152544D  # "ARTM", in the header of every mail store
SCHEMA_VERSION = 1
ROLES = ("sender", "to", "cc", "bcc")

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE messages (
    row INTEGER PRIMARY KEY, message_id TEXT NOT NULL, date INTEGER, sender INTEGER NOT NULL,
    subject TEXT NOT NULL, recipients TEXT NOT NULL, folders TEXT NOT NULL, mailboxes TEXT NOT NULL,
    duplicates TEXT NOT NULL, body TEXT NOT NULL
);
CREATE TABLE ids (id TEXT PRIMARY KEY, row INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE people (person INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL);
CREATE TABLE roles (person INTEGER, role INTEGER, row INTEGER, PRIMARY KEY (person, role, row)) WITHOUT ROWID;
CREATE TABLE boxes (mailbox TEXT, row INTEGER, PRIMARY KEY (mailbox, row)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(
    subject, people, body, content='', tokenize='unicode61 remove_diacritics 2'
);
CREATE VIRTUAL TABLE names USING fts5(
    name, content='', prefix='2 3', tokenize='unicode61 remove_diacritics 2'
);
"""
_STAGING = """
CREATE TABLE staging.staged (
    seq INTEGER PRIMARY KEY, message_id TEXT, date INTEGER, sender INTEGER, subject TEXT, recipients TEXT,
    folders TEXT, mailboxes TEXT, duplicates TEXT, body TEXT
);
CREATE TABLE staging.copies (copy INTEGER PRIMARY KEY, seq INTEGER, folders TEXT, mailboxes TEXT, ids TEXT);
"""
_COPIES = "SELECT folders, mailboxes, ids FROM staging.copies WHERE seq = ? ORDER BY copy"
_BATCH = 500  # messages handed to SQLite at once
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_Row = tuple[Any, ...]


class MailStoreWriter:
    """Builds a mail store; use it in a ``with`` statement.

    The store appears at ``path`` (replacing what was there) only when the block ends without an exception;
    otherwise nothing is left behind. A message with the subject, sender, text and minute (give or take one)
    of an earlier one is a copy of it: its Message-IDs, folders and mailboxes go to the earlier row.

    Args:
        path: Where the store shall be.
        meta: Free facts saved with the store (see ``MailStore.meta``); more can be put into
            ``writer.meta`` until the block ends.

    Example:
        >>> with MailStoreWriter("box.db") as writer:  # doctest: +SKIP
        ...     writer.add(message)
    """

    def __init__(self, path: str | os.PathLike[str], meta: Mapping[str, str] | None = None) -> None:
        self.path = Path(path)
        self.meta: dict[str, str] = dict(meta or {})
        self.added = 0
        self.copies = 0
        self._seen: dict[int, int] = {}  # digest of the text → seq
        self._people: dict[tuple[str, str], int] = {}
        self._pending: list[_Row] = []
        self._folder: Path | None = None
        self._db: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        if self._db is not None:
            raise RuntimeError("this writer is already open; make a new one for another store")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self.path}: the folder {self.path.parent} does not exist")
        if self.path.is_dir():
            raise IsADirectoryError(f"cannot write {self.path}: it is a folder")
        self._folder = Path(tempfile.mkdtemp(dir=self.path.parent, prefix=f".{self.path.name}."))
        self._db = sqlite3.connect(self._folder / "box.db", isolation_level=None)
        self._db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _SCHEMA)
        self._db.execute("PRAGMA cache_size = -32000")
        self._db.execute("ATTACH ? AS staging", (str(self._folder / "staging.db"),))
        self._db.executescript(
            "PRAGMA staging.journal_mode = OFF; PRAGMA staging.synchronous = OFF;" + _STAGING
        )
        self._db.execute("BEGIN")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            if self._db is not None:
                self._db.close()
                self._db = None
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, message: Message) -> bool:
        """Add one message.

        Returns:
            True when it is new, False when it is a copy of an earlier one.
        """
        db = self._opened()
        subject, body = clean_text(message.subject), clean_text(message.body)
        minute = None if message.date is None else _seconds(message.date) // 60
        digests = _digests(subject, message.sender, body, minute)
        earlier = next((self._seen[key] for key in digests if key in self._seen), None)
        ids = _distinct(bare_id(name) for name in message.ids)
        boxes = _distinct(box.lower() for box in message.mailboxes)
        if earlier is not None:
            self.copies += 1
            self._flush()
            db.execute(
                "INSERT INTO staging.copies (seq, folders, mailboxes, ids) VALUES (?, ?, ?, ?)",
                (earlier, _dump(_distinct(message.folders)), _dump(boxes), _dump(ids)),
            )
            return False
        self.added += 1
        self._seen[digests[0]] = self.added
        self._pending.append((self.added, *self._staged(message, ids, boxes, subject, body)))
        if len(self._pending) >= _BATCH:
            self._flush()
        return True

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            raise RuntimeError("the writer is not open; use it as `with MailStoreWriter(path) as writer:`")
        return self._db

    def _staged(self, message: Message, ids: list[str], boxes: list[str], subject: str, body: str) -> _Row:
        """The columns of a new message in the staging table, its number left out."""
        recipients = [[self._person(who) for who in group] for group in (message.to, message.cc, message.bcc)]
        return (
            ids[0] if ids else "",
            None if message.date is None else _seconds(message.date),
            self._person(message.sender),
            subject,
            _dump(recipients),
            _dump(_distinct(message.folders)),
            _dump(boxes),
            _dump(ids[1:]),
            body,
        )

    def _flush(self) -> None:
        marks = ", ".join("?" * 10)
        self._opened().executemany(f"INSERT INTO staging.staged VALUES ({marks})", self._pending)
        self._pending.clear()

    def _person(self, who: Address) -> int:
        """The number of a person, given out at the first sight."""
        key = (clean_text(who.name), clean_text(who.email).lower())
        number = self._people.get(key)
        if number is None:
            number = self._people[key] = len(self._people) + 1
            db = self._opened()
            db.execute("INSERT INTO people VALUES (?, ?, ?)", (number, *key))
            db.execute("INSERT INTO names (rowid, name) VALUES (?, ?)", (number, " ".join(key)))
        return number

    def _finish(self) -> None:
        """Copy the staged messages in order of date, index them, and move the file into place."""
        db = self._opened()
        assert self._folder is not None
        self._flush()
        db.execute("CREATE INDEX staging.by_date ON staged (date, seq)")
        db.execute("CREATE INDEX staging.by_seq ON copies (seq)")
        names = {number: " ".join(key) for key, number in self._people.items()}
        batch: list[_Row] = []
        for staged in db.execute("SELECT * FROM staging.staged ORDER BY date, seq"):
            batch.append(staged)
            if len(batch) >= _BATCH:
                self._write(batch, names)
                batch = []
        self._write(batch, names)
        db.execute("CREATE INDEX messages_date ON messages (date)")
        db.execute("INSERT INTO words(words) VALUES ('optimize')")
        db.execute("INSERT INTO names(names) VALUES ('optimize')")
        db.executemany("INSERT INTO meta VALUES (?, ?)", sorted(self.meta.items()))
        db.execute("COMMIT")
        db.execute("DETACH staging")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.close()
        self._db = None
        with open(self._folder / "box.db", "rb") as file:
            os.fsync(file.fileno())
        os.replace(self._folder / "box.db", self.path)

    def _write(self, batch: list[_Row], names: Mapping[int, str]) -> None:
        """Write staged messages, which come in the order of their rows, to the final tables."""
        db = self._opened()
        (row,) = db.execute("SELECT ifnull(max(row), 0) FROM messages").fetchone()
        messages: list[_Row] = []
        words: list[_Row] = []
        roles: list[_Row] = []
        boxes: list[_Row] = []
        for seq, message_id, date, sender, subject, recipients, folders, mailboxes, duplicates, body in batch:
            row += 1
            lists = [json.loads(part) for part in (folders, mailboxes, duplicates)]
            for copy in db.execute(_COPIES, (seq,)):
                for merged, part in zip(lists, copy, strict=True):
                    merged.extend(json.loads(part))
            own = self._claim(message_id, row, subject, body)
            others = [other for other in _distinct(lists[2]) if other != own and self._new_id(other, row)]
            people = [[sender], *json.loads(recipients)]
            roles.extend((who, role, row) for role, group in enumerate(people) for who in group)
            distinct = _distinct(names[who] for group in people for who in group)
            words.append((row, subject, "\n".join(distinct), body))
            homes = _distinct(lists[1])
            boxes.extend((home, row) for home in homes)
            texts = (_dump(_distinct(lists[0])), _dump(homes), _dump(others), body)
            messages.append((row, own, date, sender, subject, recipients, *texts))
        db.executemany(f"INSERT INTO messages VALUES ({', '.join('?' * 10)})", messages)
        db.executemany("INSERT INTO words (rowid, subject, people, body) VALUES (?, ?, ?, ?)", words)
        db.executemany("INSERT OR IGNORE INTO roles VALUES (?, ?, ?)", roles)
        db.executemany("INSERT INTO boxes VALUES (?, ?)", boxes)

    def _claim(self, message_id: str, row: int, subject: str, body: str) -> str:
        """Give a row its Message-ID; one that is missing or belongs to another text gets a digest."""
        digest = hashlib.blake2b(f"{row}\n{subject}\n{body}".encode(), digest_size=6).hexdigest()
        for name in (message_id, f"{message_id or 'no-id'}.{digest}"):
            if name and self._new_id(name, row):
                return name
        raise RuntimeError(f"the Message-ID {message_id!r} cannot be made unique")

    def _new_id(self, name: str, row: int) -> bool:
        """Record that a Message-ID belongs to a row, unless it belongs to another already."""
        inserted = self._opened().execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (name, row))
        return inserted.rowcount == 1


def clean_text(text: str) -> str:
    """A text that SQLite and every terminal can hold: no NUL, lone surrogates replaced by ``U+FFFD``."""
    if "\0" in text:
        text = text.replace("\0", " ")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _digests(subject: str, sender: Address, body: str, minute: int | None) -> list[int]:
    """Digests of a text at its minute (first) and the ones beside it."""
    who = sender.email.lower() or sender.name.lower()
    text = "\0".join((" ".join(subject.lower().split()), clean_text(who), " ".join(body.split())))
    base = hashlib.blake2b(text.encode(), digest_size=8)
    minutes: Iterable[int | None] = (None,) if minute is None else (minute, minute - 1, minute + 1)
    digests = []
    for at in minutes:
        digest = base.copy()
        digest.update(f"\0{at}".encode())
        digests.append(int.from_bytes(digest.digest()))
    return digests


def _seconds(moment: datetime) -> int:
    return int(to_utc(moment).timestamp() // 1)


def _distinct(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(clean_text(item) for item in items if item))


def _dump(value: object) -> str:
    return _ENCODER.encode(value)
