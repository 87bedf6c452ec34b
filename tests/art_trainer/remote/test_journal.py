"""A journal keeps what it said it keeps: torn tails, damage, full disks, crowds, and other processes."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest

from art_trainer.episodes import Ending
from art_trainer.remote import journal as journal_module
from art_trainer.remote.journal import Journal, JournalError
from art_trainer.remote.journal_lines import Entry, encode_line, is_torn, is_whole
from tests.art_trainer.remote.played import TIMING, episode, task

KILLED = """
import sys
from pathlib import Path
from art_trainer.remote.journal import Journal
from tests.art_trainer.remote.test_journal import entry

journal = Journal(Path(sys.argv[1]))
for member in range(2):
    journal.append([entry(member)])
    print(member, flush=True)
sys.stdin.read()
"""


def entry(member: int = 0, place: int = 0, batch: int = 0, reply: str = "") -> Entry:
    of = task(place, batch=batch)
    return Entry(of, member, 0, episode(of, reply or f"reply {member}"), TIMING, client="w1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal"


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    opened = Journal(folder)
    yield opened
    opened.close()


def read(folder: Path) -> list[Entry]:
    journal = Journal(folder)
    try:
        return list(journal.replay())
    finally:
        journal.close()


def test_what_is_appended_comes_back_bit_for_bit_batch_by_batch(folder: Path, journal: Journal) -> None:
    strange = episode(task(1), 'lone \ud800, "quoted",\n\u2028 and \0', ending=Ending.ENV_ERROR)
    entries = [
        entry(0, batch=2),
        entry(0),
        Entry(task(1), 1, 4, strange),
        Entry(task(1), 0, 0, None, reason=""),
    ]
    for one in entries:
        journal.append([one])
    journal.append([entry(0, place=5), entry(1, place=5)])
    journal.close()
    assert sorted(file.name for file in folder.glob("*.jsonl")) == [
        "batch-000000.jsonl",
        "batch-000002.jsonl",
    ]
    wanted = [*entries[1:], entry(0, place=5), entry(1, place=5), entries[0]]
    assert read(folder) == wanted
    reopened = Journal(folder)
    assert list(reopened.replay(2)) == [entries[0]]
    assert list(reopened.replay(1)) == []
    reopened.close()


def test_entries_of_several_batches_at_once_or_of_none_are_refused(journal: Journal) -> None:
    with pytest.raises(ValueError, match=r"one batch .* \[0, 1\]"):
        journal.append([entry(), entry(batch=1)])
    with pytest.raises(ValueError, match="one batch"):
        journal.append([])


def test_a_journal_can_be_written_on_after_it_was_opened_again(folder: Path) -> None:
    for member in range(3):
        journal = Journal(folder)
        journal.append([entry(member)])
        journal.close()
    assert [one.member for one in read(folder)] == [0, 1, 2]


def test_forgotten_batches_are_gone_from_the_disk(folder: Path, journal: Journal) -> None:
    for batch in (3, 9, 10, 1_000_000):
        journal.append([entry(batch=batch)])
    (folder / "batch-1.jsonl.txt").write_text("not a file of the journal")
    journal.forget(10)
    assert [one.task.batch for one in journal.replay()] == [10, 1_000_000]
    assert sorted(file.name for file in folder.glob("batch*")) == [
        "batch-000010.jsonl", "batch-1.jsonl.txt", "batch-1000000.jsonl",
    ]  # fmt: skip
    journal.append([entry(batch=9)])
    assert [one.task.batch for one in journal.replay()] == [9, 10, 1_000_000]


def test_a_line_cut_off_at_any_byte_is_dropped_and_counted_and_nothing_else(folder: Path) -> None:
    folder.mkdir(parents=True)
    file = folder / "batch-000000.jsonl"
    before, last = encode_line(entry(0)), encode_line(entry(1))
    assert all(is_torn(last[:length]) for length in range(1, len(last)))
    for length in (*range(1, len(last), 37), len(last) - 1):
        file.write_bytes(before + last[:length])
        journal = Journal(folder)
        assert journal.torn == 1
        assert file.read_bytes() == before
        journal.append([entry(1)])  # and begins a line of its own
        assert [one.member for one in journal.replay()] == [0, 1]
        journal.close()
    file.write_bytes(last[:-1])
    assert read(folder) == []


def test_one_flipped_bit_anywhere_is_an_error_that_names_the_line(folder: Path, journal: Journal) -> None:
    for member in range(3):
        journal.append([entry(member)])
    journal.close()
    file = folder / "batch-000000.jsonl"
    whole = file.read_bytes()
    length = len(whole) // 3
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        line = place // length + 1
        seen = [(number, text) for number, text in enumerate(BytesIO(damaged), 1) if not is_whole(text)]
        assert seen[0][0] == line
        assert not is_torn(seen[0][1])
    for place, line in ((9, 1), (length - 1, 1), (2 * length - 20, 2), (len(whole) - 1, 3)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(JournalError, match=rf"batch-000000.jsonl, line {line}: .* delete it"):
            Journal(folder)
        assert file.read_bytes() == damaged, "it is left for whoever wants to look"
    file.write_bytes(whole)
    assert len(read(folder)) == 3, "and the failed openings hold no lock"


def test_damage_that_comes_while_it_is_open_and_another_format_are_told(
    folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append([entry()])
    file = folder / "batch-000000.jsonl"
    file.write_bytes(file.read_bytes().replace(b"moved", b"mowed"))
    with pytest.raises(JournalError, match="line 1: the line is not as it was written"):
        list(journal.replay())
    monkeypatch.setattr("art_trainer.remote.journal_lines.FORMAT", 2)
    file.write_bytes(encode_line(entry()))
    monkeypatch.undo()
    with pytest.raises(JournalError, match=r"line 1: the line has format 2, .* reads 1"):
        list(journal.replay())


@pytest.mark.parametrize("where", ["write", "half", "fsync", "folder", "truncate"])
def test_a_fault_of_the_disk_leaves_the_journal_as_it_was_and_can_be_tried_again(
    folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where != "folder":
        journal.append([entry(0)])
    before = [entry(0)] if where != "folder" else []
    fail = _BrokenDisk(where)
    monkeypatch.setattr(journal_module, "os", fail)
    monkeypatch.setattr(journal_module, "fsync", fail.fsync_path)
    for _ in range(2):
        with pytest.raises(JournalError, match=r"batch-000000.jsonl cannot be written: .* can be sent again"):
            journal.append([entry(1)])
    monkeypatch.undo()
    assert list(journal.replay()) == before
    journal.append([entry(2)])
    assert list(journal.replay()) == [*before, entry(2)]
    journal.close()
    assert read(folder) == [*before, entry(2)]


class _BrokenDisk:
    """The ``os`` of a machine whose disk fails at one call."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._halves = 0

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def _fail(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write(self, handle: int, data: memoryview) -> int:
        if self._where == "write":
            self._fail()
        if self._where in ("half", "truncate"):
            self._halves += 1
            if self._halves % 2 == 0:
                self._fail()
            return os.write(handle, data[: len(data) // 2])
        return os.write(handle, data)

    def fsync(self, handle: int) -> None:
        if self._where == "fsync":
            self._fail()
        os.fsync(handle)

    def fsync_path(self, path: Path) -> None:
        if self._where == "folder":
            self._fail()

    def ftruncate(self, handle: int, length: int) -> None:
        if self._where == "truncate":
            self._fail()
        os.ftruncate(handle, length)


def test_a_process_killed_after_a_fault_it_could_not_undo_leaves_a_tail_that_is_cut_off(
    folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append([entry(0)])
    monkeypatch.setattr(journal_module, "os", _BrokenDisk("truncate"))
    with pytest.raises(JournalError):
        journal.append([entry(1)])
    monkeypatch.undo()
    journal.close()
    again = Journal(folder)
    assert again.torn == 1
    assert list(again.replay()) == [entry(0)]
    again.close()


def test_a_file_that_must_not_grow_fails_one_result_and_then_takes_it(folder: Path, journal: Journal) -> None:
    journal.append([entry(0)])
    size = (folder / "batch-000000.jsonl").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, hard))
    try:
        with pytest.raises(JournalError, match="File too large"):
            journal.append([entry(1)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (folder / "batch-000000.jsonl").stat().st_size == size
    journal.append([entry(1)])
    assert list(journal.replay()) == [entry(0), entry(1)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)]
    if sys.platform != "linux" or os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_on_a_disk_that_is_full_nothing_is_lost_and_there_is_room_again_after_forgetting(
    small_disk: Path,
) -> None:
    journal = Journal(small_disk / "journal")
    long = "long " * 400
    written = 0

    def fill() -> None:
        nonlocal written
        while True:
            journal.append([entry(written, batch=written // 10, reply=long)])
            written += 1

    with pytest.raises(JournalError, match="No space left on device"):
        fill()
    assert written > 10
    kept = [one.member for one in journal.replay()]
    assert kept == list(range(written))
    journal.forget(1)
    journal.append([entry(written, batch=written // 10, reply=long)])
    journal.close()
    assert [one.member for one in read(small_disk / "journal")] == list(range(10, written + 1))


def test_an_entry_that_json_cannot_hold_harms_nobody_else(journal: Journal) -> None:
    of = task()
    odd = Entry(of, 0, 0, episode(of), client=b"w1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bytes"):
        journal.append([odd])
    journal.append([entry()])
    assert list(journal.replay()) == [entry()]


def test_whoever_appends_at_the_same_moment_shares_one_write(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, begun, go_on = [], threading.Event(), threading.Event()
    write: Callable[[Path, bytes], None] = journal._write

    def slow(file: Path, data: bytes) -> None:
        begun.set()
        assert go_on.wait(60)
        flushed.append((file.name, data.count(b"\n")))
        write(file, data)

    monkeypatch.setattr(journal, "_write", slow)
    with ThreadPoolExecutor(40) as threads:
        first = threads.submit(journal.append, [entry(0)])
        assert begun.wait(60)
        others = [threads.submit(journal.append, [entry(n, batch=n % 2)]) for n in range(1, 33)]
        while journal._coming.qsize() < 32:
            threading.Event().wait(0.001)
        assert not first.done()
        go_on.set()
        for done in (first, *others):
            done.result(60)
    assert flushed[0] == ("batch-000000.jsonl", 1)
    assert sorted(flushed[1:]) == [("batch-000000.jsonl", 16), ("batch-000001.jsonl", 16)]
    assert sorted(one.member for one in journal.replay()) == list(range(33))


def test_a_second_journal_on_a_folder_is_refused_in_this_process_and_in_others(
    folder: Path, journal: Journal
) -> None:
    with pytest.raises(JournalError, match=r"journal is in use: another server trains this run\. Stop that"):
        Journal(folder)
    other = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)], capture_output=True, text=True, input="", timeout=60
    )
    assert other.returncode == 1
    assert "is in use" in other.stderr
    journal.close()
    journal.close()
    Journal(folder).close()


def test_a_killed_process_lets_go_of_the_folder_and_leaves_what_it_had_acknowledged(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert [process.stdout.readline() for _ in range(2)] == ["0\n", "1\n"]
        with pytest.raises(JournalError, match="is in use"):
            Journal(folder)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert [one.member for one in read(folder)] == [0, 1]


def test_a_closed_journal_takes_and_deletes_nothing(folder: Path, journal: Journal) -> None:
    journal.append([entry()])
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.append([entry(1)])
    with pytest.raises(JournalError, match="is closed"):
        journal.forget(5)
    assert read(folder) == [entry()]


def test_closing_waits_for_what_is_being_written(
    folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    write: Callable[[Path, bytes], None] = journal._write

    def slow(file: Path, data: bytes) -> None:
        begun.set()
        assert go_on.wait(60)
        write(file, data)

    monkeypatch.setattr(journal, "_write", slow)
    with ThreadPoolExecutor(2) as threads:
        appending = threads.submit(journal.append, [entry()])
        assert begun.wait(60)
        closing = threads.submit(journal.close)
        with pytest.raises(TimeoutError):
            closing.result(0.02)
        go_on.set()
        appending.result(60)
        closing.result(60)
    assert read(folder) == [entry()]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(JournalError, match=r"run/journal cannot be opened: (Not a directory|File exists)"):
        Journal(tmp_path / "run" / "journal")
