"""Import real mail into a store, with a report of every message that was skipped.

Each message found is imported, counted as a copy of another, or counted as skipped with a reason; nothing
that a message holds stops an import.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from art_gym.envs.mail.importers.parse import NotMailError, Parsed, parse_json, parse_message
from art_gym.envs.mail.importers.sources import CHUNK, FORMATS, MAX_MESSAGE, Raw, detect_format, open_source
from art_gym.envs.mail.store.writer import MailStoreWriter

__all__ = ["FORMATS", "ImportReport", "detect_format", "import_mail"]

_LISTED = 1_000  # skipped messages named one by one
_PROGRESS_EVERY = 100  # messages between two calls of on_progress

Progress = Callable[[int, int | None], None]


@dataclass(slots=True)
class ImportReport:
    """What an import did. ``read == imported + duplicates + sum(reasons.values())``.

    Attributes:
        format: The format that was read.
        read: Messages found.
        imported: Messages in the store.
        duplicates: Messages that are copies of one in the store (its Message-IDs lead there).
        reasons: How many messages were skipped, by reason.
        skipped: The first 1,000 skipped messages: place and reason.
        notes: How many imported messages needed a repair, by kind.
        seconds: How long it took.
    """

    format: str = ""
    read: int = 0
    imported: int = 0
    duplicates: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def skip(self, where: str, reason: str) -> None:
        """Count a message that is not imported."""
        self.reasons[reason] += 1
        if len(self.skipped) < _LISTED:
            self.skipped.append((where, reason))

    def summary(self) -> str:
        """The account as lines of text."""
        rate = self.read / self.seconds if self.seconds > 0 else 0.0
        lines = [
            f"{self.read:,} messages read ({self.format}) in {self.seconds:.1f} s, {rate:,.0f} a second",
            f"{self.imported:,} imported, {self.duplicates:,} copies of these, "
            f"{self.reasons.total():,} skipped",
        ]
        for reason, count in self.reasons.most_common():
            places = [where for where, why in self.skipped if why == reason]
            more = ", …" if count > 3 else ""
            lines.append(f"  skipped {count:,}: {reason} ({', '.join(places[:3])}{more})")
        lines.extend(f"  note, {count:,}: {note}" for note, count in self.notes.most_common())
        return "\n".join(lines)


def import_mail(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    on_progress: Progress | None = None,
) -> ImportReport:
    """Import mail from a file or folder into a new store.

    The store appears at ``out``, replacing what is there, when everything has been read; an error or an
    interrupt leaves ``out`` as it was.

    Args:
        path: An mbox or JSONL file (also ``.gz``, ``.xz``, ``.bz2``), an .eml file, a Maildir, a folder of
            .eml files, or a tree as of the Enron release.
        out: The file to write.
        format: ``mbox``, ``maildir``, ``eml``, ``enron`` or ``jsonl``; guessed when it is not given.
        on_progress: Called now and then with the bytes of the file read and its size; for a folder with the
            messages read and None. The last call comes when all is read; the index is made after it.

    Raises:
        FileNotFoundError: ``path``, or the folder of ``out``, does not exist.
        ValueError: The format is not known, or ``out`` is inside the folder that is read.
    """
    started = time.perf_counter()
    path, out = Path(path), Path(out)
    if format is not None and format not in FORMATS:
        raise ValueError(f"no format {format!r}; known: {', '.join(FORMATS)}")
    if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
        raise ValueError(
            f"the store {out} would lie inside the folder {path} that is imported; put it elsewhere"
        )
    source = open_source(path, format)
    report = ImportReport(format=source.format)
    with MailStoreWriter(out, {"source": path.name, "format": source.format}) as writer:
        for raw in source.messages:
            _import_one(raw, source.format, writer, report)
            if on_progress is not None and report.read % _PROGRESS_EVERY == 0:
                on_progress(report.read if source.size is None else raw.position, source.size)
        if on_progress is not None:
            on_progress(report.read if source.size is None else source.size, source.size)
    report.seconds = time.perf_counter() - started
    return report


def _import_one(raw: Raw, format: str, writer: MailStoreWriter, report: ImportReport) -> None:
    report.read += 1
    if raw.reason:
        report.skip(raw.where, raw.reason)
        return
    try:
        message, notes = _parse(raw, format)
    except NotMailError as error:
        report.skip(raw.where, str(error))
        return
    if writer.add(message):
        report.imported += 1
        report.notes.update(notes)
        if len(raw.data) > MAX_MESSAGE - CHUNK:
            report.notes[f"only the first {MAX_MESSAGE / 1e6:.0f} MB read"] += 1
    else:
        report.duplicates += 1


def _parse(raw: Raw, format: str) -> Parsed:
    if format == "jsonl":
        return parse_json(raw.data, raw.mailbox)
    return parse_message(raw.data, raw.folder, raw.mailbox)
