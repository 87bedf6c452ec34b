"""Delivery: a sink's failures never reach training, and no event is lost, doubled or out of order."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art_trainer.config import GRPOConfig
from art_trainer.tracking.episode_store import iter_episodes, iter_steps
from art_trainer.tracking.sinks import backfill
from art_trainer.tracking.sinks.backfill import SinkProgress, describe_run, events_after
from art_trainer.tracking.sinks.base import (
    START,
    CheckpointSaved,
    Cursor,
    EventRefusedError,
    RunInfo,
    Sink,
    SinkError,
    SinkUnavailableError,
    StepDone,
)
from art_trainer.tracking.sinks.delivery import SinkDispatcher, is_refusal, sync_run
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.tracking.sinks.sink_runs import QUICK, MadeRun, MemorySink, all_cursors
from tests.art_trainer.updates import logged_metrics
from tests.art_trainer.waiting import until

REFUSED = Cursor(2, 1)


def progress(run: MadeRun) -> SinkProgress:
    return SinkProgress.load(run.folder, "memory")


def synced(run: MadeRun, sink: MemorySink | None = None) -> MemorySink:
    """Send a sink what it missed, without a failure."""
    sink = sink or MemorySink()
    assert sync_run(run.folder, sink)[0].failures == 0
    return sink


def dispatched(run: MadeRun, sink: MemorySink, **options: Any) -> SinkDispatcher:
    dispatcher = SinkDispatcher(run.info, [sink], close_seconds=60.0, **QUICK, **options)
    run.begin(dispatcher)
    return dispatcher


def test_every_event_arrives_once_and_in_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, sink = MadeRun(tmp_path / "run"), MemorySink()
    status = run.deliver(sink, capacity=100)
    assert sink.cursors == all_cursors(6)
    assert [dict(event.metrics) for event in sink.events if isinstance(event, StepDone)] == run.metrics()
    assert (status.complete, status.delivered, status.failures, status.backfills) == (True, 14, 0, 0)
    assert (sink.closed, caplog.messages) == ("finished", [])
    assert progress(run) == SinkProgress(Cursor(6, 2), {"destination": "here", "seen": 14})
    read = list(events_after(run.folder))
    saved = [event for event in read if isinstance(event, CheckpointSaved)]
    assert [(event.step, event.aliases) for event in saved] == [(3, ()), (6, ("latest",))]
    assert [event for event in read if event not in saved] == [
        event for event in sink.events if not isinstance(event, CheckpointSaved)
    ]


@pytest.mark.parametrize(
    ("options", "failures"),
    [({"fail": (3, 4, 9)}, 3), ({"open_faults": [RuntimeError("out of paper")] * 2}, 2)],
    ids=["deliver", "open"],
)
def test_a_sink_that_raises_is_tried_again_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], failures: int
) -> None:
    sink = MemorySink(**options)
    status = MadeRun(tmp_path / "run").deliver(sink)
    assert sink.cursors == all_cursors(6)
    assert (status.failures, status.complete, status.problem) == (failures, True, "out of paper")
    assert sum("out of paper" in message for message in caplog.messages) == 1


def test_a_sink_that_hangs_delays_neither_training_nor_its_end(tmp_path: Path) -> None:
    run, stuck = MadeRun(tmp_path / "run", steps=30), MemorySink()
    stuck.gate.clear()
    status = run.deliver(stuck, capacity=4, close_seconds=0.2)
    assert (status.complete, status.problem) == (False, "it did not end within 0 s")
    assert synced(run).cursors == all_cursors(30)
    # When the one that hung wakes up, it takes no more and does not move the cursor back.
    stuck.gate.set()
    for thread in threading.enumerate():
        if thread.name == "sink-memory":
            thread.join(60)
    assert len(stuck.events) <= 1
    assert progress(run).cursor == Cursor(30, 2)


def test_what_a_full_queue_does_not_take_is_read_from_the_folder(tmp_path: Path) -> None:
    run, sink = MadeRun(tmp_path / "run", steps=40), MemorySink()
    dispatcher = dispatched(run, sink, capacity=3)
    sink.gate.clear()
    run.play(dispatcher, last=30)
    sink.gate.set()
    until(lambda: len(sink.events) >= 3)  # the queue has room again
    run.play(dispatcher, first=31)
    dispatcher.on_end("finished")
    (status,) = dispatcher.statuses
    assert sink.cursors == all_cursors(40)
    assert (status.backfills > 0, status.complete, status.failures) == (True, True, 0)


def test_an_unavailable_sink_is_left_out_without_its_key_being_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = MadeRun(tmp_path / "run")
    refused = SinkUnavailableError("the key sk-verysecretkey0 was refused")
    status = run.deliver(MemorySink(open_faults=[refused]))
    assert (status.complete, status.failures) == (False, 1)
    assert "was refused" in caplog.messages[0]
    assert "verysecret" not in f"{caplog.text}{status}"
    assert synced(run).cursors == all_cursors(6)


def test_a_new_process_continues_where_the_sink_was(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", steps=9)
    first, second = MemorySink(), MemorySink()
    run.deliver(first, last=5, outcome="interrupted")
    assert first.closed == "interrupted"
    # Killed after step 5, and the newest checkpoint is of step 3: steps 4 and 5 are repeated.
    run.deliver(second, first=4)
    assert first.cursors + second.cursors == all_cursors(9)
    assert second.resumed == {"destination": "here", "seen": len(first.events)}


def test_a_new_run_another_destination_and_a_damaged_file_mean_everything_again(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    run.deliver(MemorySink())
    again = MemorySink()
    MadeRun(tmp_path / "run", seed=1).deliver(again)
    assert (again.resumed, again.cursors) == (None, all_cursors(6))
    assert synced(run, MemorySink(destination="there")).cursors == all_cursors(6)
    (run.folder / "sinks" / "memory.json").write_text('{"cursor": [1')
    assert synced(run).cursors == all_cursors(6)


def test_sync_needs_a_run_and_sinks_never_see_its_secrets(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no run"):
        sync_run(tmp_path, MemorySink())
    settings = {"judge_args": {"api_key": "sk-1234567890", "temperature": 0}, "env": "e", "model": "a/b"}
    run = describe_run(tmp_path / "run", settings)
    assert run.config["judge_args"] == {"temperature": 0}
    assert (run.name, run.env_id, run.tags) == ("run", "e", ("ART", "GRPO", "b"))


@settings(max_examples=25, deadline=None)
@given(faults=st.sets(st.integers(1, 40), max_size=15), capacity=st.integers(1, 8), stops=st.integers(1, 12))
def test_whatever_fails_run_and_sync_together_deliver_each_event_once(
    tmp_path_factory: pytest.TempPathFactory, faults: set[int], capacity: int, stops: int
) -> None:
    run = MadeRun(tmp_path_factory.mktemp("runs") / "run", steps=12)
    sink = MemorySink(fail=faults)
    run.deliver(sink, last=stops, outcome="interrupted", capacity=capacity, first_pause=0.001)
    assert sink.cursors + synced(run).cursors == [c for c in all_cursors(12) if c.step <= stops]


def test_an_event_that_is_refused_becomes_a_dead_letter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, sink = MadeRun(tmp_path / "run"), MemorySink(refused={REFUSED: EventRefusedError("HTTP 400")})
    status = run.deliver(sink)
    assert sink.cursors == [cursor for cursor in all_cursors(6) if cursor != REFUSED]
    assert sink.tried == [REFUSED]
    assert (status.complete, status.dead_letters, sink.closed) == (False, 1, "finished")
    assert str(status.problem).startswith("refused the episodes of step 2: ")
    assert caplog.messages[0].startswith("memory: refused the episodes of step 2")
    assert caplog.messages[-1].endswith(f"art-trainer sync {run.folder} --to memory")
    assert "HTTP 400" in progress(run).dead_letters[REFUSED]


def test_a_sync_sends_exactly_the_dead_letters(tmp_path: Path) -> None:
    run, no = MadeRun(tmp_path / "run"), EventRefusedError("no")
    run.deliver(MemorySink(refused={REFUSED: no, Cursor(4, 0): no}))
    still = MemorySink(refused={REFUSED: no})
    status, _ = sync_run(run.folder, still)
    assert (still.cursors, still.tried) == ([(4, 0)], [REFUSED])
    assert (status.complete, status.dead_letters, status.delivered) == (False, 1, 1)
    down = MemorySink(fail=range(1, 100), fault=ConnectionError("nobody there"))
    assert not sync_run(run.folder, down)[0].complete
    assert synced(run).cursors == [REFUSED]
    assert (synced(run).events, progress(run).dead_letters) == ([], {})


def test_a_resumed_run_keeps_dead_letters_and_a_pruned_checkpoint_is_forgotten(tmp_path: Path) -> None:
    run, no = MadeRun(tmp_path / "run"), EventRefusedError("no")
    run.deliver(MemorySink(refused={Cursor(3, 2): no}))
    sink = MemorySink(refused={Cursor(3, 2): no})
    assert run.deliver(sink, first=7, last=8).dead_letters == 1
    assert (sink.cursors, sink.tried) == ([(7, 0), (7, 1), (8, 0), (8, 1)], [])
    shutil.rmtree(run.folder / "checkpoints" / "step-000003")
    assert synced(run).events == []
    assert progress(run).dead_letters == {}


@pytest.mark.parametrize(
    ("fault", "is_one"),
    [
        (EventRefusedError("no"), True),
        (ValueError("no"), True),
        (TypeError("no"), True),
        (KeyError("no"), True),
        (UnicodeEncodeError("utf-8", "\ud83d", 0, 1, "surrogates"), True),
        (SinkError("HTTP 500"), False),
        (OSError(28, "no space left on device"), False),
        (json.JSONDecodeError("garbage", "<html>", 0), False),
        (TimeoutError(), False),
    ],
)
def test_what_counts_as_a_refusal(fault: Exception, is_one: bool) -> None:
    assert is_refusal(fault) is is_one


@contextmanager
def _ctrl_c_at(instruction: int) -> Iterator[Callable[[], int]]:
    """Raise ``KeyboardInterrupt`` before one of the instructions that hand events to the sinks.

    Yields a function that returns how many instructions there were so far.
    """
    done = 0
    traced = ("sinks/delivery.py", "sinks/base.py", "threading.py", "queue.py")

    def within(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal done
        if not frame.f_code.co_filename.endswith(traced):
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


@pytest.mark.parametrize(("save", "every"), [(True, 5), (False, 11)])
def test_ctrl_c_at_any_instruction_loses_no_event_and_blocks_no_sink(
    tmp_path: Path, save: bool, every: int
) -> None:
    run = MadeRun(tmp_path / "run", steps=3).played()
    steps = [(line, step.groups) for line, step in zip(run.metrics(), iter_steps(run.folder), strict=True)]
    for instruction in itertools.count(1, every):
        sink = MemorySink()
        dispatcher = SinkDispatcher(run.info, [sink], close_seconds=60.0, **QUICK)
        dispatcher.on_begin(0)
        for step in steps[:-1]:
            dispatcher.on_logged(*step)
        with suppress(KeyboardInterrupt), _ctrl_c_at(instruction) as count:
            dispatcher.on_logged(*steps[-1])
        if save:  # as a trainer does before it ends
            dispatcher.on_checkpoint(3, run.log.checkpoints / "step-000003")
        dispatcher.on_end("interrupted")
        assert sink.cursors == all_cursors(3), f"at instruction {instruction}"
        assert dispatcher.statuses[0].complete
        if count() < instruction:
            break
    assert instruction > 50


_READS = ("list_checkpoints", "RunFolder", "recorded_steps", "iter_steps")
"""What the reader of a folder calls, each of which sees the folder at a moment of its own."""


@settings(max_examples=40, deadline=None)
@given(pauses=st.lists(st.integers(0, 5), min_size=5, max_size=5), begun=st.integers(0, 8))
def test_a_run_that_grows_while_it_is_read_is_read_without_gaps(
    tmp_path_factory: pytest.TempPathFactory, pauses: list[int], begun: int
) -> None:
    run = MadeRun(tmp_path_factory.mktemp("runs") / "run", steps=12)
    run.begin()
    writes, coming = run.writes(), iter(pauses)

    def write(count: int) -> None:
        for _ in range(count):
            next(writes, None)

    def at_its_moment(read: Callable[..., Any]) -> Callable[..., Any]:
        def reads(*arguments: Any) -> Any:
            write(next(coming, 0))
            return read(*arguments)

        return reads

    write(begun)
    there = len(list(events_after(run.folder)))
    with pytest.MonkeyPatch.context() as patch:
        for name in _READS:
            patch.setattr(backfill, name, at_its_moment(getattr(backfill, name)))
        first = [Cursor.of(event) for event in events_after(run.folder)]
    write(1000)
    rest = [Cursor.of(event) for event in events_after(run.folder, first[-1] if first else START)]
    assert first + rest == all_cursors(12)
    assert len(first) >= there


STEPS = 3


def trained(
    folder: Path, sinks: Sequence[Sink], ready_to_end: Callable[[], bool] = lambda: True
) -> tuple[SinkDispatcher, dict[str, torch.Tensor]]:
    """Train a little; return the dispatcher and the weights."""
    config = GRPOConfig(
        output_dir=str(folder), max_steps=STEPS, groups_per_step=2, num_generations=4,
        max_completion_length=2, save_steps=1,
    )  # fmt: skip
    info = RunInfo(folder, config.to_mapping())
    dispatcher = SinkDispatcher(info, sinks, **QUICK, close_seconds=1.0)
    ending = dispatcher.on_end

    def end_when_ready(outcome: Any) -> None:
        until(ready_to_end)
        ending(outcome)

    dispatcher.on_end = end_when_ready  # type: ignore[method-assign]
    trainer = GRPOTrainer(guess_policy(hidden=16), GuessEnv, config, callbacks=[dispatcher])
    trainer.train()
    trainer.close()
    return dispatcher, {name: value.clone() for name, value in trainer.policy.model.state_dict().items()}


def test_sinks_that_fail_in_every_way_change_nothing(tmp_path: Path) -> None:
    kept, stuck = MemorySink(), MemorySink(name="stuck")
    stuck.gate.clear()
    dead = MemorySink(name="dead", fail=range(1, 10_000))
    sinks = [
        dead,
        kept,
        stuck,
        MemorySink(name="absent", open_faults=itertools.repeat(ConnectionRefusedError())),
    ]
    dispatcher, weights = trained(tmp_path / "run", sinks, lambda: len(kept.events) >= 3 * STEPS)
    stuck.gate.set()
    complete = {status.name: status.complete for status in dispatcher.statuses}
    assert complete == {"dead": False, "memory": True, "stuck": False, "absent": False}
    left = {Cursor.of(event) for event in events_after(tmp_path / "run")}  # but for pruned checkpoints
    assert left <= set(kept.cursors)
    played = [episode for event in kept.events for episode in getattr(event, "episodes", ())]
    assert played == [recorded.episode for recorded in iter_episodes(tmp_path / "run")]
    _, alone = trained(tmp_path / "alone", ())
    assert alone.keys() == weights.keys()
    assert all(torch.equal(alone[name], weights[name]) for name in alone)
    assert logged_metrics(tmp_path / "run") == logged_metrics(tmp_path / "alone")
