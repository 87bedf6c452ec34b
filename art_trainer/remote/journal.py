"""Accepted results, on disk before anyone is told of them.

A folder with one file a batch, ``batch-000012.jsonl``, which grows at its end by lines of
:mod:`art_trainer.remote.journal_lines`. One thread writes; what comes while it waits for the disk is written
and forced to the disk together (group commit). A process that is killed leaves at most the beginning of a
line at a file's end, which nobody was told of: it is cut off when the folder is opened again. Any other
damage is an error, for it may concern what somebody was told of.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from queue import Empty, SimpleQueue

from art_trainer.disk import fsync
from art_trainer.errors import TrainerError
from art_trainer.remote.journal_lines import Entry, decode_line, encode_line, is_torn, is_whole

_FILE = re.compile(r"batch-(\d{6,})\.jsonl")
_LOCK = ".lock"


class JournalError(TrainerError, RuntimeError):
    """A journal that cannot be written or read, is damaged, or is another process's; says which file."""


@dataclass(eq=False, slots=True)
class _Writing:
    """Lines on their way to the disk."""

    batch: int
    data: bytes
    on_disk: Future[None] = field(default_factory=Future)


class Journal:
    """The accepted results of a run.

    Any thread may call it. Only one, in whatever process, may have a folder open.

    Args:
        folder: Where its files are; made where it is not there.

    Attributes:
        folder: The same.
        torn: How many lines were cut off because they had never been finished.

    Raises:
        JournalError: Where another has it open, or a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._suspect: dict[Path, int] = {}
        """Files that may have lines at their end that nobody was told of, and how long they are without."""
        self._handle = _locked(self.folder)
        try:
            self.torn = sum(map(_mend, self._files().values()))
        except BaseException:
            os.close(self._handle)
            raise
        self._coming: SimpleQueue[_Writing | None] = SimpleQueue()
        self._door = threading.Lock()
        self._closed = False
        self._still = threading.Lock()
        """Who holds it may look at the files: nobody writes."""
        self._writer = threading.Thread(target=self._write_on, name="journal", daemon=True)
        self._writer.start()

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries of one batch, and return when they are on the disk.

        Raises:
            JournalError: Where they cannot be written, as on a full disk. The journal is as before, and it
                can be tried again; unless it is closed.
            TypeError: Where an entry holds what JSON cannot.
            ValueError: Where there are several batches among them, or none.
        """
        batches = {entry.task.batch for entry in entries}
        if len(batches) != 1:
            raise ValueError(f"entries of one batch are written at a time, got those of {sorted(batches)}")
        writing = _Writing(batches.pop(), b"".join(map(encode_line, entries)))
        with self._door:
            self._require_open()
            self._coming.put(writing)
        writing.on_disk.result()

    def replay(self, batch: int | None = None) -> Iterator[Entry]:
        """Read what is there, in the order in which it came, batch by batch.

        Args:
            batch: The only one to read; by default all.

        Raises:
            JournalError: Where a line is damaged, or of another version.
        """
        for found, file in self._files().items():
            if batch not in (None, found):
                continue
            with self._still:
                try:
                    data = file.read_bytes()[: self._suspect.get(file)]
                except OSError as error:
                    raise JournalError(f"{file} cannot be read: {error.strerror}") from error
            for number, line in enumerate(BytesIO(data), 1):
                try:
                    entry = decode_line(line)
                except ValueError as error:
                    raise _damage(file, number, str(error)) from None
                yield entry

    @property
    def empty(self) -> bool:
        """Whether there is nothing to :meth:`replay`."""
        return not self._files()

    def forget(self, before_batch: int) -> None:
        """Delete all batches before one.

        Raises:
            JournalError: Where a file cannot be deleted, or the journal is closed.
        """
        with self._door, self._still:
            self._require_open()
            for batch, file in self._files().items():
                if batch < before_batch:
                    self._suspect.pop(file, None)
                    _delete(file)

    def close(self) -> None:
        """Let others have the folder; what has come is written first."""
        with self._door:
            if self._closed:
                return
            self._closed = True
            self._coming.put(None)
        self._writer.join()
        os.close(self._handle)

    def _require_open(self) -> None:
        if self._closed:
            raise JournalError(f"the journal {self.folder} is closed")

    def _write_on(self) -> None:
        """Write what comes, until the journal is closed."""
        going_on = True
        while going_on:
            coming = [self._coming.get()]
            with suppress(Empty):
                while True:
                    coming.append(self._coming.get_nowait())
            going_on = None not in coming
            writings = [writing for writing in coming if writing is not None]
            for batch in dict.fromkeys(writing.batch for writing in writings):
                self._write_together(batch, [writing for writing in writings if writing.batch == batch])

    def _write_together(self, batch: int, writings: Sequence[_Writing]) -> None:
        """Write lines of one batch, and tell those who wait for them."""
        file = self.folder / f"batch-{batch:06d}.jsonl"
        try:
            with self._still:
                self._write(file, b"".join(writing.data for writing in writings))
        except Exception as error:  # those who wait must be told whatever it is, and others be served
            for writing in writings:
                writing.on_disk.set_exception(_write_fault(file, error))
        else:
            for writing in writings:
                writing.on_disk.set_result(None)

    def _write(self, file: Path, data: bytes) -> None:
        """Write lines at a file's end, all and for good, or leave it as it was."""
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            length = os.fstat(handle).st_size
            good = self._suspect[file] = min(length, self._suspect.get(file, length))
            if length > good:  # an earlier fault has left something there
                os.ftruncate(handle, good)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(handle, rest) :]
                os.fsync(handle)
                if good == 0:
                    fsync(self.folder)
            except BaseException:
                os.ftruncate(handle, good)
                raise
            del self._suspect[file]
        finally:
            os.close(handle)

    def _files(self) -> dict[int, Path]:
        return _files_in(self.folder)


def require_unused(folder: Path) -> None:
    """Make sure, before anything is done for a run, that no server has its journal open.

    Raises:
        JournalError: Where one has.
    """
    if folder.is_dir():
        os.close(_locked(folder))


def discard(folder: Path) -> None:
    """Delete what a journal holds, also where it is damaged; its lock stays, for it is what others look at.

    Raises:
        JournalError: Where another has it open, or a file cannot be deleted; a later server would use it.
    """
    if not folder.is_dir():
        return
    handle = _locked(folder)
    try:
        for file in _files_in(folder).values():
            _delete(file)
    finally:
        os.close(handle)


def _locked(folder: Path) -> int:
    """Make a folder, and lock it until the handle that is returned is closed, or the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fsync(folder.parent)
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalError(f"the journal {folder} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise JournalError(
            f"the journal {folder} is in use: another server trains this run. Stop that one first, or train "
            "into another folder"
        ) from error
    except OSError as error:
        os.close(handle)
        raise JournalError(f"the journal {folder} cannot be locked: {error.strerror}") from error
    return handle


def _files_in(folder: Path) -> dict[int, Path]:
    """The files of a journal, by their batches."""
    named = ((_FILE.fullmatch(file.name), file) for file in folder.iterdir())
    return dict(sorted((int(match[1]), file) for match, file in named if match))


def _delete(file: Path) -> None:
    try:
        file.unlink()
    except OSError as error:
        raise JournalError(f"{file} cannot be deleted: {error.strerror}") from error


def _mend(file: Path) -> int:
    """Check a file, and cut off a line that had never been finished; return how many that were, 0 or 1."""
    good = 0
    try:
        with file.open("r+b") as stream:
            for number, line in enumerate(stream, 1):
                if is_whole(line):
                    good += len(line)
                elif is_torn(line):
                    stream.truncate(good)
                    os.fsync(stream.fileno())
                    return 1
                else:
                    raise _damage(file, number, "the line is not as it was written")
    except OSError as error:
        raise JournalError(f"{file} cannot be read: {error.strerror}") from error
    return 0


def _write_fault(file: Path, error: Exception) -> Exception:
    if not isinstance(error, OSError):
        return error
    return JournalError(
        f"{file} cannot be written: {error.strerror}. What was accepted before is safe, and what could not "
        "be written can be sent again"
    )


def _damage(file: Path, number: int, why: str) -> JournalError:
    return JournalError(
        f"{file}, line {number}: {why}. Restore the file from a copy, or delete it: what it holds is then "
        "played again"
    )
