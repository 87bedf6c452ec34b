"""Read mail files and folders of several formats as a stream of raw messages.

A source yields one :class:`Raw` per message, in an order that depends on names only, and holds at most one
message in memory.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

MAX_MESSAGE = 32_000_000  # bytes of one message that are read; the rest is passed over
CHUNK = 65_536  # bytes of a line that are read at once
_OPENERS: dict[str, Callable[[BinaryIO], object]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_BROKEN = (EOFError, lzma.LZMAError, zlib.error, OSError)
_FROM_LINE = re.compile(rb"From .*\d\d?:\d\d.*\d{4}")
_QUOTED_FROM = re.compile(rb">+From ")
_HEADER_LINE = re.compile(rb"[!-9;-~]+[ \t]*:|>?From ")
_NUMBERED = re.compile(r"\d+\.?")
_USUAL_FOLDERS = {"inbox", "sent", "sent_items", "_sent_mail", "deleted_items", "all_documents"}
_MAILDIR_FILES = re.compile(r"dovecot|courier|\.|subscriptions$|maildirsize$|maildirfolder$")


class Raw(NamedTuple):
    """One message as found. ``reason`` is set, and ``data`` empty, if it could not be read.

    ``position`` is how many bytes of a file had been read by then.
    """

    where: str
    data: bytes = b""
    folder: str = ""
    mailbox: str = ""
    reason: str = ""
    position: int = 0


class Source(NamedTuple):
    """A stream of messages: its format, the size of the file in bytes (None for a folder), the messages."""

    format: str
    size: int | None
    messages: Iterator[Raw]


def open_source(path: Path, format: str | None = None) -> Source:
    """Detect the format of a path and begin to read it.

    Args:
        path: A file or a folder.
        format: One of ``FORMATS``, if it is known.

    Raises:
        FileNotFoundError: There is nothing at the path.
        ValueError: No known format, or the format does not fit a file or a folder.
    """
    if not path.exists():
        raise FileNotFoundError(f"nothing to import at {path}")
    format = format or detect_format(path)
    readers = _FOLDER_READERS if path.is_dir() else _FILE_READERS
    if format not in readers:
        what = "folder" if path.is_dir() else "file"
        raise ValueError(
            f"{path} is a {what}, and {format!r} is not a format of one; use {', '.join(readers)}"
        )
    return Source(format, None if path.is_dir() else path.stat().st_size, readers[format](path))


def detect_format(path: Path) -> str:
    """The format of a file by its first bytes, of a folder by the names in it.

    Raises:
        ValueError: It is none of the known ones.
    """
    if path.is_dir():
        return _detect_folder(path)
    with _opened(path) as (file, _):
        try:
            head = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
        except _BROKEN as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
    if head.startswith(b"{"):
        return "jsonl"
    if head.startswith(b"From "):
        return "mbox"
    if _HEADER_LINE.match(head):
        return "eml"
    raise ValueError(f"{path} holds no mail that is known here; known: {', '.join(FORMATS)}")


def _detect_folder(path: Path) -> str:
    for folder, names, files in os.walk(path):
        names.sort()
        if {"cur", "new"} & set(names) or Path(folder).name in ("cur", "new"):
            return "maildir"
        if any(name.lower().endswith(".eml") for name in files):
            return "eml"
        if any(_NUMBERED.fullmatch(name) for name in files):
            return "enron"
    raise ValueError(
        f"no mail found in {path}: no Maildir (cur, new), no .eml files, no numbered files as in the Enron "
        "tree; an mbox or JSONL file is given by its own path"
    )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """A file's content, uncompressed, and the file itself."""
    with path.open("rb") as raw:
        opener = _OPENERS.get(path.suffix.lower())
        yield (cast(BinaryIO, opener(raw)) if opener else raw), raw


def stem(path: Path) -> str:
    """A name for the mailbox in a file or folder: its own, without endings."""
    name = path.resolve().name
    return name.lstrip(".").split(".")[0] or name


def _read_mbox(path: Path) -> Iterator[Raw]:
    """The messages of an mbox file (mboxo, mboxrd), split at its ``From `` lines.

    Such a line counts when it has a time and a year and a header follows (or, after a blank line, a blank
    one): mail quotes "From " at the start of lines more often than its writers think.
    """
    name = stem(path)
    count = 0
    with _opened(path) as (file, raw):
        lines: list[bytes] | None = None
        try:
            for starts, line in _mbox_lines(file):
                if starts and lines is not None:
                    count += 1
                    where = f"{path.name}, message {count}"
                    yield Raw(where, b"".join(lines), name, name, position=raw.tell())
                if starts:
                    lines = []
                elif lines is not None:
                    lines.append(line)
                elif line.strip():
                    lines = [line]
        except _BROKEN as error:
            yield Raw(f"{path.name}, after message {count}", reason=_broken(error))
        if lines is not None:
            yield Raw(f"{path.name}, message {count + 1}", b"".join(lines), name, name)


def _mbox_lines(file: BinaryIO) -> Iterator[tuple[bool, bytes]]:
    """Each line with whether it begins a message; what exceeds a message's limit is passed over."""
    size, was_blank, is_first = 0, True, True
    line = file.readline(CHUNK)
    while line:
        following = file.readline(CHUNK)
        is_blank_next = not following.strip()
        starts = line.startswith(b"From ") and (
            is_first
            or (
                (_FROM_LINE.match(line) is not None)
                and (_HEADER_LINE.match(following) is not None or (was_blank and is_blank_next))
            )
        )
        size = 0 if starts else size + len(line)
        if starts or size <= MAX_MESSAGE:
            yield starts, line[1:] if _QUOTED_FROM.match(line) else line
        was_blank = not line.strip()
        is_first = is_first and was_blank
        line = following


def _read_jsonl(path: Path) -> Iterator[Raw]:
    """The lines of a file; each is a message for ``parse_json``."""
    name = stem(path)
    number = 0
    with _opened(path) as (file, raw):
        try:
            while line := file.readline(MAX_MESSAGE):
                number += 1
                where = f"{path.name}, line {number}"
                if len(line) == MAX_MESSAGE and not line.endswith(b"\n"):
                    while (more := file.readline(CHUNK)) and not more.endswith(b"\n"):
                        continue
                    reason = f"a line of over {MAX_MESSAGE:,} bytes"
                    yield Raw(where, reason=reason, position=raw.tell())
                elif line.strip():
                    yield Raw(where, line, mailbox=name, position=raw.tell())
        except _BROKEN as error:
            yield Raw(f"{path.name}, after line {number}", reason=_broken(error))


def _read_one(path: Path) -> Iterator[Raw]:
    """A file that is one message."""
    yield _read_file(path, path.name, "", stem(path))


def _read_eml(root: Path) -> Iterator[Raw]:
    """Every .eml file in a folder and the folders in it."""
    name = stem(root)
    for path, where in _walk(root):
        if path.suffix.lower() == ".eml":
            yield _read_file(path, where, "/".join([name, *Path(where).parts[:-1]]), name)
        else:
            yield Raw(where, reason="no .eml file")


def _read_maildir(root: Path) -> Iterator[Raw]:
    """Every message in the ``cur`` and ``new`` of a Maildir and of the folders in it."""
    name = stem(root)
    for path, where in _walk(root):
        *parents, place, _ = [root.name, *Path(where).parts]
        if place not in ("cur", "new"):
            if place != "tmp" and not _MAILDIR_FILES.match(path.name):
                yield Raw(where, reason="not in cur or new of a Maildir")
            continue
        folders = [part.strip(".").replace(".", "/") for part in parents[1:]]
        yield _read_file(path, where, "/".join([name, *folders]), name)


def _read_enron(root: Path) -> Iterator[Raw]:
    """The tree of the Enron release, ``user/folder/1.``; or one user's part of it, ``folder/1.``."""
    is_one_user = any((root / folder).is_dir() for folder in _USUAL_FOLDERS)
    for path, where in _walk(root):
        parents = list(Path(where).parts[:-1])
        if is_one_user or not parents:
            parents = [stem(root), *parents]
        yield _read_file(path, where, "/".join(parents), parents[0])


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    """Every file under a folder with its relative name, by name; links to folders are not followed."""
    for folder, names, files in os.walk(root):
        names.sort()
        for name in sorted(files):
            path = Path(folder, name)
            yield path, path.relative_to(root).as_posix()


def _read_file(path: Path, where: str, folder: str, mailbox: str) -> Raw:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return Raw(where, reason="not a regular file")
        with _opened(path) as (file, _):
            return Raw(where, file.read(MAX_MESSAGE), folder, mailbox)
    except _BROKEN as error:
        return Raw(where, reason=_broken(error))


def _broken(error: BaseException) -> str:
    """Why a file could not be read; the same text for the same cause."""
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, FileNotFoundError):
        return "a link to nothing"
    return "the compressed or stored data is damaged from here on"


_Readers = Mapping[str, Callable[[Path], Iterator[Raw]]]
_FILE_READERS: _Readers = {"mbox": _read_mbox, "jsonl": _read_jsonl, "eml": _read_one}
_FOLDER_READERS: _Readers = {"maildir": _read_maildir, "eml": _read_eml, "enron": _read_enron}
FORMATS = ("mbox", "maildir", "eml", "enron", "jsonl")
