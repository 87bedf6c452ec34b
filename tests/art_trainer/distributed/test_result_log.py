"""The result log: exact, durable, exclusive; what a full disk, damage and kill -9 do to it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from art_trainer.distributed.result_log import FILE, Entry, ResultLog, ResultLogError, discard, require_unused
from art_trainer.types import Ending, Episode, Span, TokenHistory, Turn
from tests.art_trainer.distributed.played import episode, task
from tests.art_trainer.distributed.server_helpers import described
from tests.art_trainer.guess import guess_policy
from tests.art_trainer.tracking.full_disk import full_disk
from tests.art_trainer.waiting import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def log(folder: Path) -> Iterator[ResultLog]:
    opened = ResultLog(folder)
    yield opened
    opened.close()


def entry(member: int = 0, *, batch: int = 0, retry: int = 0, reply: str = "left") -> Entry:
    of = task(batch=batch, size=8)
    return Entry(of, member, retry, episode(of, reply))


ODD = Episode(
    "env", "t", 2**52, "\ud800 é", (Turn("\u2028\0", "", -0.0, call={"x": [1.5, None]}),),
    (TokenHistory((Span((0, 2**31), 0, (-0.125, -7.25), 3),)),), Ending.ENV_ERROR, error="\udfff",
    metrics={"m": 1e300}, facts={"deep": [{"a": None}]},
)  # fmt: skip


def test_entries_come_back_exactly_by_batch_and_round(folder: Path, log: ResultLog) -> None:
    assert log.empty
    odd = Entry(dataclasses.replace(task(1), options=None), 0, 0, ODD)
    entries = [
        entry(0, batch=1),
        odd,
        entry(1, reply="first"),
        entry(1, retry=1, reply="again"),
        entry(batch=2),
    ]
    log.append(entries)
    log.append([entry(2)])
    assert list(log.replay(0)) == [odd, entries[2], entry(2), entries[3]]
    assert [found.task.batch for found in log.replay()] == [0, 0, 0, 0, 1, 2]
    log.close()
    with closing(ResultLog(folder)) as again:
        assert list(again.replay(2)) == [entries[4]]
        again.discard_before(2)
        assert [found.task.batch for found in again.replay()] == [2]


def test_an_entry_that_is_written_again_counts_once(log: ResultLog) -> None:
    log.append([entry(reply="written, but the commit failed late")])
    log.append([entry(reply="sent again")])
    assert list(log.replay()) == [entry(reply="sent again")]


def test_an_entry_that_json_cannot_hold_harms_nobody_else(log: ResultLog) -> None:
    bad = dataclasses.replace(entry(), episode=dataclasses.replace(ODD, facts={"x": object()}))
    with pytest.raises(TypeError):
        log.append([entry(), bad])
    log.append([entry(1)])
    assert list(log.replay()) == [entry(1)]


def test_appends_of_one_moment_share_a_commit(log: ResultLog, monkeypatch: pytest.MonkeyPatch) -> None:
    write, sizes, first = log._write, list[int](), threading.Event()

    def slow(statements: Any) -> None:
        sizes.append(len(statements[0][1]))
        if len(sizes) == 1:
            assert first.wait(300)
        write(statements)

    monkeypatch.setattr(log, "_write", slow)
    with ThreadPoolExecutor(8) as threads:
        started = [threads.submit(log.append, [entry()])]
        until(lambda: sizes != [])
        started += [threads.submit(log.append, [entry(member)]) for member in range(1, 8)]
        until(lambda: len(log._waiting) == 7)
        first.set()
    assert [one.result() for one in started] == [None] * 8
    assert sizes == [1, 7]


def test_a_full_disk_loses_nothing_and_can_be_tried_again(folder: Path, log: ResultLog) -> None:
    log.append([entry(0)])
    with full_disk((folder / f"{FILE}-wal").stat().st_size + 5000):
        for _ in range(3):
            with pytest.raises(ResultLogError, match=r"cannot be written.*can be sent again"):
                log.append([entry(1, reply="x" * 100_000)])
        log.discard_before(-1)  # logged at most
    log.append([entry(1)])
    assert list(log.replay()) == [entry(0), entry(1)]


def test_damage_is_an_error_that_names_the_file(folder: Path, log: ResultLog) -> None:
    log.append([entry(member, reply="a" * 2000) for member in range(8)])
    log._db.execute("UPDATE results SET entry = replace(entry, 'aaaa', 'aaab') WHERE member = 3")
    log._db.commit()
    with pytest.raises(ResultLogError, match=rf"{FILE} is damaged in row 4\. Restore the file"):
        list(log.replay())
    log._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    log.close()
    data = bytearray((folder / FILE).read_bytes())
    data[4096:8192] = os.urandom(4096)
    (folder / FILE).write_bytes(bytes(data))
    with pytest.raises(ResultLogError, match=f"{FILE} is damaged"):
        ResultLog(folder)


@pytest.mark.parametrize("truncated", [False, True])
def test_damaged_files_are_refused_and_can_be_discarded(folder: Path, truncated: bool) -> None:
    with closing(ResultLog(folder)) as log:
        log.append([entry(member) for member in range(8)])
    content = (folder / FILE).read_bytes()[:-5000] if truncated else b"no database" * 1000
    (folder / FILE).write_bytes(content)
    require_unused(folder)
    with pytest.raises(ResultLogError, match=r"is damaged.*delete"):
        ResultLog(folder)
    discard(folder)
    ResultLog(folder).close()


def test_a_newer_version_and_an_impossible_folder_are_refused(folder: Path, log: ResultLog) -> None:
    log._db.execute("PRAGMA user_version = 2")
    log.close()
    with pytest.raises(ResultLogError, match="has version 2, this program reads 1"):
        ResultLog(folder)
    with pytest.raises(ResultLogError, match="cannot be opened"):
        ResultLog(folder / FILE / "journal")


def test_a_folder_is_open_once_and_a_closed_log_takes_nothing(folder: Path, log: ResultLog) -> None:
    log.append([entry()])
    for use in (ResultLog, require_unused, discard):
        with pytest.raises(ResultLogError, match="is in use: another server trains this run"):
            use(folder)
    code = "import pathlib, sys; from art_trainer.distributed.result_log import ResultLog as Log; "
    command = [sys.executable, "-c", code + "Log(pathlib.Path(sys.argv[1]))", str(folder)]
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is in use" in other.stderr
    log.close()
    for write in (lambda: log.append([entry(1)]), lambda: log.discard_before(1)):
        with pytest.raises(ResultLogError, match="closed"):
            write()
    for place in (folder, folder.parent / "none"):
        require_unused(place)
        discard(place)
    with closing(ResultLog(folder)) as again:
        assert again.empty


_WRITER = """
import itertools, sys
from pathlib import Path
from art_trainer.distributed.result_log import ResultLog
from tests.art_trainer.distributed.test_result_log import entry
log = ResultLog(Path(sys.argv[1]))
for number in itertools.count():
    log.append([entry(number)])
    print(number, flush=True)
"""


@pytest.mark.e2e
def test_kill_9_keeps_what_was_acknowledged(folder: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(folder)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if line == "20\n":
                writer.send_signal(signal.SIGKILL)
        acknowledged = int(line)
    shutil.copytree(folder, tmp_path / "torn")
    with closing(ResultLog(folder)) as found:
        members = [one.member for one in found.replay()]
    assert members[: acknowledged + 1] == list(range(acknowledged + 1))
    wal = tmp_path / "torn" / f"{FILE}-wal"
    data = wal.read_bytes()  # the kill may have torn its end too
    wal.write_bytes(data[: len(data) // 2 + 1000])
    with closing(ResultLog(tmp_path / "torn")) as torn:
        left = [one.member for one in torn.replay()]
    assert 0 < len(left) < len(members)
    assert left == members[: len(left)]


def test_a_log_belongs_to_one_run(log: ResultLog) -> None:
    run = described(guess_policy(hidden=16))
    log.bind_to_run(run.model_copy(update={"env": "other/Env-v0"}))
    log.bind_to_run(run)
    log.append([entry()])
    log.bind_to_run(run)
    hot = dataclasses.replace(run.sampling, temperature=0.5)
    for changes, name in (({"env": "x"}, "env"), ({"sampling": hot}, r"sampling\.temperature")):
        with pytest.raises(ResultLogError, match=rf"results of another run: there {name} is"):
            log.bind_to_run(run.model_copy(update=changes))
