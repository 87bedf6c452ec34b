"""Ctrl-C at any instruction of the thread that trains, and a run that grows while it is read: no gaps."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_trainer.episodes import Group
from art_trainer.monitoring import source
from art_trainer.monitoring.monitor import Monitor
from art_trainer.monitoring.source import START, cursor_of, events_after
from art_trainer.monitoring.sync import sync_run
from art_trainer.records import read_groups
from tests.art_trainer.monitoring.sink_runs import QUICK, MadeRun, MemorySink, all_places

_TRACED = (
    "monitoring/monitor.py",
    "monitoring/delivery.py",
    "monitoring/inbox.py",
    "threading.py",
    "queue.py",
)


@contextmanager
def _ctrl_c_at(instruction: int) -> Iterator[Callable[[], int]]:
    """Raise ``KeyboardInterrupt`` before one of this thread's instructions within what tells the sinks.

    Gives a function that says how many instructions there were so far.
    """
    done = 0

    def within(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal done
        if not frame.f_code.co_filename.endswith(_TRACED):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            done += 1
            if done == instruction:
                raise KeyboardInterrupt
        return within

    before = sys.gettrace()
    sys.settrace(within)
    try:
        yield lambda: done
    finally:
        sys.settrace(before)


class _Played(NamedTuple):
    """A run, and what is told of each of its steps."""

    run: MadeRun
    steps: list[tuple[dict[str, float], list[Group]]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> _Played:
    run = MadeRun(tmp_path_factory.mktemp("runs") / "run", steps=3)
    run.begin()
    run.play()
    return _Played(run, [(line, read_groups(run.folder, int(line["step"]))) for line in run.metrics()])


def _interrupted(played: _Played, instruction: int, *, save: bool) -> tuple[MemorySink, bool, int]:
    """Be interrupted while telling of the last step; return the sink, whether it is complete, and how far."""
    run, sink = played.run, MemorySink()
    monitor = Monitor(run.info, [sink], say=lambda words: None, limits=QUICK, close_seconds=60.0)
    monitor.on_begin(0)
    for step in played.steps[:-1]:
        monitor.on_logged(*step)
    try:
        with _ctrl_c_at(instruction) as instructions:
            monitor.on_logged(*played.steps[-1])
    except KeyboardInterrupt:
        pass
    told = instructions()
    if save:  # as a trainer does before it ends
        monitor.on_checkpoint(3, run.log.checkpoints / "step-000003")
    monitor.on_end("interrupted")
    return sink, monitor.statuses[0].complete, told


@pytest.mark.parametrize(("save", "every"), [(True, 1), (False, 3)])
def test_ctrl_c_at_any_instruction_loses_no_event_and_blocks_no_sink(
    played: _Played, save: bool, every: int
) -> None:
    for instruction in itertools.count(1, every):
        sink, complete, told = _interrupted(played, instruction, save=save)
        assert (sink.places, complete) == (all_places(3), True), f"at instruction {instruction}"
        if told < instruction:
            break
    assert instruction > 50


def test_a_step_that_was_written_but_not_told_is_read_from_the_folder(tmp_path: Path) -> None:
    run, sink = MadeRun(tmp_path / "run"), MemorySink()
    monitor = Monitor(run.info, [sink], say=pytest.fail, limits=QUICK)
    run.begin(monitor)
    run.play(monitor, last=2)
    run.play(None, first=3, last=3)  # Ctrl-C came before on_logged; its checkpoint is told of all the same
    monitor.on_checkpoint(3, run.log.checkpoints / "step-000003")
    run.play(None, first=4, last=4)  # and here it ended the run
    monitor.on_end("interrupted")
    assert sink.places == [place for place in all_places(6) if place[0] <= 4]
    assert monitor.statuses[0].complete
    rest = MemorySink()
    sync_run(run.folder, rest, say=pytest.fail)
    assert rest.places == []


_LOOKS = ("list_checkpoints", "read_lines", "recorded_steps", "iter_steps")
"""What the reader of a folder calls, each of which sees the folder at a moment of its own."""


@settings(max_examples=60, deadline=None)
@given(pauses=st.lists(st.integers(0, 5), min_size=5, max_size=5), begun=st.integers(0, 8))
def test_a_run_that_grows_while_it_is_read_is_read_without_gaps(
    tmp_path_factory: pytest.TempPathFactory, pauses: list[int], begun: int
) -> None:
    run = MadeRun(tmp_path_factory.mktemp("runs") / "run", steps=12)
    run.begin()
    writes = run.writes()
    coming = iter(pauses)

    def write(count: int) -> None:
        for _ in range(count):
            next(writes, None)

    def at_its_moment(look: Callable[..., Any]) -> Callable[..., Any]:
        def looks(*given: Any) -> Any:
            write(next(coming, 0))
            return look(*given)

        return looks

    write(begun)
    there = [(event.step, cursor_of(event).rank) for event in events_after(run.folder)]
    with pytest.MonkeyPatch.context() as patch:
        for name in _LOOKS:
            patch.setattr(source, name, at_its_moment(getattr(source, name)))
        first = [cursor_of(event) for event in events_after(run.folder)]
    write(1000)
    rest = [cursor_of(event) for event in events_after(run.folder, first[-1] if first else START)]
    assert [tuple(place) for place in (*first, *rest)] == all_places(12)
    assert len(first) >= len(there)
