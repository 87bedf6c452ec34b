import math
import multiprocessing
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from art_gym.wrappers.judging import JudgingError
from art_gym.wrappers.judging.cache import CachedAnswer, JudgeCache

ANSWER = CachedAnswer("answered", '{"scores": []} \x00 é 0.123')


def write(path: Path, base: int) -> None:
    cache = JudgeCache(path)
    for number in range(20):
        cache.put(str(base + number), CachedAnswer("answered", str(base)))


def test_the_first_answer_stays_and_outlives_the_object(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cache.db"
    cache = JudgeCache(path)
    assert cache.get("k") is None
    assert cache.put("k", ANSWER) == ANSWER
    assert cache.put("k", CachedAnswer("answered", "other")) == ANSWER
    assert JudgeCache(path).get("k") == ANSWER


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
    assert all(cache.get(str(key)) for key in range(60))


def test_another_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    database = tmp_path / "database"
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE mine (x)")
        db.commit()
    contents = [database.read_bytes(), b"these are notes" * 500, b"SQLite format 3\x00" + b"\xff" * 8_000]
    for number, content in enumerate(contents):
        path = tmp_path / f"notes {number}"
        path.write_bytes(content)
        with pytest.raises(JudgingError, match=path.name):
            JudgeCache(path)
        assert path.read_bytes() == content
    with pytest.raises(JudgingError, match="cannot be used"):
        JudgeCache(tmp_path)


def test_damage_is_noticed_down_to_one_digit(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    cache = JudgeCache(path)
    cache.put("k", ANSWER)
    content = path.read_bytes()
    assert content.count(b"0.123") == 1
    for damaged in (content.replace(b"0.123", b"0.923"), b"\x00" * 4_096):
        path.write_bytes(damaged)
        with pytest.raises(JudgingError, match=r"cache\.db"):
            cache.get("k")
