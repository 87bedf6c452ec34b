"""Delivery: what a sink does wrong never reaches training, and nothing is lost, doubled or out of order."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_trainer.monitoring.delivery import DeliveryLimits, SinkStatus
from art_trainer.monitoring.events import CheckpointSaved, RunInfo, SinkUnavailableError, StepDone
from art_trainer.monitoring.monitor import Monitor
from art_trainer.monitoring.sink_file import SinkFile
from art_trainer.monitoring.source import START, Cursor, events_after
from art_trainer.monitoring.sync import sync_run
from tests.art_trainer.monitoring.sink_runs import QUICK, MadeRun, MemorySink, all_places
from tests.art_trainer.waiting import until


class Shown:
    """One run and one sink, watched."""

    def __init__(
        self, run: MadeRun, sink: MemorySink, *, limits: DeliveryLimits = QUICK, close_seconds: float = 60.0
    ) -> None:
        self.words: list[str] = []
        self.run = run
        self.monitor = Monitor(
            run.info, [sink], say=self.words.append, limits=limits, close_seconds=close_seconds
        )

    def whole(self) -> SinkStatus:
        """Play the whole run; return how the sink stands."""
        self.run.begin(self.monitor)
        self.run.play(self.monitor)
        self.monitor.on_end("finished")
        return self.monitor.statuses[0]


def test_every_event_arrives_once_and_in_order(tmp_path: Path) -> None:
    sink = MemorySink()
    shown = Shown(MadeRun(tmp_path / "run"), sink)
    status = shown.whole()
    assert sink.places == all_places(6)
    assert [
        dict(event.metrics) for event in sink.events if isinstance(event, StepDone)
    ] == shown.run.metrics()
    assert status == SinkStatus("memory", len(all_places(6)), 0, 0, complete=True, problem=None)
    assert (sink.closed, shown.words) == ("finished", [])
    kept = SinkFile.of(tmp_path / "run", "memory").read()
    assert kept[:2] == (Cursor(6, 2), {"destination": "here", "seen": len(sink.events)})


def test_events_told_and_events_read_from_the_folder_are_the_same(tmp_path: Path) -> None:
    sink = MemorySink()
    Shown(MadeRun(tmp_path / "run"), sink).whole()
    read = list(events_after(tmp_path / "run"))
    # Only the newest checkpoint is the latest once there are others.
    assert [event for event in read if not isinstance(event, CheckpointSaved)] == [
        event for event in sink.events if not isinstance(event, CheckpointSaved)
    ]
    assert [(e.step, e.aliases) for e in read if isinstance(e, CheckpointSaved)] == [
        (3, ()),
        (6, ("latest",)),
    ]


def test_a_sink_that_raises_gets_the_event_again_and_is_spoken_of_once(tmp_path: Path) -> None:
    sink = MemorySink(fail=(3, 4, 9))
    shown = Shown(MadeRun(tmp_path / "run"), sink)
    status = shown.whole()
    assert sink.places == all_places(6)
    assert (status.failures, status.complete, status.problem) == (3, True, "out of paper")
    assert sum("out of paper" in words for words in shown.words) <= 2
    assert any(words.startswith("memory: it works again") for words in shown.words)


def test_a_sink_that_cannot_open_at_first_gets_everything_later(tmp_path: Path) -> None:
    class Asleep(MemorySink):
        attempts = 0

        def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
            self.attempts += 1
            if self.attempts < 4:
                raise ConnectionError("nobody there")

    sink = Asleep()
    shown = Shown(MadeRun(tmp_path / "run"), sink)
    shown.run.begin(shown.monitor)
    shown.run.play(shown.monitor)
    until(lambda: sink.attempts == 4)
    shown.monitor.on_end("finished")
    assert sink.places == all_places(6)
    assert shown.monitor.statuses[0].failures == 3


def test_a_dead_sink_keeps_all_of_it_for_a_later_sync(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    dead = MemorySink(fail=tuple(range(5, 10_000)))
    shown = Shown(run, dead)
    status = shown.whole()
    assert not status.complete
    assert dead.places == all_places(6)[:4]
    assert f"art-trainer sync {tmp_path / 'run'} --to memory" in shown.words[-1]
    later = MemorySink()
    result = sync_run(run.folder, later, say=pytest.fail)
    assert later.places == all_places(6)[4:]
    assert later.resumed == {"destination": "here", "seen": 4}
    assert (result.outcome, later.closed, result.status.complete) == ("finished", "finished", True)
    nothing_left = MemorySink()
    sync_run(run.folder, nothing_left, say=pytest.fail)
    assert nothing_left.places == []


def test_a_sink_that_hangs_holds_up_neither_training_nor_its_end(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", steps=30)
    stuck = MemorySink()
    stuck.gate.clear()
    shown = Shown(run, stuck, limits=DeliveryLimits(events=4), close_seconds=0.2)
    status = shown.whole()
    assert (status.complete, status.problem) == (False, "it did not end within 0 s")
    assert status.postponed > 50
    later = MemorySink()
    sync_run(run.folder, later, say=pytest.fail)
    assert later.places == all_places(30)
    # When the one that hung wakes up, it takes no more and does not move the cursor back.
    stuck.gate.set()
    for thread in threading.enumerate():
        if thread.name == "sink-memory":
            thread.join(60)
    assert len(stuck.events) <= 1
    assert SinkFile.of(run.folder, "memory").read()[0] == Cursor(30, 2)


def test_a_slow_sink_with_a_small_queue_reads_the_rest_from_the_folder(tmp_path: Path) -> None:
    sink = MemorySink(wait=0.002)
    shown = Shown(
        MadeRun(tmp_path / "run", steps=40), sink, limits=DeliveryLimits(events=3, flush_every=0.05)
    )
    status = shown.whole()
    assert sink.places == all_places(40)
    assert (status.postponed > 0, status.complete, status.failures) == (True, True, 0)


def test_the_queue_holds_few_episodes_but_always_one_event(tmp_path: Path) -> None:
    sink = MemorySink(wait=0.002)
    status = Shown(MadeRun(tmp_path / "run"), sink, limits=DeliveryLimits(episodes=1)).whole()
    assert sink.places == all_places(6)
    assert status.complete


def test_an_unavailable_sink_is_left_out_and_can_be_sent_everything_later(tmp_path: Path) -> None:
    class Refused(MemorySink):
        def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
            raise SinkUnavailableError("the key sk-verysecretkey0 was refused")

    shown = Shown(MadeRun(tmp_path / "run"), Refused())
    status = shown.whole()
    assert not status.complete
    assert "was refused" in shown.words[0]
    assert not any("verysecret" in words for words in (*shown.words, str(status)))
    later = MemorySink()
    sync_run(tmp_path / "run", later, say=pytest.fail)
    assert later.places == all_places(6)


def test_a_new_process_goes_on_where_the_sink_was(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", steps=9)
    first = MemorySink()
    shown = Shown(run, first)
    run.begin(shown.monitor)
    run.play(shown.monitor, last=5)
    shown.monitor.on_end("interrupted")
    assert first.closed == "interrupted"
    # The process was killed after step 5, and its newest checkpoint is of step 3: 4 and 5 are done again.
    second = MemorySink()
    shown = Shown(run, second)
    run.begin(shown.monitor, step=3)
    run.play(shown.monitor, first=4)
    shown.monitor.on_end("finished")
    assert first.places + second.places == all_places(9)
    assert second.resumed == {"destination": "here", "seen": len(first.events)}


def test_a_new_run_in_the_same_folder_forgets_the_sinks_of_the_old_one(tmp_path: Path) -> None:
    Shown(MadeRun(tmp_path / "run"), MemorySink()).whole()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    sink = MemorySink()
    Shown(MadeRun(tmp_path / "run", seed=1), sink).whole()
    assert sink.resumed is None
    assert sink.places == all_places(6)


def test_another_destination_is_sent_the_whole_run(tmp_path: Path) -> None:
    Shown(MadeRun(tmp_path / "run"), MemorySink(destination="offline")).whole()
    online = MemorySink(destination="online")
    sync_run(tmp_path / "run", online, say=pytest.fail)
    assert online.places == all_places(6)


def test_pruned_checkpoints_are_passed_over(tmp_path: Path) -> None:
    class Reads(MemorySink):
        def deliver(self, event: Any) -> None:
            if isinstance(event, CheckpointSaved):
                (event.folder / "model" / "weights").read_text()
            super().deliver(event)

    sink = Reads()
    sink.gate.clear()
    shown = Shown(MadeRun(tmp_path / "run"), sink)
    shown.run.begin(shown.monitor)
    shown.run.play(shown.monitor)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000003")
    sink.gate.set()
    shown.monitor.on_end("finished")
    assert sink.places == [place for place in all_places(6) if place != (3, 2)]
    assert shown.monitor.statuses[0] == SinkStatus("memory", 13, 0, 0, complete=True, problem=None)


def test_a_full_disk_for_the_cursor_is_a_fault_of_the_sink_alone(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    run.begin()
    (tmp_path / "run" / "sinks").write_text("a file where the folder should be")
    sink = MemorySink()
    shown = Shown(run, sink)
    shown.run.begin(shown.monitor)
    shown.run.play(shown.monitor)
    shown.monitor.on_end("finished")
    assert not shown.monitor.statuses[0].complete
    assert shown.words[0].startswith("sinks/run.json could not be written")


def test_a_sink_that_fails_to_close_is_reported(tmp_path: Path) -> None:
    class Clings(MemorySink):
        def close(self, outcome: Any) -> None:
            raise TimeoutError("still uploading")

    shown = Shown(MadeRun(tmp_path / "run"), Clings())
    status = shown.whole()
    assert (status.complete, status.failures, status.problem) == (False, 1, "still uploading")


def test_what_was_taken_but_not_flushed_is_delivered_again(tmp_path: Path) -> None:
    class Forgets(MemorySink):
        """Its second flush fails, and with it all since the first."""

        kept = 0

        def flush(self) -> None:
            super().flush()
            if self.flushes == 2:
                del self.events[self.kept :]
                raise OSError("no space left on device")
            self.kept = len(self.events)

    sink = Forgets()
    status = Shown(MadeRun(tmp_path / "run"), sink).whole()
    assert sink.places == all_places(6)
    assert (status.complete, status.failures) == (True, 1)


def test_sync_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no run"):
        sync_run(tmp_path, MemorySink(), say=pytest.fail)


def test_a_damaged_cursor_file_means_everything_again(tmp_path: Path) -> None:
    Shown(MadeRun(tmp_path / "run"), MemorySink()).whole()
    (tmp_path / "run" / "sinks" / "memory.json").write_text('{"cursor": [1')
    sink = MemorySink()
    sync_run(tmp_path / "run", sink, say=pytest.fail)
    assert (sink.resumed, sink.places) == (None, all_places(6))


@settings(max_examples=25, deadline=None)
@given(
    faults=st.sets(st.integers(1, 40), max_size=15),
    queue=st.integers(1, 8),
    flush_every=st.sampled_from([0.0, 0.005, 10.0]),
    stops=st.integers(1, 12),
)
def test_whatever_fails_run_and_sync_together_deliver_each_event_once(
    tmp_path_factory: pytest.TempPathFactory, faults: set[int], queue: int, flush_every: float, stops: int
) -> None:
    run = MadeRun(tmp_path_factory.mktemp("runs") / "run", steps=12)
    limits = DeliveryLimits(events=queue, first_pause=0.001, longest_pause=0.002, flush_every=flush_every)
    sink = MemorySink(fail=tuple(faults))
    shown = Shown(run, sink, limits=limits)
    run.begin(shown.monitor)
    run.play(shown.monitor, last=stops)
    shown.monitor.on_end("interrupted")
    later = MemorySink()
    sync_run(run.folder, later, say=pytest.fail)
    assert sink.places + later.places == [place for place in all_places(12) if place[0] <= stops]


@pytest.mark.parametrize("cursor", [START, Cursor(2, 0), Cursor(3, 1), Cursor(3, 2), Cursor(9, 0)])
def test_events_after_a_cursor_are_those_that_follow_it(tmp_path: Path, cursor: Cursor) -> None:
    run = MadeRun(tmp_path / "run")
    run.begin()
    run.play()
    places = [(event.step, rank) for event in events_after(run.folder, cursor) for rank in [_rank(event)]]
    assert places == [place for place in all_places(6) if place > tuple(cursor)]


def _rank(event: Any) -> int:
    return ["StepDone", "EpisodesPlayed", "CheckpointSaved"].index(type(event).__name__)
