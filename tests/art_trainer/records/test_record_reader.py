"""A run's records: resumed, of an older version, kept in part, and read without filling the memory."""

import dataclasses
import json
import tracemalloc
from pathlib import Path

import pytest

from art_trainer.episodes import Ending, Episode, Group, Span, TokenHistory, Turn
from art_trainer.errors import RecordError
from art_trainer.records import (
    EpisodeWriter,
    iter_episodes,
    iter_steps,
    read_episodes,
    read_groups,
    read_step,
    recorded_settings,
    recorded_steps,
)
from art_trainer.run_log import RunLog


def made_group(task: int, size: int = 2, tokens: int = 4) -> Group:
    span = Span(tuple(range(tokens)), 0, (-0.5,) * tokens, 3)
    turns = (Turn("reply", "observation", 1.0),)
    return Group(
        tuple(
            Episode(
                "e", f"task-{task}", task, f"start {k}", turns, (TokenHistory((span,)),), Ending.TERMINATED
            )
            for k in range(size)
        )
    )


def written(folder: Path, steps: range, config: dict[str, object] | None = None) -> EpisodeWriter:
    writer = EpisodeWriter(folder)
    writer.begin(config or {"seed": 1}, steps.start - 1)
    for step in steps:
        writer.write_step(step, [made_group(10 * step), made_group(10 * step + 1)], [made_group(99)])
    return writer


def test_steps_are_found_alone_and_in_order(tmp_path: Path) -> None:
    written(tmp_path, range(1, 5))
    assert recorded_steps(tmp_path) == [1, 2, 3, 4]
    assert [record.step for record in iter_steps(tmp_path, range(2, 4))] == [2, 3]
    assert read_groups(tmp_path, 3) == (made_group(30), made_group(31))
    assert [e.task_id for e in read_episodes(tmp_path, 1)] == [
        "task-10", "task-10", "task-11", "task-11", "task-99", "task-99",
    ]  # fmt: skip
    assert [(one.step, one.group, one.replaced) for one in iter_episodes(tmp_path, (2,))] == [
        (2, 0, False), (2, 0, False), (2, 1, False), (2, 1, False), (2, 0, True), (2, 0, True),
    ]  # fmt: skip


def test_a_step_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no recorded episodes of step 1: it has none"):
        read_step(tmp_path, 1)
    written(tmp_path, range(1, 4))
    with pytest.raises(RecordError, match="no recorded episodes of step 9: it has 3 steps from 1 to 3"):
        read_step(tmp_path, 9)
    assert list(iter_episodes(tmp_path / "nowhere")) == []


def test_a_resumed_run_is_byte_for_byte_the_run_that_was_never_stopped(tmp_path: Path) -> None:
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    whole = written(tmp_path / "whole", range(1, 6))
    resumed = written(tmp_path / "resumed", range(1, 5))
    with resumed.file.open("r+b") as stream:
        stream.truncate(resumed.file.stat().st_size - 7)  # killed while it wrote step 4
    assert recorded_steps(tmp_path / "resumed") == [1, 2, 3]
    written(tmp_path / "resumed", range(3, 6))
    assert resumed.file.read_bytes() == whole.file.read_bytes()
    resumed.sync()


def test_a_run_that_begins_anew_forgets_everything(tmp_path: Path) -> None:
    written(tmp_path, range(1, 4))
    written(tmp_path, range(1, 2), {"seed": 2})
    assert recorded_steps(tmp_path) == [1]
    assert [one.config["seed"] for one in recorded_settings(tmp_path)] == [2]


def test_settings_are_noted_where_they_change_and_only_there(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path)
    writer.begin({"lr": 0.1, "output_dir": "a"}, 0, "digest")
    writer.write_step(1, [made_group(1)])
    writer.begin({"lr": 0.1, "output_dir": "b"}, 1)
    writer.write_step(2, [made_group(2)])
    writer.begin({"lr": 0.2, "output_dir": "b"}, 2)
    writer.write_step(3, [made_group(3)])
    found = recorded_settings(tmp_path)
    assert [(one.after, one.config, one.weights) for one in found] == [
        (0, {"lr": 0.1}, "digest"), (2, {"lr": 0.2}, None),
    ]  # fmt: skip
    # Going back to before the change, with the settings of then.
    writer.begin({"lr": 0.1}, 1)
    assert [one.after for one in recorded_settings(tmp_path)] == [0]
    assert recorded_steps(tmp_path) == [1]


def test_episodes_that_a_checkpoint_knows_of_are_not_cut_off_in_silence(tmp_path: Path) -> None:
    writer = written(tmp_path, range(1, 5))
    size = writer.file.stat().st_size
    with writer.file.open("r+b") as stream:
        stream.truncate(size - 3)
    with pytest.raises(RecordError, match="lacks episodes between steps 3 and 4: it breaks off; to go on"):
        writer.begin({"seed": 1}, 4)
    data = bytearray(writer.file.read_bytes())
    data[size // 2 :] = b"?" * (len(data) - size // 2)
    writer.file.write_bytes(bytes(data))
    with pytest.raises(RecordError, match=r"damaged at byte .*; to go on without them, move the file away"):
        writer.begin({"seed": 1}, 4)
    assert writer.file.read_bytes() == bytes(data)
    writer.begin({"seed": 1}, 1)  # what is damaged would be done again anyway
    assert recorded_steps(tmp_path) == [1]


def test_kept_in_part_is_said(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "run")
    log.write_episodes(1, [made_group(1), made_group(2)], 3, [made_group(3)])
    log.write_episodes(2, [made_group(1)], 0)
    log.write_episodes(3, [made_group(1)])
    first, third = iter_steps(tmp_path / "run")
    assert (first.left_out, first.complete, third.left_out, third.complete) == (3, False, 0, True)
    assert [len(group.episodes) for group in first.groups] == [2, 1]
    assert third.step == 3


def test_transcripts_of_the_version_before_are_read_too(tmp_path: Path) -> None:
    def old(step: int, groups: list[Group]) -> None:
        (tmp_path / "episodes").mkdir(exist_ok=True)
        plain = [dataclasses.replace(e, histories=()).to_json() for group in groups for e in group.episodes]
        text = "".join(json.dumps(one) + "\n" for one in plain)
        (tmp_path / "episodes" / f"step-{step:06d}.jsonl").write_text(text)

    for step in (2, 10, 1):
        old(step, [made_group(step), made_group(100 + step)])
    assert recorded_steps(tmp_path) == [1, 2, 10]
    record = read_step(tmp_path, 2)
    assert (record.schema, record.complete, record.left_out) == (0, False, None)
    assert [group.task_id for group in record.groups] == ["task-2", "task-102"]
    assert record.groups[0].episodes[0] == dataclasses.replace(made_group(2).episodes[0], histories=())
    # Gone on with by this version from step 2: step 10 was done again.
    EpisodeWriter(tmp_path).write_step(3, [made_group(3)])
    assert [(record.step, record.schema) for record in iter_steps(tmp_path)] == [(1, 0), (2, 0), (3, 1)]


def test_a_line_that_is_no_episode_is_named(tmp_path: Path) -> None:
    (tmp_path / "episodes").mkdir()
    (tmp_path / "episodes" / "step-000001.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(RecordError, match=r"step-000001.jsonl, line 1: not an episode"):
        list(iter_episodes(tmp_path))


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    def peak(steps: int) -> int:
        folder = tmp_path / str(steps)
        folder.mkdir()
        writer = EpisodeWriter(folder)
        groups = [made_group(task, tokens=200) for task in range(8)]
        for step in range(1, steps + 1):
            writer.write_step(step, groups)
        tracemalloc.start()
        try:
            assert sum(1 for _ in iter_episodes(folder)) == 16 * steps
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(60) < 2 * peak(5)
