"""A run's folder and its recorded episodes: resumed, damaged, kept in part, read in little memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from art_trainer.errors import RecordError
from art_trainer.tracking.episode_store import (
    FILE,
    append_episodes,
    begin_episodes,
    iter_episodes,
    iter_steps,
    recorded_settings,
)
from art_trainer.tracking.frame_file import append_frame
from art_trainer.tracking.health import RunWarning
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.types import Ending, Episode, Group, Span, TokenHistory, Turn


def made_group(task: int, size: int = 2, tokens: int = 4) -> Group:
    span = Span(tuple(range(tokens)), 0, (-0.5,) * tokens, 3)
    turns, histories = (Turn("reply", "observation", 1.0),), (TokenHistory((span,)),)
    return Group(
        tuple(
            Episode("e", f"task-{task}", task, f"start {k}", turns, histories, Ending.TERMINATED)
            for k in range(size)
        )
    )


def written(folder: Path, steps: range) -> Path:
    folder.mkdir(exist_ok=True)
    begin_episodes(folder, {"seed": 1}, steps.start - 1)
    for step in steps:
        append_episodes(folder, step, [made_group(10 * step), made_group(10 * step + 1)], [made_group(99)])
    return folder / FILE


def recorded_steps(run: Path) -> list[int]:
    return [record.step for record in iter_steps(run)]


def test_steps_are_found_alone_and_in_order(tmp_path: Path) -> None:
    written(tmp_path, range(1, 5))
    assert recorded_steps(tmp_path) == [1, 2, 3, 4]
    second, third = iter_steps(tmp_path, range(2, 4))
    assert (second.step, third.step) == (2, 3)
    assert third.groups == (made_group(30), made_group(31))
    assert third.replaced == (made_group(99),)
    assert list(iter_steps(tmp_path, (9,))) == list(iter_episodes(tmp_path / "nowhere")) == []
    assert [(one.step, one.group, one.replaced) for one in iter_episodes(tmp_path, (2,))] == [
        (2, 0, False), (2, 0, False), (2, 1, False), (2, 1, False), (2, 0, True), (2, 0, True),
    ]  # fmt: skip


def test_a_resumed_run_is_byte_for_byte_the_run_that_was_never_stopped(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole", range(1, 6))
    resumed = written(tmp_path / "resumed", range(1, 5))
    with resumed.open("r+b") as stream:
        stream.truncate(resumed.stat().st_size - 7)  # killed while it wrote step 4
    assert recorded_steps(tmp_path / "resumed") == [1, 2, 3]
    written(tmp_path / "resumed", range(3, 6))  # from the checkpoint of step 2
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_run_that_starts_again_keeps_nothing(tmp_path: Path) -> None:
    written(tmp_path, range(1, 5))
    written(tmp_path, range(1, 2))
    assert recorded_steps(tmp_path) == [1]


def test_settings_are_recorded_when_they_change(tmp_path: Path) -> None:
    begin_episodes(tmp_path, {"lr": 0.1, "output_dir": "a"}, 0)
    append_episodes(tmp_path, 1, [made_group(1)])
    begin_episodes(tmp_path, {"lr": 0.1, "output_dir": "b"}, 1)
    append_episodes(tmp_path, 2, [made_group(2)])
    begin_episodes(tmp_path, {"lr": 0.2, "output_dir": "b"}, 2)
    append_episodes(tmp_path, 3, [made_group(3)])
    found = recorded_settings(tmp_path)
    assert found == [{"lr": 0.1}, {"lr": 0.2}]
    begin_episodes(tmp_path, {"lr": 0.1}, 1)  # back to before the change, with the settings of then
    assert recorded_settings(tmp_path) == [{"lr": 0.1}]
    assert recorded_steps(tmp_path) == [1]


def test_damage_before_the_checkpoint_is_an_error(tmp_path: Path) -> None:
    file = written(tmp_path, range(1, 5))
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.truncate(size - 3)
    with pytest.raises(RecordError, match=r"lacks episodes between steps 3 and 4: .*move the file away"):
        begin_episodes(tmp_path, {"seed": 1}, 4)
    data = bytearray(file.read_bytes())
    data[size // 2 :] = b"?" * (len(data) - size // 2)
    file.write_bytes(bytes(data))
    with pytest.raises(RecordError, match=r"damaged at byte .*.*move the file away"):
        begin_episodes(tmp_path, {"seed": 1}, 4)
    assert file.read_bytes() == bytes(data)
    begin_episodes(tmp_path, {"seed": 1}, 1)  # what is damaged is repeated anyway
    assert recorded_steps(tmp_path) == [1]


def test_a_step_kept_in_part_says_so(tmp_path: Path) -> None:
    append_episodes(tmp_path, 1, [made_group(1), made_group(2)], [made_group(3)], limit=3)
    (record,) = iter_steps(tmp_path)
    assert record.left_out == 3
    assert [len(group.episodes) for group in record.groups] == [2, 1]


def test_what_is_not_an_episode_is_refused(tmp_path: Path) -> None:
    append_frame(tmp_path / FILE, {"kind": "step", "step": 1, "left_out": 0}, ['{"a": 1}'])
    with pytest.raises(RecordError, match=r"step 1 at byte 0, line 1: not an episode"):
        list(iter_episodes(tmp_path))


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    def peak(steps: int) -> int:
        folder = tmp_path / str(steps)
        folder.mkdir()
        for step in range(1, steps + 1):
            append_episodes(folder, step, [made_group(task, tokens=200) for task in range(8)])
        tracemalloc.start()
        try:
            assert sum(1 for _ in iter_episodes(folder)) == 16 * steps
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(40) < 2 * peak(4)


CONFIG = {"seed": 1, "output_dir": "here"}


def run_written(folder: Path, steps: range) -> RunFolder:
    run = RunFolder(folder)
    run.begin(CONFIG, steps.start - 1)
    for step in steps:
        run.write_metrics({"step": float(step), "loss": 0.1})
        run.write_warning(RunWarning(step, "kl", 0.5, 0.1, f"step {step}: so weit – zu weit \udcff"))
        run.write_episodes(step, [made_group(step)], None, [made_group(50 + step)])
    run.sync()
    return run


def test_a_resumed_run_drops_what_it_repeats(tmp_path: Path) -> None:
    run = run_written(tmp_path / "run", range(1, 5))
    for file in (run.metrics_file, run.warnings_file):
        assert file.stat().st_mode & 0o077 == 0, "for its owner alone"
        with file.open("a") as stream:
            stream.write('{"step": 2, "lo')  # a killed run's last line
    run_written(tmp_path / "run", range(3, 4))
    for file in (run.metrics_file, run.warnings_file):
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert [line["step"] for line in lines] == [1, 2, 3]
    assert (lines[0]["kind"], lines[0]["message"]) == ("warning", "step 1: so weit – zu weit \udcff")
    assert [record.step for record in iter_steps(run.path)] == [1, 2, 3]
    (settings,) = recorded_settings(run.path)
    assert settings == {"seed": 1}


def test_settings_can_be_read_as_they_were_given(tmp_path: Path) -> None:
    run = run_written(tmp_path / "run", range(1, 1))
    assert run.settings() == CONFIG
    run.write_settings({**CONFIG, "env": "toy/Echo-v0"})
    run_written(run.path, range(1, 1))
    assert run.settings() == {**CONFIG, "env": "toy/Echo-v0"}, "a command's settings stay"
