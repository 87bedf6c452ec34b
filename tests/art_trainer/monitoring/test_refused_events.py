"""An event that a sink refuses each time is set aside: the others arrive, and a sync tries it again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from art_trainer.monitoring.delivery import SinkStatus
from art_trainer.monitoring.events import Event, EventRefusedError, SinkError, SinkUnavailableError
from art_trainer.monitoring.monitor import Monitor
from art_trainer.monitoring.openpipe_sink import OpenPipeSink
from art_trainer.monitoring.redaction import Redactor
from art_trainer.monitoring.refusals import TRIES, is_refusal
from art_trainer.monitoring.replies import refusal
from art_trainer.monitoring.sink_file import SinkFile
from art_trainer.monitoring.source import Cursor, cursor_of
from art_trainer.monitoring.sync import sync_run
from tests.art_trainer.monitoring.sink_runs import QUICK, MadeRun, MemorySink, all_places
from tests.art_trainer.monitoring.trace_receivers import Answer, receiving

POISON = Cursor(2, 1)


class Picky(MemorySink):
    """Refuses the events of some places."""

    def __init__(self, *refused: Cursor, fault: Callable[[str], Exception] = EventRefusedError) -> None:
        super().__init__()
        self.refused, self.refusing = refused, fault
        self.tried: list[Cursor] = []

    def deliver(self, event: Event) -> None:
        if cursor_of(event) in self.refused:
            self.tried.append(cursor_of(event))
            raise self.refusing("HTTP 400: no such field `x`")
        super().deliver(event)


def _played(folder: Path, sink: MemorySink) -> tuple[MadeRun, SinkStatus, list[str]]:
    words: list[str] = []
    run = MadeRun(folder)
    monitor = Monitor(run.info, [sink], say=words.append, limits=QUICK)
    run.begin(monitor)
    run.play(monitor)
    monitor.on_end("finished")
    return run, monitor.statuses[0], words


@pytest.mark.parametrize("fault", [EventRefusedError, ValueError, TypeError, KeyError])
def test_an_event_that_is_always_refused_does_not_hold_up_the_others(
    tmp_path: Path, fault: Callable[[str], Exception]
) -> None:
    sink = Picky(POISON, fault=fault)
    run, status, words = _played(tmp_path / "run", sink)
    assert sink.places == [place for place in all_places(6) if place != POISON]
    assert sink.tried == [POISON] * TRIES
    assert (status.complete, status.set_aside, sink.closed) == (False, 1, "finished")
    assert status.problem is not None
    assert status.problem.startswith("refused the episodes of step 2: ")
    assert any("it works again, but it refused the episodes of step 2" in said for said in words)
    assert words[-1].endswith(f"art-trainer sync {run.folder} --to memory")
    (kept,) = json.loads(SinkFile.of(run.folder, "memory").path.read_text())["aside"]
    assert (kept["step"], kept["kind"]) == (2, "episodes")
    assert "HTTP 400" in kept["problem"]


def test_a_sync_sends_exactly_what_was_set_aside(tmp_path: Path) -> None:
    run, _, _ = _played(tmp_path / "run", Picky(POISON, Cursor(4, 0)))
    still = Picky(POISON)
    status = sync_run(run.folder, still, say=lambda words: None).status
    assert (still.places, still.tried) == ([(4, 0)], [POISON])
    assert (status.complete, status.set_aside, status.delivered) == (False, 1, 1)
    mended = MemorySink()
    status = sync_run(run.folder, mended, say=pytest.fail).status
    assert mended.places == [POISON]
    assert status == SinkStatus("memory", 1, 0, 0, complete=True, problem=None)
    assert "aside" not in json.loads(SinkFile.of(run.folder, "memory").path.read_text())
    nothing = MemorySink()
    assert sync_run(run.folder, nothing, say=pytest.fail).status.complete
    assert nothing.places == []


def test_a_resumed_run_does_not_try_it_again_but_keeps_it(tmp_path: Path) -> None:
    run, _, _ = _played(tmp_path / "run", Picky(POISON))
    sink = Picky(POISON)
    monitor = Monitor(run.info, [sink], say=lambda words: None, limits=QUICK)
    run.begin(monitor, step=6)
    run.play(monitor, first=7, last=8)
    monitor.on_end("finished")
    assert (sink.places, sink.tried) == ([(7, 0), (7, 1), (8, 0), (8, 1)], [])
    assert monitor.statuses[0].set_aside == 1


def test_a_checkpoint_that_was_set_aside_and_pruned_is_forgotten(tmp_path: Path) -> None:
    run, status, _ = _played(tmp_path / "run", Picky(Cursor(3, 2)))
    assert status.set_aside == 1
    shutil.rmtree(run.folder / "checkpoints" / "step-000003")
    sink = MemorySink()
    assert sync_run(run.folder, sink, say=pytest.fail).status.complete
    assert sink.places == []


def test_a_sink_that_is_down_refuses_nothing(tmp_path: Path) -> None:
    down = MemorySink(fail=tuple(range(3, 10_000)), fault=ConnectionError("nobody there"))
    run, status, _ = _played(tmp_path / "run", down)
    assert (status.set_aside, status.complete) == (0, False)
    later = MemorySink()
    sync_run(run.folder, later, say=pytest.fail)
    assert down.places + later.places == all_places(6)


def test_a_sync_to_a_sink_that_is_down_keeps_what_was_set_aside(tmp_path: Path) -> None:
    run, _, _ = _played(tmp_path / "run", Picky(POISON))
    down = MemorySink(fail=tuple(range(1, 100)), fault=ConnectionError("nobody there"))
    assert not sync_run(run.folder, down, say=lambda words: None).status.complete
    sink = MemorySink()
    sync_run(run.folder, sink, say=pytest.fail)
    assert sink.places == [POISON]


@pytest.mark.parametrize(
    ("fault", "is_one"),
    [
        (EventRefusedError("no"), True),
        (UnicodeEncodeError("utf-8", "\ud83d", 0, 1, "surrogates"), True),
        (SinkError("HTTP 500"), False),
        (OSError(28, "no space left on device"), False),
        (json.JSONDecodeError("garbage", "<html>", 0), False),
        (TimeoutError(), False),
        (RuntimeError("out of paper"), False),
    ],
)
def test_what_counts_as_a_refusal(fault: Exception, is_one: bool) -> None:
    assert is_refusal(fault) is is_one


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, EventRefusedError),
        (413, EventRefusedError),
        (422, EventRefusedError),
        (401, SinkUnavailableError),
        (404, SinkError),
        (408, SinkError),
        (429, SinkError),
        (503, SinkError),
    ],
)
def test_which_http_statuses_are_about_the_event(status: int, kind: type[SinkError]) -> None:
    assert type(refusal(status, "words", Redactor([]))) is kind


def test_one_reply_that_openpipe_refuses_holds_up_no_other_and_is_the_only_one_sent_again(
    tmp_path: Path,
) -> None:
    def reported(request: Any) -> str:
        return str(json.loads(request.body)["tags"]["report_id"])

    poison: list[str] = []

    def answer(number: int, request: Any) -> Answer:
        poison[:] = poison or [reported(request)]
        return Answer(400) if reported(request) in poison else Answer(200, '{"status": "ok"}')

    with receiving(answer) as server:
        run, status, _ = _played(tmp_path / "run", OpenPipeSink("key", server.url))
        turns = len(server.taken) + 1
        assert len({reported(request) for request in server.taken}) == turns - 1
        assert len(server.requests) == turns - 1 + TRIES
        assert status.set_aside == 1
        server.answer = lambda number, request: Answer(200, '{"status": "ok"}')
        before = len(server.requests)
        assert sync_run(run.folder, OpenPipeSink("key", server.url), say=pytest.fail).status.complete
    assert [reported(request) for request in server.requests[before:]] == poison
