"""The frame file: what is cut off, being written or damaged is recognised."""

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from art_trainer.errors import RecordError
from art_trainer.tracking import frame_file
from art_trainer.tracking.frame_file import append_frame, read_frames
from tests.art_trainer.tracking.full_disk import full_disk


def fill(file: Path, count: int = 3) -> list[int]:
    """Write frames of five lines; return where each ends."""
    for step in range(1, count + 1):
        append_frame(file, {"kind": "step", "step": step}, [f'{{"line": {step}{k}}}' for k in range(5)])
    return [frame.end for frame in read_frames(file)]


def steps(file: Path) -> list[int]:
    return [frame.header["step"] for frame in read_frames(file)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.jsonl.zst"


def test_lines_are_read_in_order(file: Path) -> None:
    assert steps(file) == []
    ends = fill(file)
    assert (steps(file), ends[-1]) == ([1, 2, 3], file.stat().st_size)
    first, second, _ = read_frames(file)
    assert list(second.lines()) == [f'{{"line": 2{k}}}'.encode() for k in range(5)]
    assert next(read_frames(file, first.end)) == second


def test_a_frame_cut_off_at_any_byte_is_ignored(file: Path) -> None:
    ends = fill(file)
    whole = file.read_bytes()
    for length in range(ends[1], ends[2]):
        file.write_bytes(whole[:length])
        assert steps(file) == [1, 2], length
    file.write_bytes(whole[: ends[1]] + bytes(500))  # after a power cut
    assert steps(file) == [1, 2]


def test_every_changed_bit_is_noticed(file: Path) -> None:
    ends = fill(file, 4)
    whole = file.read_bytes()
    for place in range(ends[0]):
        data = bytearray(whole)
        data[place] ^= 1
        file.write_bytes(bytes(data))
        with pytest.raises(RecordError, match="damaged"):
            [list(frame.lines()) for frame in read_frames(file)]
    file.write_bytes(whole + b"no frame at all")
    with pytest.raises(RecordError, match=f"some.jsonl.zst is damaged at byte {ends[-1]}"):
        steps(file)


def test_a_newer_version_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_file, "SCHEMA", 2)
    fill(file, 1)
    monkeypatch.undo()
    with pytest.raises(RecordError, match="has schema 2"):
        steps(file)


def test_a_reader_beside_the_writer_sees_whole_frames_only(file: Path) -> None:
    lines = [f'{{"x": "{k}"}}' for k in range(2000)]

    def write() -> None:
        for step in range(40):
            append_frame(file, {"kind": "step", "step": step}, lines)

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while writer.is_alive():
        found = list(read_frames(file))
        seen.append(len(found))
        if found:
            assert len(list(found[-1].lines())) == len(lines)
    writer.join()
    assert seen == sorted(seen)
    assert steps(file) == list(range(40))


def test_a_full_disk_leaves_the_file_as_it_was(file: Path) -> None:
    (end,) = fill(file, 1)
    with full_disk(end + 50), pytest.raises(OSError, match=f"too large: '{file}'"):
        append_frame(file, {"kind": "step", "step": 2}, ["{}"])
    assert (steps(file), file.stat().st_size) == ([1], end)


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd program: apt-get install zstd")
def test_the_zstd_program_reads_it(file: Path) -> None:
    fill(file, 2)
    done = subprocess.run(["zstd", "-dc", str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[5] == '{"line": 20}'
    assert len(done.stdout.splitlines()) == 10
