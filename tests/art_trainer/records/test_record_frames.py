"""The file: what is cut off, under way or damaged is seen for what it is."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from art_trainer.errors import RecordError
from art_trainer.records import frames
from art_trainer.records.frames import append_frame, walk


def filled(file: Path, count: int = 3) -> list[int]:
    """Write frames; return where each ends."""
    for step in range(1, count + 1):
        append_frame(
            file, {"kind": "step", "step": step}, [f'{{"step": {step}, "line": {k}}}' for k in range(5)]
        )
    return [frame.end for frame in walk(file)]


def steps(file: Path) -> list[int]:
    return [frame.header["step"] for frame in walk(file)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.jsonl.zst"


def test_lines_come_back_in_order(file: Path) -> None:
    ends = filled(file)
    assert steps(file) == [1, 2, 3]
    assert ends[-1] == file.stat().st_size
    for frame in walk(file):
        assert list(frame.lines()) == [
            f'{{"step": {frame.header["step"]}, "line": {k}}}'.encode() for k in range(5)
        ]


def test_no_file_and_an_empty_one_have_no_frames(file: Path) -> None:
    assert steps(file) == []
    file.touch()
    assert steps(file) == []


def test_a_frame_cut_off_at_any_byte_is_as_if_it_had_not_been_begun(file: Path) -> None:
    ends = filled(file)
    whole = file.read_bytes()
    for length in range(ends[1], ends[2]):
        file.write_bytes(whole[:length])
        assert steps(file) == [1, 2], length
    file.write_bytes(whole)
    assert steps(file) == [1, 2, 3]


def test_zeros_where_power_was_lost_are_no_frame(file: Path) -> None:
    filled(file, 2)
    with file.open("ab") as stream:
        stream.write(bytes(500))
    assert steps(file) == [1, 2]


def test_every_changed_bit_of_a_frame_is_noticed(file: Path) -> None:
    ends = filled(file, 2)
    whole = file.read_bytes()
    for place in range(ends[0]):
        data = bytearray(whole)
        data[place] ^= 1
        file.write_bytes(bytes(data))
        with pytest.raises(RecordError, match="damaged"):
            [list(frame.lines()) for frame in walk(file)]


def test_something_else_in_the_file_is_named_with_its_place(file: Path) -> None:
    ends = filled(file, 2)
    with file.open("ab") as stream:
        stream.write(b"no frame at all")
    with pytest.raises(RecordError, match=f"some.jsonl.zst is damaged at byte {ends[1]}"):
        steps(file)


def test_a_newer_version_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "SCHEMA", 2)
    append_frame(file, {"kind": "step", "step": 1}, ["{}"])
    monkeypatch.undo()
    with pytest.raises(RecordError, match=r"newer version \(schema 2; this one reads up to 1\)"):
        steps(file)


def test_a_reader_beside_the_writer_sees_whole_frames_only(file: Path) -> None:
    lines = [f'{{"x": "{k}"}}' for k in range(2000)]
    seen: list[int] = []

    def write() -> None:
        for step in range(40):
            append_frame(file, {"kind": "step", "step": step}, lines)

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        found = list(walk(file))
        seen.append(len(found))
        if found:
            assert len(list(found[-1].lines())) == len(lines)
    writer.join()
    assert seen == sorted(seen)
    assert steps(file) == list(range(40))


def test_a_write_that_comes_in_pieces_is_seen_when_it_is_whole(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(file, 1)
    write, seen = os.write, []

    def in_pieces(handle: int, data: memoryview) -> int:
        seen.append(steps(file))
        return write(handle, data[:100])

    monkeypatch.setattr(os, "write", in_pieces)
    append_frame(file, {"kind": "step", "step": 2}, [f'"{n}"' for n in range(300)])
    assert len(seen) > 3
    assert all(found == [1] for found in seen)
    assert steps(file) == [1, 2]


@pytest.mark.parametrize(
    "fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=["disk", "ctrl-c"]
)
def test_a_full_disk_and_ctrl_c_leave_the_file_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    filled(file, 1)
    before, write = file.read_bytes(), os.write

    def full(handle: int, data: memoryview) -> int:
        if len(data) <= 100:
            raise fault
        return write(handle, data[:50])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(type(fault)):
        append_frame(file, {"kind": "step", "step": 2}, ["{}"])
    assert file.read_bytes() == before


LIMITED = """
import resource, sys
from pathlib import Path
from art_trainer.records.frames import append_frame, walk
file = Path(sys.argv[1])
append_frame(file, {"step": 1}, ["{}"])
resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 50,) * 2)
try:
    append_frame(file, {"step": 2}, ["{}"])
except OSError as error:
    print(error.errno)
print([frame.header["step"] for frame in walk(file)])
"""


def test_a_limit_of_the_operating_system_leaves_the_file_as_it_was(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(file)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[:2] == [str(errno.EFBIG), "[1]"]


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd program")
def test_the_zstd_program_reads_it(file: Path) -> None:
    filled(file, 2)
    done = subprocess.run(["zstd", "-dc", str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[5] == '{"step": 2, "line": 0}'
    assert len(done.stdout.splitlines()) == 10
