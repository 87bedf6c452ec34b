"""Import real mail into a store, with a report of every message that was skipped.

Each message found is imported, counted as a copy of another, or counted as skipped with a reason; nothing
that a message holds stops an import.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from art_gym.base import require_choice
from art_gym.envs.mail.importers.mbox import CHUNK, MAX_MESSAGE
from art_gym.envs.mail.importers.parse import NotMailError, parse_json, parse_message
from art_gym.envs.mail.importers.sources import FORMATS, Raw, read_source
from art_gym.envs.mail.store.writer import MailStoreWriter

__all__ = ["FORMATS", "ImportReport", "import_mail"]

_LISTED = 1_000  # skipped messages named one by one
_SHOWN_SOURCES = 30  # lines of a summary
_PROGRESS_EVERY = 100  # messages between two calls of on_progress

Progress = Callable[[int, int | None], None]


@dataclass(slots=True)
class ImportReport:
    """What an import did. ``read == imported + duplicates + sum(reasons.values())``.

    Attributes:
        read: Messages found, and files that hold no mail.
        imported: Messages in the store.
        duplicates: Messages that are copies of one in the store (its Message-IDs lead there).
        sources: How many messages (or files without mail) each file with several messages had, and each
            folder of files.
        reasons: How many messages and files were skipped, by reason.
        skipped: The first 1,000 that were skipped: place and reason.
        notes: How many imported messages needed a repair, by kind.
        seconds: How long it took.
    """

    read: int = 0
    imported: int = 0
    duplicates: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def summary(self) -> str:
        """The account as lines of text."""
        rate = self.read / self.seconds if self.seconds > 0 else 0.0
        lines = [
            f"{self.read:,} messages read in {self.seconds:.1f} s, {rate:,.0f} a second",
            f"{self.imported:,} imported, {self.duplicates:,} copies of these, "
            f"{self.reasons.total():,} skipped",
        ]
        lines.extend(f"  {count:,} in {where}" for where, count in [*self.sources.items()][:_SHOWN_SOURCES])
        if len(self.sources) > _SHOWN_SOURCES:
            rest = [*self.sources.values()][_SHOWN_SOURCES:]
            lines.append(f"  {sum(rest):,} in {len(rest):,} other files and folders")
        notes = [f"  note, {count:,}: {note}" for note, count in self.notes.most_common()]
        return "\n".join([*lines, *self.skipped_by_reason(), *notes])

    def skipped_by_reason(self) -> Iterator[str]:
        """A line for each reason, with some of the places."""
        for reason, count in self.reasons.most_common():
            places = [where for where, why in self.skipped if why == reason]
            more = ", …" if count > 3 else ""
            yield f"  skipped {count:,}: {reason} ({', '.join(places[:3])}{more})"


def import_mail(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    on_progress: Progress | None = None,
) -> ImportReport:
    """Import mail from files, folders and archives into a new store.

    The store appears at ``out``, replacing what is there, when everything has been read; an error or an
    interrupt leaves ``out`` as it was.

    Args:
        sources: One or several of: an mbox or JSONL file, an .eml file, a folder of any of these (a Maildir,
            a Thunderbird profile, a tree as of the Enron release), a ``.zip`` or ``.tar`` file of them.
            Files may be compressed (``.gz``, ``.xz``, ``.bz2``).
        out: The file to write.
        format: How every file of the sources is written: ``mbox``, ``eml`` (one message) or ``jsonl``; by
            default each is read by its name and its first bytes.
        on_progress: Called now and then with the bytes of the files read and their size; with a folder among
            the sources, with the messages read and None. The last call comes when all is read; the index is
            made after it.

    Raises:
        FileNotFoundError: A source, or the folder of ``out``, does not exist.
        ValueError: There is no mail, the format is not known, or ``out`` is one of the sources or in one.
    """
    started = time.perf_counter()
    paths = [Path(sources)] if isinstance(sources, str | os.PathLike) else [Path(path) for path in sources]
    out = Path(out)
    _check(paths, out, format)
    sizes = [path.stat().st_size for path in paths]
    total = None if any(path.is_dir() for path in paths) else sum(sizes)
    report = ImportReport()
    with MailStoreWriter(out, {"source": ", ".join(path.name for path in paths)}) as writer:
        for number, path in enumerate(paths):
            for raw in read_source(path, format):
                _import_one(raw, writer, report)
                if on_progress is not None and report.read % _PROGRESS_EVERY == 0:
                    done = report.read if total is None else sum(sizes[:number]) + raw.position
                    on_progress(done, total)
        if on_progress is not None:
            on_progress(report.read if total is None else total, total)
        if not report.imported:
            nothing = f"no mail found in {', '.join(map(str, paths))}"
            raise ValueError("\n".join([nothing, *report.skipped_by_reason()]))
    report.seconds = time.perf_counter() - started
    return report


def _check(paths: list[Path], out: Path, format: str | None) -> None:
    if format is not None:
        require_choice("format", format, FORMATS)
    if not paths:
        raise ValueError("nothing to import: give a file, a folder or an archive of mail")
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"nothing to import at {path}")
        if out.resolve().is_relative_to(path.resolve()):
            raise ValueError(f"the store {out} would replace {path} or lie inside it; put it elsewhere")


def _import_one(raw: Raw, writer: MailStoreWriter, report: ImportReport) -> None:
    report.read += 1
    report.sources[raw.source] += 1
    try:
        if raw.reason:
            raise NotMailError(raw.reason)
        if raw.format == "jsonl":
            message, notes = parse_json(raw.data, raw.mailbox)
        else:
            message, notes = parse_message(raw.data, raw.folder, raw.mailbox)
    except NotMailError as error:
        report.reasons[str(error)] += 1
        if len(report.skipped) < _LISTED:
            report.skipped.append((raw.where, str(error)))
        return
    if writer.add(message):
        report.imported += 1
        report.notes.update(notes)
        if len(raw.data) > MAX_MESSAGE - CHUNK:
            report.notes[f"only the first {MAX_MESSAGE / 1e6:.0f} MB read"] += 1
    else:
        report.duplicates += 1
