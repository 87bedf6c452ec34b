"""Append-only file of compressed JSON lines in frames that can be skipped unread.

A frame is two frames of the Zstandard format (RFC 8878)::

    skippable frame    magic 0x184D2A5A, length, sha256 of the header, header (JSON)
    data frame         compressed JSON lines; the header has their compressed length and sha256

so ``zstd -dc FILE`` prints all lines, and a reader can hop from header to header. A frame is written by one
call and never changed. One that reaches beyond the end of the file is being written, or was cut off by a
killed process: readers stop before it. No locks are needed, also on network file systems, and damage costs
the frames that it hits.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import zstandard

from art_trainer.errors import RecordError
from art_trainer.formatting import append_bytes

SCHEMA = 1
"""Version of headers and lines; a reader refuses a newer one."""
_LEVEL = 3  # 9 makes a file 3 to 7% smaller for four times the work
_MAGIC = 0x184D2A5A
_START = struct.Struct("<II")  # magic, length of what follows
_DIGEST = 32  # bytes of a sha256
_LARGEST_HEADER = 4096


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a file, its data not read.

    Attributes:
        file: The file.
        offset: Position of its first byte.
        header: What the writer gave, with ``schema``, ``bytes`` and ``sha256`` of the data.
        data_offset: Position of its data.
    """

    file: Path
    offset: int
    header: Mapping[str, Any]
    data_offset: int

    @property
    def end(self) -> int:
        """Position of the next frame."""
        return self.data_offset + int(self.header["bytes"])

    def lines(self) -> Iterator[bytes]:
        """Check the data, then yield its lines, a few in memory at a time.

        Raises:
            RecordError: If it is not as it was written.
        """
        with self.file.open("rb") as stream:
            stream.seek(self.data_offset)
            data = stream.read(int(self.header["bytes"]))
        if hashlib.sha256(data).hexdigest() != self.header["sha256"]:
            raise RecordError(f"{self} is damaged: its sha256 is not the one it was written with")
        rest = b""
        for block in zstandard.ZstdDecompressor().read_to_iter(data):
            *whole, rest = (rest + block).split(b"\n")
            yield from whole

    def __str__(self) -> str:
        """Name the frame for messages."""
        what = " ".join(str(self.header[key]) for key in ("kind", "step") if key in self.header)
        return f"{self.file}, {what} at byte {self.offset}"


def append_frame(file: Path, header: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Append a frame, whole or not at all; nobody else may be writing the file.

    Args:
        file: Created if it does not exist.
        header: JSON-able; what a reader may want to know without decompressing.
        lines: Without line ends.

    Raises:
        OSError: If there is no room; the file is as it was before.
    """
    text = b"".join(line.encode("utf-8") + b"\n" for line in lines)
    data = zstandard.ZstdCompressor(level=_LEVEL).compress(text)
    written = {"schema": SCHEMA, **header, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    head = json.dumps(written, separators=(",", ":")).encode("ascii")
    start = _START.pack(_MAGIC, _DIGEST + len(head))
    append_bytes(file, start + hashlib.sha256(head).digest() + head + data)


def read_frames(file: Path, start: int = 0) -> Iterator[Frame]:
    """Yield the frames of a file, reading only headers; stop at one that is not complete.

    Args:
        file: A file that does not exist has no frames.
        start: The ``offset`` or ``end`` of a frame to begin at.

    Raises:
        RecordError: If the file holds something else, or was written by a newer version.
    """
    if not file.exists():
        return
    with file.open("rb") as stream:
        while (frame := _frame_at(stream, file, start)) is not None:
            yield frame
            start = frame.end


def _frame_at(stream: IO[bytes], file: Path, offset: int) -> Frame | None:
    size = os.fstat(stream.fileno()).st_size
    stream.seek(offset)
    start = stream.read(_START.size)
    # After a power cut a file system may leave zeros where a frame was being written.
    if len(start) < _START.size or not any(start):
        return None
    magic, length = _START.unpack(start)
    if magic != _MAGIC or not _DIGEST < length <= _LARGEST_HEADER:
        raise RecordError(f"{file} is damaged at byte {offset}: no frame begins there")
    digest, text = stream.read(_DIGEST), stream.read(length - _DIGEST)
    if len(text) < length - _DIGEST:
        return None
    if hashlib.sha256(text).digest() != digest:
        raise RecordError(f"{file} is damaged at byte {offset}: the header is not as it was written")
    header = json.loads(text)
    if header["schema"] > SCHEMA:
        raise RecordError(
            f"{file} has schema {header['schema']} and this version reads up to {SCHEMA}: upgrade art-gym"
        )
    frame = Frame(file, offset, header, stream.tell())
    return frame if frame.end <= size else None
