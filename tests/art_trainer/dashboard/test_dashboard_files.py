"""Files that are followed while a run writes them: metrics, events, records."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from art_trainer.dashboard import RunsSource
from art_trainer.dashboard.episode_index import EpisodeIndex
from art_trainer.dashboard.episode_query import EpisodePage, EpisodeQuery
from art_trainer.dashboard.growing import GrowingLines
from art_trainer.dashboard.metric_table import PAGE, MetricTable
from art_trainer.dashboard.token_texts import fitted, token_texts
from art_trainer.records.frames import walk
from tests.art_trainer.dashboard.dash_runs import REPLY, DashRun, group, many_episodes, old_step, tokens_of


def append(file: Path, *records: object) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)


def whole(index: EpisodeIndex, query: EpisodeQuery) -> EpisodePage:
    """Ask until all is read and searched."""
    for _ in range(1000):
        page = index.page(query)
        if page.complete:
            return page
    raise AssertionError("it never ends")


def test_lines_are_read_once_and_only_when_whole(tmp_path):
    file = tmp_path / "lines.jsonl"
    lines = GrowingLines(file)
    assert lines.read() == []
    append(file, {"a": 1})
    assert lines.read() == [{"a": 1}]
    with file.open("a") as stream:
        stream.write('{"a": ')
    assert lines.read() == []
    with file.open("a") as stream:
        stream.write('2}\nnot json\n[3]\n{"a": 4}\n')
    assert lines.read() == [{"a": 2}, {"a": 4}]
    assert (lines.generation, lines.broken) == (0, 2)


@pytest.mark.parametrize("longer", [False, True], ids=["shorter", "longer"])
def test_lines_of_a_file_that_is_written_anew_come_again(tmp_path, longer):
    file = tmp_path / "lines.jsonl"
    append(file, {"a": 1}, {"a": 2})
    lines = GrowingLines(file)
    lines.read()
    new = [{"b": k} for k in range(9 if longer else 1)]
    file.write_text("".join(json.dumps(record) + "\n" for record in new))
    assert lines.read() == new
    assert lines.generation == 1
    file.unlink()
    assert lines.read() == []
    assert lines.generation == 2


def test_metrics_come_in_columns_with_gaps(tmp_path):
    file = tmp_path / "metrics.jsonl"
    append(
        file, {"step": 1, "loss": 0.123456789}, {"step": 2, "eval_reward": 3, "loss": math.nan, "note": "x"}
    )
    table = MetricTable(file)
    table.update()
    found = table.after(None)
    assert found.columns == {"step": [1, 2], "loss": [0.123457, None], "eval_reward": [None, 3]}
    assert (found.reset, found.more, found.rows) == (True, False, 2)
    assert table.last("loss") == 0.123456789
    append(file, {"step": 3, "loss": 1.0})
    table.update()
    later = table.after(found.cursor)
    assert (later.columns, later.reset) == ({"step": [3], "loss": [1.0], "eval_reward": [None]}, False)
    assert table.after(later.cursor).rows == 0
    assert table.after("another-1").reset


def test_metrics_of_a_run_gone_on_with_begin_anew(tmp_path):
    run = DashRun(tmp_path)
    for step in (1, 2, 3):
        run.step(step)
    table = MetricTable(tmp_path / "metrics.jsonl")
    table.update()
    cursor = table.after(None).cursor
    run.log.begin({"max_steps": 10}, 2)
    run.step(3, reward=7.0)
    table.update()
    again = table.after(cursor)
    assert again.reset
    assert again.columns["reward"] == [0.1, 0.2, 7.0]


def test_a_long_run_is_thinned_evenly(tmp_path):
    file = tmp_path / "metrics.jsonl"
    append(file, *({"step": k} for k in range(1, 101)))
    table = MetricTable(file, max_rows=16)
    table.update()
    steps = table.after(None).columns["step"]
    assert 8 <= len(steps) <= 16
    assert len({after - before for before, after in itertools.pairwise(steps)}) == 1
    assert table.last("step") == 100


def test_metrics_come_in_pages(tmp_path):
    file = tmp_path / "metrics.jsonl"
    append(file, *({"step": k} for k in range(PAGE + 5)))
    table = MetricTable(file)
    table.update()
    first = table.after(None)
    assert (first.rows, first.more) == (PAGE, True)
    assert table.after(first.cursor).columns["step"] == [PAGE + k for k in range(5)]


def test_episodes_are_found_by_every_filter(tmp_path):
    run = DashRun(tmp_path)
    run.step(1, [group(1, (1.0, 0.0)), group(2, (0.75, 0.25), words="A Walrus, straße")])
    run.step(2, [group(3, (1.0, -1.0))])
    index = EpisodeIndex(tmp_path)
    rows = whole(index, EpisodeQuery()).rows
    assert [(row["step"], row["place"]) for row in rows] == [(2, 0), (2, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert rows[0] == {
        "step": 2, "place": 0, "group": 0, "turns": 2, "tokens": len(tokens_of(REPLY)) + 2, "invalid": 0,
        "replaced": False, "task": "task-3", "reward": 1.0, "success": True, "ending": "terminated",
        "preview": "select(m3)",
    }  # fmt: skip

    def rewards(**query: object) -> list[float]:
        return [row["reward"] for row in whole(index, EpisodeQuery(**query)).rows]

    assert rewards(sort="reward") == [1.0, 1.0, 0.75, 0.25, 0.0, -1.0]
    assert rewards(sort="reward", descending=False, limit=2, offset=1) == [0.0, 0.25]
    assert rewards(task="TASK-2") == [0.75, 0.25]
    assert rewards(outcome="failure", step_max=1) == [0.0, 0.25]
    assert rewards(reward_min=0.25, reward_max=0.75) == [0.75, 0.25]
    assert rewards(text="walrus") == rewards(text="STRAßE") == [0.75, 0.25]
    assert rewards(text="tokens") == rewards(text="histories") == [], "only words are searched"
    assert rewards(text="select(M3)") == [1.0, -1.0]
    assert rewards(sort="task", descending=False)[:2] == [1.0, 0.0]


def test_new_episodes_appear_and_those_cut_off_go(tmp_path):
    run = DashRun(tmp_path)
    for step in (1, 2, 3):
        run.step(step)
    index = EpisodeIndex(tmp_path)
    assert whole(index, EpisodeQuery(text="tea")).matches == 12
    run.log.begin({"max_steps": 10}, 1)
    assert whole(index, EpisodeQuery(text="tea")).matches == 4
    run.step(2, [group(9, (0.5, 0.5), words="new")])
    page = whole(index, EpisodeQuery(text="new"))
    assert [(row["step"], row["task"]) for row in page.rows] == [(2, "task-9")] * 2
    assert (index.count(), page.fault) == (6, None)
    (tmp_path / "episodes.jsonl.zst").unlink()
    assert (whole(index, EpisodeQuery()).matches, index.count()) == (0, 0)


def test_a_step_that_was_written_again_elsewhere_in_the_file_is_noticed(tmp_path):
    """Between two looks a resumed run may cut steps off and write longer ones in their place."""
    run = DashRun(tmp_path)
    for step in (1, 2):
        run.step(step)
    index = EpisodeIndex(tmp_path)
    whole(index, EpisodeQuery())
    run.log.begin({"max_steps": 10}, 1)
    run.step(2, [group(k, (0.5,) * 4, words="longer " * k) for k in range(6)])
    assert whole(index, EpisodeQuery(step_min=2)).matches == 24
    assert index.frame(2) == list(walk(tmp_path / "episodes.jsonl.zst"))[-1]


def test_damage_is_told_and_the_rest_is_shown(tmp_path):
    run = DashRun(tmp_path)
    for step in (1, 2, 3):
        run.step(step)
    file = tmp_path / "episodes.jsonl.zst"
    second = next(frame for frame in walk(file) if frame.header.get("step") == 2)
    data = bytearray(file.read_bytes())
    data[second.data_offset + 20] ^= 1
    file.write_bytes(data)
    page = whole(EpisodeIndex(tmp_path), EpisodeQuery())
    assert {row["step"] for row in page.rows} == {1, 3}
    assert page.left_out == 4
    assert "step 2" in page.fault
    assert "damaged" in page.fault
    file.write_bytes(bytes(data[: second.offset]) + b"rubbish" * 20)
    page = whole(EpisodeIndex(tmp_path), EpisodeQuery())
    assert {row["step"] for row in page.rows} == {1}
    assert "no frame begins there" in page.fault


def test_records_of_the_version_before_are_shown_until_they_are_done_again(tmp_path):
    DashRun(tmp_path)
    for step in (2, 10, 1):
        old_step(tmp_path, step, [group(step, (0.25, 1.0)), group(50, (1.5, 0.5))], shuffled=True)
    index = EpisodeIndex(tmp_path)
    page = whole(index, EpisodeQuery())
    assert [row["step"] for row in page.rows] == [10] * 4 + [2] * 4 + [1] * 4
    assert [(row["group"], row["task"], row["reward"]) for row in page.rows[:4]] == [
        (0, "task-10", 0.25), (0, "task-10", 1.0), (1, "task-50", 1.5), (1, "task-50", 0.5),
    ]  # fmt: skip
    assert {row["tokens"] for row in page.rows} == {0}
    assert whole(index, EpisodeQuery(text="TEA", task="task-2")).matches == 2
    source = RunsSource([tmp_path])
    shown = source.episode(0, 2, 3)
    assert [attempt["reward"] for attempt in shown["attempts"]] == [1.5, 0.5]
    assert (shown["task_id"], shown["turns"][0]["logprobs"], shown["turns"][0]["texts"]) == (
        "task-50",
        [],
        None,
    )
    # Gone on with by this version after step 2: step 10 is done again.
    DashRun(tmp_path, begin=False).step(3)
    page = whole(index, EpisodeQuery())
    assert [row["step"] for row in page.rows] == [3] * 4 + [2] * 4 + [1] * 4
    assert (page.recorded, page.rows[0]["tokens"] > 0) == (12, True)


def test_damage_in_records_of_the_version_before_is_told(tmp_path):
    old_step(tmp_path, 1, [group(1, (1.0,))])
    old_step(tmp_path, 2, [group(2, (1.0,))]).write_text('{"a": 1}\n')
    gone = old_step(tmp_path, 3, [group(3, (1.0,))])
    index = EpisodeIndex(tmp_path)
    assert index.count() == 3
    gone.unlink()
    page = whole(index, EpisodeQuery())
    assert [row["step"] for row in page.rows] == [1]
    assert "step-000002.jsonl, line 1: not an episode" in str(page.fault)


def test_the_index_works_in_portions_and_forgets_the_oldest_steps(tmp_path):
    many_episodes(tmp_path, 4000, per_step=400)
    index = EpisodeIndex(tmp_path, max_episodes=1000, work_seconds=0.0)
    first = index.page(EpisodeQuery())
    assert (first.known, first.recorded, first.complete) == (400, 4000, False)
    page = whole(index, EpisodeQuery(limit=1))
    assert (page.known, page.left_out, page.matches) == (800, 3200, 800)
    assert page.rows[0]["step"] == 10
    parts = [index.page(EpisodeQuery(text="tea", limit=1)).searched for _ in range(2)]
    assert parts == [0.5, 1.0]


def test_token_texts_are_those_of_the_reply(tmp_path):
    run = DashRun(tmp_path)
    replies = [(tokens_of(REPLY), REPLY), ((), ""), ((10**6,), "x")]
    assert token_texts(tmp_path, replies) == [None, None, None], "there is no tokenizer"
    run.save_tokenizer()
    texts = token_texts(tmp_path, replies)
    assert "".join(texts[0]) == REPLY
    assert len(texts[0]) == len(tokens_of(REPLY))
    assert texts[1:] == [None, None]


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
def test_pieces_are_fitted_to_the_text(pieces, text, wanted):
    assert fitted(pieces, text) == wanted
