"""Files that are read while a run writes them: metrics and warnings, episodes, and the texts of tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from art_trainer.serving.dashboard import episode_index
from art_trainer.serving.dashboard.episode_index import EpisodeIndex, EpisodeQuery
from art_trainer.serving.dashboard.episode_view import align_pieces, token_texts
from art_trainer.serving.dashboard.tail_reader import MetricTable, TailReader
from art_trainer.tracking.frame_file import read_frames
from tests.art_trainer.serving.dashboard.run_folders import (
    REPLY,
    TOKENIZER,
    DashRun,
    group,
    many_episodes,
    tokens_of,
)

EPISODES = "episodes.jsonl.zst"


def append(file: Path, *records: object) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)


def test_lines_are_read_once_and_only_when_whole(tmp_path):
    file = tmp_path / "lines.jsonl"
    lines = TailReader(file)
    assert lines.read() == []
    append(file, {"a": 1})
    assert lines.read() == [{"a": 1}]
    with file.open("a") as stream:
        stream.write('{"a": ')
    assert lines.read() == []
    with file.open("a") as stream:
        stream.write('2}\nnot json\n[3]\n{"a": 4}\n')
    assert lines.read() == [{"a": 2}, {"a": 4}]


def test_metrics_come_in_columns_with_gaps(tmp_path):
    file = tmp_path / "metrics.jsonl"
    append(file, {"step": 1, "loss": 0.123456789}, {"step": 2, "eval": 3, "loss": math.nan, "note": "x"})
    table = MetricTable(file)
    table.update()
    found = table.after(None)
    assert found["columns"] == {"step": [1, 2], "loss": [0.123457, None], "eval": [None, 3]}
    assert (found["reset"], found["rows"]) == (True, 2)
    assert table.latest("loss") == [0.123456789]
    append(file, {"step": 3, "loss": 1.0})
    table.update()
    later = table.after(found["cursor"])
    assert (later["columns"], later["reset"]) == ({"step": [3], "loss": [1.0], "eval": [None]}, False)
    assert table.after(later["cursor"])["rows"] == 0
    assert table.after("another-1")["reset"]


@pytest.mark.parametrize("more", [0, 5], ids=["shorter", "longer"])
def test_metrics_of_a_resumed_run_begin_anew(tmp_path, more):
    run = DashRun(tmp_path)
    for step in (1, 2, 3):
        run.step(step)
    table = MetricTable(tmp_path / "metrics.jsonl")
    table.update()
    cursor = table.after(None)["cursor"]
    run.log.begin({"max_steps": 10}, 2)
    for step in range(more):
        run.step(3 + step, reward=7.0)
    table.update()
    again = table.after(cursor)
    assert again["reset"]
    assert again["columns"]["reward"] == [0.1, 0.2, *[7.0] * more]
    (tmp_path / "metrics.jsonl").unlink()
    table.update()
    assert table.after(again["cursor"])["reset"]


def whole(index: EpisodeIndex, **query: Any) -> dict[str, Any]:
    """Ask until all is read and searched."""
    for _ in range(1000):
        page = index.page(EpisodeQuery(**query))
        if page["complete"]:
            return page
    raise AssertionError("it never ends")


def test_episodes_are_found_by_every_filter(tmp_path):
    run = DashRun(tmp_path)
    run.step(1, [group(1, (1.0, 0.0)), group(2, (0.75, 0.25), words="A Walrus, straße")])
    run.step(2, [group(3, (1.0, -1.0))])
    run.step(3, [group(4, (float("nan"),), words="not a number")])
    index = EpisodeIndex(tmp_path)
    rows = whole(index, step_max=2)["rows"]
    assert [(row["step"], row["place"]) for row in rows] == [(2, 0), (2, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert rows[0] == {
        "step": 2, "place": 0, "group": 0, "turns": 2, "tokens": len(tokens_of(REPLY)) + 2, "invalid": 0,
        "replaced": False, "task": "task-3", "reward": 1.0, "success": True, "ending": "terminated",
        "preview": "select(m3)",
    }  # fmt: skip

    def rewards(**query: Any) -> list[float | None]:
        return [row["reward"] for row in whole(index, **query)["rows"]]

    assert rewards(sort="reward") == [1.0, 1.0, 0.75, 0.25, 0.0, -1.0, None]
    assert rewards(sort="reward", descending=False, limit=2, offset=1) == [0.0, 0.25]
    assert rewards(task="TASK-2") == [0.75, 0.25]
    assert rewards(outcome="failure", step_max=1) == [0.0, 0.25]
    assert rewards(reward_min=0.25, reward_max=0.75) == [0.75, 0.25]
    assert rewards(text="walrus") == rewards(text="STRAßE") == [0.75, 0.25]
    assert rewards(text="tokens") == rewards(text="histories") == [], "only words are searched"
    assert rewards(text="select(M3)") == [1.0, -1.0]
    assert (
        rewards(sort="task", descending=False)[:2] == rewards(sort="outcome", step_max=1)[::2] == [1.0, 0.0]
    )


def test_new_episodes_appear_and_those_cut_off_go(tmp_path):
    run = DashRun(tmp_path)
    for step in (1, 2, 3):
        run.step(step)
    index = EpisodeIndex(tmp_path)
    assert whole(index, text="tea")["matches"] == 12
    run.log.begin({"max_steps": 10}, 1)
    assert whole(index, text="tea")["matches"] == 4
    # Between two looks a resumed run may cut steps off and write longer ones in their place.
    run.step(2, [group(9, (0.5, 0.5), words="new")])
    assert [(row["step"], row["task"]) for row in whole(index, text="new")["rows"]] == [(2, "task-9")] * 2
    run.log.begin({"max_steps": 10}, 1)
    run.step(2, [group(k, (0.5,) * 4, words="longer " * k) for k in range(6)])
    page = whole(index, step_min=2)
    assert (page["matches"], page["recorded"], page["fault"]) == (24, 28, None)
    assert index.frame(2) == list(read_frames(tmp_path / EPISODES))[-1]
    (tmp_path / EPISODES).unlink()
    assert (whole(index)["matches"], index.count()) == (0, 0)


def test_a_damaged_step_is_reported_and_the_rest_is_shown(tmp_path):
    run = DashRun(tmp_path)
    for step in (1, 2, 3):
        run.step(step)
    file = tmp_path / EPISODES
    second = next(frame for frame in read_frames(file) if frame.header.get("step") == 2)
    data = bytearray(file.read_bytes())
    data[second.data_offset + 20] ^= 1
    file.write_bytes(data)
    page = whole(EpisodeIndex(tmp_path), text="tea")
    assert {row["step"] for row in page["rows"]} == {1, 3}
    assert (page["known"], page["matches"]) == (12, 8)
    assert "step 2" in page["fault"]
    file.write_bytes(bytes(data[: second.offset]) + b"rubbish" * 20)
    page = whole(EpisodeIndex(tmp_path))
    assert {row["step"] for row in page["rows"]} == {1}
    assert page["fault"]


def test_episodes_of_version_0_are_a_fault(tmp_path):
    DashRun(tmp_path, begin=False)
    old = tmp_path / "episodes" / "step-000001.jsonl"
    old.parent.mkdir()
    old.write_text("{}\n")
    page = whole(EpisodeIndex(tmp_path))
    assert (page["recorded"], "no longer read" in page["fault"]) == (0, True)


def test_the_index_works_in_portions(tmp_path, monkeypatch):
    monkeypatch.setattr(episode_index, "_WORK_SECONDS", 0.0)
    many_episodes(tmp_path, 1600, per_step=400)
    index = EpisodeIndex(tmp_path)
    first = index.page(EpisodeQuery())
    assert (first["known"], first["recorded"], first["complete"]) == (400, 1600, False)
    page = whole(index, limit=1)
    assert (page["known"], page["matches"], page["rows"][0]["step"]) == (1600, 1600, 4)
    parts = [index.page(EpisodeQuery(text="tea", limit=1)) for _ in range(4)]
    assert [part["searched"] for part in parts] == [0.25, 0.5, 0.75, 1.0]
    assert {part["rows"][0]["step"] for part in parts} == {4}, "the newest are searched first"


def test_tokens_that_the_tokenizer_does_not_know_have_no_texts():
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    assert token_texts(tokenizer, (10**6,), "x") is token_texts(tokenizer, (), "") is None


@pytest.mark.parametrize(
    ("pieces", "text", "wanted"),
    [
        (["a", " b", "<end>"], "a b", ["a", " b", "<end>"]),
        (["a", " (", ' "', " b"], 'a("b', ["a", "(", '"', "b"]),
        (["a", "b"], "a  b", ["a", "  b"]),
        (["", "é", "x"], "éx", ["", "é", "x"]),
        (["no", "pe"], "something", ["no", "pe"]),
        (["cut", "off"], "cut", ["cut", "off"]),
    ],
)
def test_pieces_are_aligned_to_the_text(pieces, text, wanted):
    assert align_pieces(pieces, text) == wanted
