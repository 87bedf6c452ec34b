"""Write a mail store: one SQLite file, built beside its target and moved into place when complete.

Messages are staged first and copied in order of their dates when the store is closed. So a row number says
when a mail was sent relative to the others, and every date bound of a search is a range of rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pickle
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Self

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
_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class MailStoreWriter:
    """Builds a mail store; use it in a ``with`` statement.

    The store appears at ``path`` (replacing what was there) only when the block ends without an exception;
    otherwise nothing is left behind. A message with the subject, sender, text and minute (give or take one)
    of an earlier one is a copy of it: its Message-IDs, folders and mailboxes go to the earlier row.

    Args:
        path: The file to write.
        meta: Metadata saved with the store (see ``MailStore.meta``); more can be put into
            ``writer.meta`` until the block ends.
        private: Whether the file is for its owner alone (mode 0600) or for everybody (0644).

    Example:
        >>> with MailStoreWriter("box.db") as writer:  # doctest: +SKIP
        ...     writer.add(message)
    """

    def __init__(
        self, path: str | os.PathLike[str], meta: Mapping[str, str] | None = None, *, private: bool = True
    ) -> None:
        self.path = Path(path)
        self._private = private
        self.meta: dict[str, str] = dict(meta or {})
        self._seen: dict[int, int] = {}  # digest of the text → number of the message
        self._staged: list[tuple[float, int]] = []  # of each message: its date, its place in the spool
        self._copies: dict[int, list[Message]] = {}  # of each message, without subject and text
        self._folder: Path | None = None
        self._spool: BinaryIO | None = None

    def __enter__(self) -> Self:
        if self._folder is not None:
            raise RuntimeError("this writer is already open; make a new one for another store")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self.path}: the folder {self.path.parent} does not exist")
        if self.path.is_dir():
            raise IsADirectoryError(f"cannot write {self.path}: it is a folder")
        self._folder = Path(tempfile.mkdtemp(dir=self.path.parent, prefix=f".{self.path.name}."))
        self._spool = (self._folder / "spool").open("w+b")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._folder is not None
        assert self._spool is not None
        try:
            if kind is None:
                self._finish(self._folder / "box.db", self._spool)
        finally:
            self._spool.close()
            self._spool = None
            shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, message: Message) -> bool:
        """Add one message.

        Returns:
            True when it is new, False when it is a copy of an earlier one.
        """
        if self._spool is None:
            raise RuntimeError("the writer is not open; use it as `with MailStoreWriter(path) as writer:`")
        seconds = None if message.date is None else _seconds(message.date)
        digests = _digests(message, None if seconds is None else seconds // 60)
        earlier = next((self._seen[key] for key in digests if key in self._seen), None)
        if earlier is not None:
            self._copies.setdefault(earlier, []).append(replace(message, subject="", body=""))
            return False
        self._seen[digests[0]] = len(self._staged)
        self._staged.append((-math.inf if seconds is None else seconds, self._spool.tell()))
        pickle.dump(message, self._spool)
        return True

    def _finish(self, path: Path, spool: BinaryIO) -> None:
        """Write the staged messages in order of date, index them, and move the file into place."""
        db = sqlite3.connect(path, isolation_level=None)
        with contextlib.closing(db):
            db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _SCHEMA)
            db.execute("PRAGMA cache_size = -32000")
            db.execute("BEGIN")
            tables = _Tables(db)
            # Undated messages first; those of one second in the order in which they were added.
            numbers = range(len(self._staged))
            for number in sorted(numbers, key=lambda number: (self._staged[number][0], number)):
                spool.seek(self._staged[number][1])
                tables.add(pickle.load(spool), self._copies.get(number, []))
            db.execute("CREATE INDEX messages_date ON messages (date)")
            db.execute("INSERT INTO words(words) VALUES ('optimize')")
            db.execute("INSERT INTO names(names) VALUES ('optimize')")
            db.executemany("INSERT INTO meta VALUES (?, ?)", sorted(self.meta.items()))
            db.execute("COMMIT")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.chmod(0o600 if self._private else 0o644)
        os.replace(path, self.path)


class _Tables:
    """The tables of a store, filled with messages in order of date."""

    _STATEMENTS: ClassVar[Mapping[str, str]] = {
        "people": "INSERT INTO people VALUES (?, ?, ?)",
        "names": "INSERT INTO names (rowid, name) VALUES (?, ?)",
        "messages": f"INSERT INTO messages VALUES ({', '.join('?' * 10)})",
        "words": "INSERT INTO words (rowid, subject, people, body) VALUES (?, ?, ?, ?)",
        "roles": "INSERT OR IGNORE INTO roles VALUES (?, ?, ?)",
        "boxes": "INSERT INTO boxes VALUES (?, ?)",
    }

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db, self._row = db, 0
        self._people: dict[tuple[str, str], int] = {}

    def add(self, message: Message, copies: Sequence[Message]) -> None:
        """Add the next message, with the ids, folders and mailboxes of its copies."""
        self._row = row = self._row + 1
        every = (message, *copies)
        subject, body = clean_text(message.subject), clean_text(message.body)
        ids = _distinct(bare_id(name) for one in every for name in one.ids)
        known = _distinct(map(bare_id, message.ids))
        own = self._claim(known[0] if known else "", row, subject, body)
        others = [other for other in ids if other != own and self._new_id(other, row)]
        homes = _distinct(box.lower() for one in every for box in one.mailboxes)
        folders = _distinct(folder for one in every for folder in one.folders)
        groups = [[message.sender], message.to, message.cc, message.bcc]
        people = [[self._person(who) for who in group] for group in groups]
        names = dict.fromkeys(" ".join(_cleaned(who)) for group in groups for who in group)
        date = None if message.date is None else _seconds(message.date)
        texts = (_dump(people[1:]), _dump(folders), _dump(homes), _dump(others), body)
        self._insert("messages", [(row, own, date, people[0][0], subject, *texts)])
        self._insert("words", [(row, subject, "\n".join(names), body)])
        self._insert("roles", [(who, role, row) for role, group in enumerate(people) for who in group])
        self._insert("boxes", [(home, row) for home in homes])

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._db.executemany(self._STATEMENTS[table], rows)

    def _person(self, who: Address) -> int:
        """The number of a person, assigned when first seen."""
        key = _cleaned(who)
        number = self._people.get(key)
        if number is None:
            number = self._people[key] = len(self._people) + 1
            self._insert("people", [(number, *key)])
            self._insert("names", [(number, " ".join(key))])
        return number

    def _claim(self, message_id: str, row: int, subject: str, body: str) -> str:
        """Give a row its Message-ID; one that is missing or belongs to another text gets a digest."""
        digest = hashlib.blake2b(f"{row}\n{subject}\n{body}".encode(), digest_size=6).hexdigest()
        for name in (message_id, f"{message_id or 'no-id'}.{digest}"):
            if name and self._new_id(name, row):
                return name
        raise RuntimeError(f"the Message-ID {message_id!r} cannot be made unique")

    def _new_id(self, name: str, row: int) -> bool:
        """Record that a Message-ID belongs to a row, unless it belongs to another already."""
        inserted = self._db.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (name, row))
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


def _cleaned(who: Address) -> tuple[str, str]:
    return clean_text(who.name), clean_text(who.email).lower()


def _digests(message: Message, minute: int | None) -> list[int]:
    """Digests of a text at its minute (first) and the ones beside it."""
    subject, body = clean_text(message.subject), clean_text(message.body)
    who = message.sender.email.lower() or message.sender.name.lower()
    text = "\0".join((" ".join(subject.lower().split()), clean_text(who), " ".join(body.split())))
    minutes: Iterable[int | None] = (None,) if minute is None else (minute, minute - 1, minute + 1)
    digests = (hashlib.blake2b(f"{text}\0{at}".encode(), digest_size=8) for at in minutes)
    return [int.from_bytes(digest.digest()) for digest in digests]


def _seconds(moment: datetime) -> int:
    return int(to_utc(moment).timestamp() // 1)


def _distinct(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(clean_text(item) for item in items if item))
