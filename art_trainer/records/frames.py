"""A file of frames that grows at its end: each a small header and compressed lines of JSON.

A frame is two frames of the Zstandard format (RFC 8878), one after the other::

    skippable frame    magic 0x184D2A5A, its length, the sha256 of the header, the header, a JSON object
    data frame         JSON lines, compressed; the header has their length and their sha256

so that ``zstd -dc FILE`` prints all lines of a file, and a reader can hop from header to header without
decompressing what it does not want.

A frame is written by one call and never changed. One whose end lies behind the end of the file is under way,
or was cut off by a killed process: readers take the file to end before it.
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

SCHEMA = 1
"""Version of headers and lines; a reader refuses a newer one."""
LEVEL = 3
"""Zstandard's level: 9 makes a file 3 to 7% smaller for four times the work."""
_MAGIC = 0x184D2A5A
_START = struct.Struct("<II")
_DIGEST = 32
_LARGEST_HEADER = 1 << 12


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a frame lies in its file, and what its header says.

    Attributes:
        file: The file.
        offset: Where its first byte lies.
        header: The header, with ``schema``, and ``bytes`` and ``sha256`` of the data, among the rest.
        data_offset: Where its data begins.
    """

    file: Path
    offset: int
    header: Mapping[str, Any]
    data_offset: int

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.data_offset + int(self.header["bytes"])

    def lines(self) -> Iterator[bytes]:
        """Check the data against its digest, then give its lines, a few in memory at a time.

        Raises:
            RecordError: Where it is not as it was written.
        """
        with self.file.open("rb") as stream:
            stream.seek(self.data_offset)
            data = stream.read(int(self.header["bytes"]))
        if hashlib.sha256(data).hexdigest() != self.header["sha256"]:
            raise RecordError(f"{self.named()} is damaged: its sha256 is not the one it was written with")
        rest = b""
        for block in zstandard.ZstdDecompressor().read_to_iter(data):
            *whole, rest = (rest + block).split(b"\n")
            yield from whole

    def named(self) -> str:
        """Words for messages."""
        what = " ".join(str(self.header[key]) for key in ("kind", "step") if key in self.header)
        return f"{self.file}, {what or 'a frame'} at byte {self.offset}"


def append_frame(file: Path, header: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Write a frame at the end of a file, whole or not at all.

    Args:
        file: The file, made where there is none; nobody else may be writing it.
        header: JSON-able; what a reader may want to know without decompressing.
        lines: Without line ends.

    Raises:
        OSError: Where there is no room for it; the file is as it was before.
    """
    data = zstandard.ZstdCompressor(level=LEVEL).compress(
        b"".join(line.encode("utf-8") + b"\n" for line in lines)
    )
    ours = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    text = json.dumps({"schema": SCHEMA, **header, **ours}, separators=(",", ":")).encode("ascii")
    start = _START.pack(_MAGIC, _DIGEST + len(text))
    frame = memoryview(start + hashlib.sha256(text).digest() + text + data)
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        before = os.fstat(handle).st_size
        try:
            while frame:
                frame = frame[os.write(handle, frame) :]
        except BaseException:  # a full disk, or Ctrl-C
            os.ftruncate(handle, before)
            raise
    finally:
        os.close(handle)


def walk(file: Path, start: int = 0) -> Iterator[Frame]:
    """Give the frames of a file, reading only headers; one that is not whole yet ends it.

    Args:
        file: The file; one that is not there has no frames.
        start: Where to begin: the ``offset`` or ``end`` of a frame that was seen before.

    Raises:
        RecordError: Where the file holds something else, or was written by a newer version.
    """
    if not file.exists():
        return
    with file.open("rb") as stream:
        offset = start
        while (frame := _frame_at(stream, file, offset)) is not None:
            yield frame
            offset = frame.end


def _frame_at(stream: IO[bytes], file: Path, offset: int) -> Frame | None:
    size = os.fstat(stream.fileno()).st_size
    stream.seek(offset)
    start = stream.read(_START.size)
    # A file system that lost power may leave zeros where a frame was being written.
    if len(start) < _START.size or not any(start):
        return None
    magic, length = _START.unpack(start)
    if magic != _MAGIC or not _DIGEST < length <= _LARGEST_HEADER:
        raise RecordError(f"{file} is damaged at byte {offset}: no frame begins there")
    payload = stream.read(length)
    if len(payload) < length:
        return None
    text = payload[_DIGEST:]
    if hashlib.sha256(text).digest() != payload[:_DIGEST]:
        raise RecordError(f"{file} is damaged at byte {offset}: the header there is not as it was written")
    header = json.loads(text)
    if header["schema"] > SCHEMA:
        raise RecordError(
            f"{file} was written by a newer version (schema {header['schema']}; this one reads up to "
            f"{SCHEMA}): upgrade art-gym"
        )
    frame = Frame(file, offset, header, offset + _START.size + length)
    return frame if frame.end <= size else None
