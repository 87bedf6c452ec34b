"""Answers on disk."""

from __future__ import annotations

import math
import multiprocessing
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from art_gym.wrappers.judging import JudgingError
from art_gym.wrappers.judging.judge_cache import CachedAnswer, JudgeCache

ANSWER = CachedAnswer("m", "answered", '{"scores": []} \x00 é', 12, 3)


def write(path: Path, base: int) -> None:
    cache = JudgeCache(path)
    for number in range(20):
        cache.put(str(base + number), CachedAnswer("m", "answered", str(base)))


def test_an_answer_outlives_the_object(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cache.db"
    cache = JudgeCache(path)
    assert cache.get("k") is None
    assert cache.put("k", ANSWER) == ANSWER
    again = JudgeCache(path)
    assert again.get("k") == ANSWER
    assert len(again) == 1
    assert str(path) in repr(again)


def test_the_first_answer_stays(tmp_path: Path) -> None:
    cache = JudgeCache(tmp_path / "cache.db")
    cache.put("k", ANSWER)
    assert cache.put("k", CachedAnswer("m", "answered", "other")) == ANSWER
    assert cache.get("k") == ANSWER


def test_keys_are_of_content() -> None:
    key = JudgeCache.key({"a": 1, "b": [1.5, "é\ud800"]})
    assert key == JudgeCache.key({"b": [1.5, "é\ud800"], "a": 1})
    assert key != JudgeCache.key({"a": 1, "b": [1.5, "e"]})
    for wrong in (object(), math.nan):
        with pytest.raises(JudgingError, match="JSON"):
            JudgeCache.key({"a": wrong})


def test_threads_and_processes_write_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    process = multiprocessing.get_context("spawn").Process(target=write, args=(path, 0))
    process.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda base: write(path, base), [10, 20, 30, 40]))
    process.join(60)
    assert process.exitcode == 0
    cache = JudgeCache(path)
    assert len(cache) == 60
    assert all((found := cache.get(str(key))) and found.model == "m" for key in range(60))


@pytest.mark.parametrize("content", [b"these are notes" * 500, b"SQLite format 3\x00" + b"\xff" * 8_000])
def test_another_file_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(JudgingError, match="not a judge cache, or is damaged"):
        JudgeCache(path)
    assert path.read_bytes() == content


def test_another_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE mine (x)")
        db.commit()
    before = path.read_bytes()
    with pytest.raises(JudgingError, match="database of something else"):
        JudgeCache(path)
    assert path.read_bytes() == before


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    JudgeCache(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
        db.commit()
    with pytest.raises(JudgingError, match="version 99"):
        JudgeCache(path)


def test_a_digit_that_changed_on_disk_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    cache = JudgeCache(path)
    cache.put("k", CachedAnswer("m", "answered", '{"score": 0.123}'))
    content = path.read_bytes()
    assert content.count(b"0.123") == 1
    path.write_bytes(content.replace(b"0.123", b"0.923"))
    with pytest.raises(JudgingError, match="is damaged"):
        cache.get("k")


def test_a_file_damaged_later_is_an_error_in_words(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    cache = JudgeCache(path)
    cache.put("k", ANSWER)
    path.write_bytes(b"\x00" * 4_096)
    for use in (lambda: cache.get("k"), lambda: cache.put("l", ANSWER), lambda: len(cache)):
        with pytest.raises(JudgingError, match=r"judge cache|damaged"):
            use()


def test_a_place_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(JudgingError, match="cannot be used"):
        JudgeCache(tmp_path)
