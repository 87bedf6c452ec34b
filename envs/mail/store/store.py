"""The mail store: full-text search over a mailbox on disk (SQLite FTS5), shared by threads and processes.

A store is one read-only file, written by :class:`MailStoreWriter`. A :class:`MailStore` is only a path and
some caches: copying, pickling or forking it copies no mail, and each process and thread opens its own
connection.
"""

from __future__ import annotations

import calendar
import json
import os
import shlex
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from art_gym.envs.mail import words as _words
from art_gym.envs.mail.message import Address, Message, bare_id, to_utc
from art_gym.envs.mail.store.writer import APPLICATION_ID, ROLES, SCHEMA_VERSION, MailStoreWriter
from art_gym.envs.mail.words import query_words
from art_gym.errors import did_you_mean

__all__ = ["Header", "Hit", "MailStore", "MailStoreWriter", "query_words"]

_MAX_WORDS = 64  # words of a query that count; the rest is dropped
_DAY_END = 86_399  # seconds from the start of a day to its last one

_SUBJECT_WEIGHT = 2.0  # a word in the subject counts as two in the text

_CACHED_ROWS = 2_000_000  # rows kept over all words, 12 bytes each
_SQL = (
    f"SELECT rowid, -bm25(words, {_SUBJECT_WEIGHT}, 1.0, 1.0) FROM words WHERE words MATCH ? ORDER BY rowid"
)
_COUNT = "SELECT count(*) FROM words WHERE words MATCH ?"
_RECORD = np.dtype([("row", np.int32), ("score", np.float64)])

_Rows = npt.NDArray[np.int64]


class Hit(NamedTuple):
    """One result: the message's ``row``, how many distinct query words it holds, its BM25 (high is good)."""

    row: int
    matched: int
    score: float


class Header(NamedTuple):
    """The part of a message that a list of results shows."""

    row: int
    date: datetime | None
    sender: Address
    subject: str


class Posting(NamedTuple):
    """The messages that hold one word: rows (ascending), and the word's part of each one's score."""

    rows: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float64]


class MailStore:
    """Read access to a mail store.

    Rows are numbered from 1 in order of date; messages without a date come first.

    Args:
        path: The file that :class:`MailStoreWriter` or ``art-gym mail import`` wrote.

    Attributes:
        path: The file, absolute.
        meta: Metadata saved with the store by its writer.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not a mail store, damaged, or one of another version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._local = threading.local()
        self._postings: OrderedDict[str, Posting] = OrderedDict()  # the word used last is last
        self._cached_rows = 0
        self._frequencies: dict[str, int] = {}
        self._lock = threading.Lock()
        self._homes: dict[str, _Rows] = {}
        _check_file(self.path)
        db = self._db()
        try:
            self.meta: dict[str, str] = dict(db.execute("SELECT key, value FROM meta"))
            (self._count,) = db.execute("SELECT ifnull(max(row), 0) FROM messages").fetchone()
            (undated,) = db.execute("SELECT count(*) FROM messages WHERE date IS NULL").fetchone()
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.path} is damaged ({error}): import the mail again") from error
        self._first_dated: int = undated + 1

    def __reduce__(self) -> tuple[Any, ...]:
        return MailStore, (str(self.path),)

    def __deepcopy__(self, memo: dict[int, Any]) -> MailStore:
        return self

    def __repr__(self) -> str:
        return f"MailStore({str(self.path)!r}, {self._count} messages)"

    def __len__(self) -> int:
        return int(self._count)

    def search(
        self,
        query: str,
        *,
        sender: str | None = None,
        recipient: str | None = None,
        after: date | None = None,
        before: date | None = None,
        mailbox: str | None = None,
        until: datetime | None = None,
        limit: int = 5,
    ) -> list[Hit]:
        """The messages that hold every word of a query, filled up with those that hold some; each by BM25.

        A query without any word lists the newest messages that satisfy the filters. No query raises.

        Args:
            query: Any text; its first 64 distinct words count.
            sender: Words that each begin a word of the sender's name or address (``"ann"``, ``"b@x.org"``).
            recipient: The same for any one of the recipients (to, cc, bcc).
            after: The first day (UTC) wanted. With ``after`` or ``before``, mail without a date is left out.
            before: The last day (UTC) wanted.
            mailbox: Only mail in this mailbox, one of :meth:`mailboxes`.
            until: Only mail sent at this moment or earlier, and mail without a date.
            limit: The most hits to return.

        Raises:
            ValueError: There is no such mailbox.
        """
        low, high = self._row_range(after, before, until)
        allowed = self._allowed(mailbox, sender, recipient)
        if low > high or limit <= 0:
            return []
        words = query_words(query)[:_MAX_WORDS]
        if not words:
            rows = np.arange(low, high + 1)
            rows = rows if allowed is None else rows[allowed[low : high + 1]]
            return [Hit(int(row), 0, 0.0) for row in rows[::-1][:limit]]
        matched = np.zeros(self._count + 1, dtype=np.uint8)
        scores = np.zeros(self._count + 1)
        for word in words:
            posting = self._posting(word)
            matched[posting.rows] += 1
            scores[posting.rows] += posting.scores
        if allowed is not None:
            matched[~allowed] = 0
        found = low + np.flatnonzero(matched[low : high + 1])
        return _best(found, matched[found], scores[found], len(words), limit)

    def message(self, row: int) -> Message:
        """The whole message in a row.

        Raises:
            KeyError: There is no such row.
        """
        db = self._db()
        _, message_id, sent, sender, subject, recipients, folders, mailboxes, duplicates, body = self._get(
            "messages.*", row
        )
        numbers: list[list[int]] = json.loads(recipients)
        people: dict[int, Address] = {}
        for person in {sender, *(who for group in numbers for who in group)}:
            who = db.execute("SELECT name, email FROM people WHERE person = ?", (person,))
            people[person] = Address(*who.fetchone())
        to, cc, bcc = (tuple(people[person] for person in group) for group in numbers)
        return Message(
            message_id=message_id,
            date=_moment(sent),
            sender=people[sender],
            to=to,
            cc=cc,
            bcc=bcc,
            subject=subject,
            body=body,
            folders=tuple(json.loads(folders)),
            mailboxes=tuple(json.loads(mailboxes)),
            duplicate_ids=tuple(json.loads(duplicates)),
        )

    def header(self, row: int) -> Header:
        """Date, sender and subject of a row, without reading its text.

        Raises:
            KeyError: There is no such row.
        """
        sent, name, email, subject = self._get("date, name, email, subject", row)
        return Header(row, _moment(sent), Address(name, email), subject)

    def message_id(self, row: int) -> str:
        """The Message-ID of a row (its own, not a copy's).

        Raises:
            KeyError: There is no such row.
        """
        return str(self._get("message_id", row)[0])

    def snippet(self, row: int, words: list[str], width: int = 60) -> str:
        """One line of about ``width`` characters of the text around the best cluster of ``words``.

        Raises:
            KeyError: There is no such row.
        """
        return _words.snippet(self._get("body", row)[0], words, width)

    def find(self, message_id: str) -> int | None:
        """The row of a Message-ID, its own or a copy's, with or without angle brackets; else ``None``."""
        name = bare_id(message_id).encode("utf-8", "replace").decode()
        found = self._db().execute("SELECT row FROM ids WHERE id = ?", (name,)).fetchone()
        return None if found is None else int(found[0])

    def mailboxes(self) -> list[tuple[str, int]]:
        """Each mailbox with the number of its messages, by name."""
        return list(
            self._db().execute("SELECT mailbox, count(*) FROM boxes GROUP BY mailbox ORDER BY mailbox")
        )

    def rows(self, mailbox: str | None = None, until: datetime | None = None) -> Iterator[int]:
        """The rows visible in a mailbox up to a moment, in order of date after those without one."""
        low, high = self._row_range(None, None, until)
        if mailbox is None:
            yield from range(low, high + 1)
        else:
            rows = self._mailbox_rows(mailbox)
            yield from rows[(rows >= low) & (rows <= high)].tolist()

    def document_frequency(self, word: str) -> int:
        """In how many messages a word stands (its first one, when the text holds several; 0 when none)."""
        found = query_words(word)
        if not found:
            return 0
        if found[0] not in self._frequencies:  # counted, since a posting would be scored too
            (self._frequencies[found[0]],) = self._db().execute(_COUNT, (f'"{found[0]}"',)).fetchone()
        return self._frequencies[found[0]]

    def _posting(self, word: str) -> Posting:
        """The posting of a word as ``query_words`` gives it; empty when no message holds it.

        FTS5's ``bm25()`` of a query is the sum over its words of a term that depends on that word and the
        message alone (https://www.sqlite.org/fts5.html, section 5.1.1). So the terms of each word can be
        kept, and a query of any number of words is scored by adding arrays: as exact as SQLite, faster than
        its OR, and with the number of words matched for free.
        """
        with self._lock:
            if word in self._postings:
                self._postings.move_to_end(word)
                return self._postings[word]
        records = np.fromiter(self._db().execute(_SQL, (f'"{word}"',)), dtype=_RECORD)
        posting = Posting(records["row"].copy(), records["score"].copy())
        with self._lock:
            if word not in self._postings:
                self._postings[word] = posting
                self._cached_rows += len(posting.rows) + 1
            while self._cached_rows > _CACHED_ROWS and len(self._postings) > 1:
                _, old = self._postings.popitem(last=False)
                self._cached_rows -= len(old.rows) + 1
        return posting

    def _db(self) -> sqlite3.Connection:
        """This thread's own connection in this process; one inherited over a fork is left alone."""
        local = self._local
        if getattr(local, "pid", None) != os.getpid():
            uri = f"{self.path.as_uri()}?mode=ro&immutable=1"
            local.db = sqlite3.connect(uri, uri=True, isolation_level=None)
            local.pid = os.getpid()
        db: sqlite3.Connection = local.db
        return db

    def _get(self, columns: str, row: int) -> tuple[Any, ...]:
        """Columns of a message and its sender."""
        table = "messages JOIN people ON person = sender"
        found = self._db().execute(f"SELECT {columns} FROM {table} WHERE row = ?", (row,)).fetchone()
        if found is None:
            raise KeyError(f"no row {row!r}: the store has rows 1 to {self._count}")
        values: tuple[Any, ...] = found
        return values

    def _row_range(self, after: date | None, before: date | None, until: datetime | None) -> tuple[int, int]:
        """The first and the last row that bounds in time allow; the first is greater when there is none."""
        low, high = 1, int(self._count)
        if after is not None:
            low = self._rows_sent_before(_day(after)) + 1
        elif before is not None:
            low = self._first_dated
        if before is not None:
            high = min(high, self._rows_sent_before(_day(before) + _DAY_END + 1))
        if until is not None:
            high = min(high, self._rows_sent_before(int(to_utc(until).timestamp() // 1) + 1))
        return low, high

    def _rows_sent_before(self, second: int) -> int:
        """The last row sent before a second, counted since 1970; undated rows come before all."""
        found = self._db().execute(
            "SELECT row FROM messages WHERE date < ? ORDER BY date DESC, row DESC LIMIT 1", (second,)
        )
        record = found.fetchone()
        return self._first_dated - 1 if record is None else int(record[0])

    def _allowed(
        self, mailbox: str | None, sender: str | None, recipient: str | None
    ) -> npt.NDArray[np.bool_] | None:
        """For each row (index 0 is none) whether it passes the filters; ``None`` if all do."""
        allowed: npt.NDArray[np.bool_] | None = None
        parts = [] if mailbox is None else [self._mailbox_rows(mailbox)]
        for who, roles in ((sender, ("sender",)), (recipient, ("to", "cc", "bcc"))):
            if who is not None and who.strip():
                parts.append(self._rows_of_people(who, roles))
        for rows in parts:
            mask = np.zeros(self._count + 1, dtype=np.bool_)
            mask[rows] = True
            allowed = mask if allowed is None else allowed & mask
        return allowed

    def _mailbox_rows(self, mailbox: str) -> _Rows:
        rows = self._homes.get(mailbox.lower())
        if rows is None:
            found = self._db().execute(
                "SELECT row FROM boxes WHERE mailbox = ? ORDER BY row", (mailbox.lower(),)
            )
            rows = np.fromiter((row for (row,) in found), dtype=np.int64)
            if not len(rows):
                near = did_you_mean(mailbox.lower(), (name for name, _ in self.mailboxes()))
                raise ValueError(f"no mailbox {mailbox!r} in {self.path.name}{near}")
            self._homes[mailbox.lower()] = rows
        return rows

    def _rows_of_people(self, text: str, roles: tuple[str, ...]) -> _Rows:
        """Rows in which someone in one of the roles has each word of a text at the start of a word."""
        words = query_words(text)[:_MAX_WORDS]
        if not words:
            return np.zeros(0, dtype=np.int64)
        match = " AND ".join(f'"{word}"*' for word in words)
        numbers = ", ".join(str(ROLES.index(role)) for role in roles)
        found = self._db().execute(
            "SELECT roles.row FROM names CROSS JOIN roles ON roles.person = names.rowid "
            f"WHERE names MATCH ? AND roles.role IN ({numbers})",
            (match,),
        )
        return np.fromiter((row for (row,) in found), dtype=np.int64)


def _check_file(path: Path) -> None:
    """Raise unless a file is a mail store of this version, judging by its first 100 bytes."""
    quoted = shlex.quote(str(path))
    if not path.exists():
        raise FileNotFoundError(
            f"no mail store at {path}; make one with: art-gym mail import PATH --out {quoted}"
        )
    if not path.is_file():
        raise ValueError(
            f"{path} is a folder, not a mail store; make one with: art-gym mail import {quoted} --out box.db"
        )
    with path.open("rb") as file:
        head = file.read(100)
    if not head.startswith(b"SQLite format 3\0") or int.from_bytes(head[68:72]) != APPLICATION_ID:
        raise ValueError(
            f"{path} is not a mail store; make one with: art-gym mail import {quoted} --out box.db"
        )
    version = int.from_bytes(head[60:64])
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"{path} is a mail store of version {version}, and this art_gym reads version {SCHEMA_VERSION}: "
            "import the mail again"
        )


def _best(
    rows: _Rows, matched: npt.NDArray[np.uint8], scores: npt.NDArray[np.float64], words: int, limit: int
) -> list[Hit]:
    """The first ``limit`` of some rows: those with every word, then the others; by score, then row."""
    partial = matched < words
    if len(rows) > limit:
        key = np.where(partial, scores, scores + scores.max() + 1.0)
        keep = key >= np.partition(key, len(rows) - limit)[len(rows) - limit]
        rows, matched, scores, partial = rows[keep], matched[keep], scores[keep], partial[keep]
    order = np.lexsort((rows, -scores, partial))[:limit]
    return [Hit(int(rows[i]), int(matched[i]), float(scores[i])) for i in order]


def _day(day: date) -> int:
    """The first second of a day in UTC, since 1970."""
    return calendar.timegm((day.year, day.month, day.day, 0, 0, 0))


def _moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
