"""Read files, folders and archives of mail as a stream of raw messages.

Each file is read by what it is: an mbox, JSON lines or one message, also compressed, in a folder, a Maildir,
a Thunderbird profile, a zip or a tar file. The order depends on names only (in archives, on theirs), and at
most one message is in memory.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple, cast

from art_gym.envs.mail.importers.mbox import CHUNK, MAX_MESSAGE, mbox_lines
from art_gym.envs.mail.importers.parse import HEADER_LINE

_OPENERS: dict[bytes, Callable[[io.BufferedReader], object]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"BZh": bz2.open,
}
_BROKEN = (EOFError, OSError, lzma.LZMAError, zlib.error, tarfile.TarError, zipfile.BadZipFile)
_HEAD = 4096  # bytes that tell what a file is
# One message each, though it may begin with a From line: of the Enron release `1.`, of SpamAssassin `1.7c53`.
_ONE_MESSAGE = re.compile(r".*\.eml|\d+\.[0-9a-f]*", re.IGNORECASE)
_USUAL_FOLDERS = {"inbox", "sent", "sent_items", "_sent_mail", "deleted_items", "all_documents"}
_NOT_LISTED = re.compile(r"dovecot|courier|\.|subscriptions$|maildirsize$|maildirfolder$|.*\.msf$")


class Raw(NamedTuple):
    """One message as found. ``reason`` is set, and ``data`` empty, if it could not be read.

    Attributes:
        where: The file, and the number of the message if it holds several.
        source: The file with several messages, or the folder with files of one.
        data: The message.
        format: How it is written, one of ``FORMATS``.
        folder: The mail folder it is in.
        mailbox: The mailbox it is in.
        reason: Why it could not be read.
        position: How many bytes of the file on disk had been read by then.
    """

    where: str
    source: str
    data: bytes = b""
    format: str = "eml"
    folder: str = ""
    mailbox: str = ""
    reason: str = ""
    position: int = 0


class _File(NamedTuple):
    """A file of a source: its path for reports, its mailbox, and the folders from there on to its name.

    ``parts`` is empty for a source that is a file.
    """

    shown: str
    mailbox: str
    parts: tuple[str, ...] = ()
    is_in_archive: bool = False

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.shown).name

    @property
    def home(self) -> str:
        """The folder it is in, as reports show it; a source that is a file stands for itself."""
        return str(PurePosixPath(self.shown).parent) if self.parts else self.shown

    @property
    def folders(self) -> list[str]:
        """The mail folders it is in, by the names that Maildirs and Thunderbird make of them."""
        parts = self.parts[:-1]
        if parts[-1:] in (("cur",), ("new",)):
            parts = tuple(part.strip(".").replace(".", "/") for part in parts[:-1])
        return [self.mailbox, *(part.removesuffix(".sbd") for part in parts)]

    def member(self, name: str) -> _File:
        """A file in this archive."""
        parts = (*self.parts[:-1], *(PurePosixPath(name.replace("\\", "/")).parts or (name,)))
        return _file(f"{self.shown}/{name}", self.mailbox, parts)._replace(is_in_archive=True)

    def left_out(self, reason: str) -> Raw:
        """The file as one that no mail was read from."""
        return Raw(self.shown, self.home, reason=reason)


def _file(shown: str, mailbox: str, parts: tuple[str, ...]) -> _File:
    """A file in a folder; in the Enron release (``user/folder/1.``) its mailbox is the user's."""
    if re.fullmatch(r"\d+\.", parts[-1]):
        parts = parts[1:] if parts[0] == "maildir" else parts
        if len(parts) > 2:
            return _File(shown, parts[0], parts[1:])
    return _File(shown, mailbox, parts)


def read_source(path: Path, format: str | None = None) -> Iterator[Raw]:
    """The messages in a file, folder or archive, and each other file with the reason that it is left out.

    Args:
        path: What to read.
        format: How every file in it is written, one of ``FORMATS``; by default each by name and content.
    """
    if not path.is_dir():
        yield from _read_path(path, _File(str(path), stem(path)), format)
        return
    is_one_user = any((path / folder).is_dir() for folder in _USUAL_FOLDERS)
    for found in _walk(path):
        shown, parts = found.as_posix(), found.relative_to(path).parts
        file = _File(shown, stem(path), parts) if is_one_user else _file(shown, stem(path), parts)
        yield from _read_path(found, file, format)


def stem(path: Path) -> str:
    """A name for the mailbox in a file or folder: its own, without endings."""
    name = path.resolve().name
    return name.lstrip(".").split(".")[0] or name


def _walk(root: Path) -> Iterator[Path]:
    """Every file in a folder, by name; not in the ``tmp`` of Maildirs, nor where links to folders lead."""
    for folder, names, files in os.walk(root):
        if "cur" in names and "tmp" in names:
            names.remove("tmp")
        names.sort()
        yield from (Path(folder, name) for name in sorted(files))


def _read_path(path: Path, file: _File, format: str | None) -> Iterator[Raw]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            yield file.left_out("not a regular file")
            return
        with path.open("rb", buffering=CHUNK) as disk:
            for raw in _read_stream(cast(io.BufferedReader, disk), file, format):
                yield raw._replace(position=disk.tell())
    except _BROKEN as error:
        yield file.left_out(_broken(error))


def _read_stream(stream: io.BufferedReader, file: _File, format: str | None) -> Iterator[Raw]:
    """What is in a file: an archive's members, or the messages of one of the formats."""
    head = stream.peek(_HEAD)
    is_zip = head.startswith((b"PK\x03\x04", b"PK\x05\x06"))
    for magic, opener in _OPENERS.items():
        if head.startswith(magic):
            stream = cast(io.BufferedReader, opener(stream))
            head = stream.peek(_HEAD)
    is_archive = is_zip or head[257:262] == b"ustar"
    if is_archive and file.is_in_archive:
        yield file.left_out("an archive in an archive")
    elif is_archive:
        yield from (_read_zip if is_zip else _read_tar)(stream, file, format)
    elif kind := format or _detected(head, file):
        yield from _READERS[kind](stream, file)
    elif not _NOT_LISTED.match(file.name):
        yield file.left_out("no mail that is known here")


def _detected(head: bytes, file: _File) -> str | None:
    """The format of a file by its name and first bytes; None if it holds no mail."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if _ONE_MESSAGE.fullmatch(file.name) or file.parts[-2:-1] in (("cur",), ("new",)):
        return "eml"
    if text.startswith(b"From "):
        return "mbox"
    if text.startswith(b"{") and (not file.parts or ".jsonl" in file.name.lower()):
        return "jsonl"
    is_header = HEADER_LINE.match(text) or (not text and not _NOT_LISTED.match(file.name))
    return "eml" if is_header else None


def _read_zip(stream: io.BufferedReader, file: _File, format: str | None) -> Iterator[Raw]:
    with zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            member = file.member(info.filename)
            if info.flag_bits & 1:
                yield member.left_out("encrypted")
            elif not info.is_dir():
                try:
                    with archive.open(info) as found:
                        yield from _read_stream(cast(io.BufferedReader, found), member, format)
                except (*_BROKEN, NotImplementedError) as error:
                    yield member.left_out(_broken(error))


def _read_tar(stream: io.BufferedReader, file: _File, format: str | None) -> Iterator[Raw]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        while (info := archive.next()) is not None:
            vars(archive)["members"] = []  # which would grow with the archive
            found = archive.extractfile(info) if info.isreg() else None
            if found is not None:
                yield from _read_stream(cast(io.BufferedReader, found), file.member(info.name), format)
            elif not info.isdir():
                yield file.member(info.name).left_out("not a regular file")


def _read_mbox(stream: io.BufferedReader, file: _File) -> Iterator[Raw]:
    """The messages of an mbox file."""
    folders = [*file.folders, stem(Path(file.name))] if file.parts else file.folders
    message = Raw("", file.shown, format="mbox", folder="/".join(folders), mailbox=file.mailbox)
    count = 0
    lines: list[bytes] | None = None
    try:
        for separates, line in mbox_lines(stream):
            if separates and lines is not None:
                count += 1
                yield message._replace(where=f"{file.shown}, message {count}", data=b"".join(lines))
            if separates:
                lines = []
            elif lines is not None:
                lines.append(line)
            elif line.strip():
                lines = [line]
    except _BROKEN as error:
        yield Raw(f"{file.shown}, after message {count}", file.shown, reason=_broken(error))
    if lines is not None:
        yield message._replace(where=f"{file.shown}, message {count + 1}", data=b"".join(lines))


def _read_jsonl(stream: io.BufferedReader, file: _File) -> Iterator[Raw]:
    """The lines of a file; each is a message for ``parse_json``."""
    number = 0
    try:
        while line := stream.readline(MAX_MESSAGE):
            number += 1
            message = Raw(f"{file.shown}, line {number}", file.shown, mailbox=file.mailbox, format="jsonl")
            if len(line) == MAX_MESSAGE and not line.endswith(b"\n"):
                while (more := stream.readline(CHUNK)) and not more.endswith(b"\n"):
                    continue
                yield message._replace(reason=f"a line of over {MAX_MESSAGE:,} bytes")
            elif line.strip():
                yield message._replace(data=line)
    except _BROKEN as error:
        yield Raw(f"{file.shown}, after line {number}", file.shown, reason=_broken(error))


def _read_eml(stream: io.BufferedReader, file: _File) -> Iterator[Raw]:
    """A file that is one message."""
    data = stream.read(MAX_MESSAGE)
    yield Raw(file.shown, file.home, data, folder="/".join(file.folders), mailbox=file.mailbox)


def _broken(error: BaseException) -> str:
    """Why a file could not be read; the same text for the same cause."""
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, FileNotFoundError):
        return "a link to nothing"
    return "the compressed or stored data is damaged from here on"


_READERS: dict[str, Callable[[io.BufferedReader, _File], Iterator[Raw]]] = {
    "mbox": _read_mbox,
    "jsonl": _read_jsonl,
    "eml": _read_eml,
}
FORMATS = tuple(_READERS)
