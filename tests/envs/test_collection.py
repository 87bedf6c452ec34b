from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from art_gym.envs.mail.collection import open_collection, read_questions, world_path


def test_the_world_is_made_once_and_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_GYM_CACHE", str(tmp_path))
    path = world_path(3)
    made = path.stat().st_mtime_ns
    assert path.parent == tmp_path
    assert world_path(3) == path
    assert path.stat().st_mtime_ns == made
    first = open_collection(None, None, world_seed=3, difficulty=None)
    second = open_collection(None, None, world_seed=3, difficulty=None)
    assert first[0] is second[0]
    assert first[1] is second[1]


def test_a_world_is_the_same_wherever_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, _ = open_collection(None, None, world_seed=0, difficulty=None)
    monkeypatch.setenv("ART_GYM_CACHE", str(tmp_path))
    again, _ = open_collection(None, None, world_seed=0, difficulty=None)
    assert again.path != usual.path
    assert again.meta["questions"] == usual.meta["questions"]
    assert [again.message(row) for row in (1, 2000, 5000)] == [usual.message(row) for row in (1, 2000, 5000)]


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("ART_GYM_CACHE", str(blocked / "below"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    path = world_path(4)
    assert path.parent == tmp_path / "tmp" / "art-gym"
    assert path.exists()


def test_questions_come_back_from_a_file(tmp_path: Path) -> None:
    store, tasks = open_collection(None, None, world_seed=0, difficulty=None)
    items = json.loads(store.meta["questions"])[:20]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps(item) for item in items) + "\n\n")
    again = json.dumps([question.to_json() for question in read_questions(path)])
    assert json.loads(again) == items
    _, chosen = open_collection(None, path, world_seed=0, difficulty=None)
    assert [task.id for task in chosen] == [item["id"] for item in items]
    assert pickle.loads(pickle.dumps(list(chosen))) == list(chosen)
    assert len(tasks) > len(chosen)


@pytest.mark.parametrize("line", ["{", "[]", '{"id": 3}', '"text"'])
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n" + line)
    with pytest.raises(ValueError, match=r"questions\.jsonl, line 2: not a question"):
        read_questions(path)
