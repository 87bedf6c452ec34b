"""What Langfuse, OpenTelemetry and OpenPipe receive is what was played."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from art_trainer.tracking.sinks.base import EpisodesPlayed, make_sink
from art_trainer.tracking.sinks.delivery import sync_run
from art_trainer.types import Ending, Episode, Turn
from tests.art_trainer.tracking.sinks.services import (
    HTTP_KINDS,
    OTEL_TRACES,
    PUBLIC,
    SCORES,
    SECRET,
    TRACES,
    Answer,
    HttpService,
    Service,
    scores_in,
    spans_in,
)
from tests.art_trainer.tracking.sinks.sink_runs import MadeRun
from tests.art_trainer.tracking.sinks.traced_episodes import played, run_info, solved

GOLDEN = Path(__file__).parent / "golden"
"""What each service received when this was last looked at; delete a file to have it written anew."""
IDENTITY = {"run_id": "mail-1-abcd", "started_ns": 1_000_000_000_000_000_000}
Deliver = Callable[..., HttpService]


@pytest.fixture
def deliver(make_service: Callable[[str], Service], tmp_path: Path) -> Deliver:
    """Deliver an event to a service of a kind; return the service."""

    def deliver_to(name: str, event: EpisodesPlayed | None = None, answer: Any = None) -> HttpService:
        service = make_service(name)
        assert isinstance(service, HttpService)
        if answer is not None:
            service.wrong = answer
        sink = service.sink()
        sink.open(run_info(tmp_path), resume=IDENTITY)
        sink.deliver(event or played())
        sink.close("finished")
        return service

    return deliver_to


@pytest.mark.parametrize("name", HTTP_KINDS)
def test_what_arrives_is_what_was_played(name: str, deliver: Deliver) -> None:
    arrived = deliver(name).arrived()
    file = GOLDEN / f"{name}.json"
    if not file.exists():
        file.write_text(json.dumps(arrived, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        pytest.fail(f"{file} was written: look at it, then run this again")
    assert arrived == json.loads(file.read_text(encoding="utf-8"))


def test_requests_carry_the_keys(deliver: Deliver) -> None:
    (langfuse, *_), (otel, *_), (openpipe, *_) = (deliver(name).taken for name in HTTP_KINDS)
    pair = base64.b64encode(f"{PUBLIC}:{SECRET}".encode()).decode()
    assert langfuse.headers["authorization"] == f"Basic {pair}"
    assert langfuse.headers["x-langfuse-public-key"] == PUBLIC
    assert otel.headers["x-key"] == "s3cr3t/value"
    assert (openpipe.path, openpipe.headers["authorization"]) == ("/api/v1/report", "Bearer opk-0123456789")


PARTIAL_JSON = Answer(
    200, '{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "bad value s3cr3t/value"}}'
)
PARTIAL_BYTES = Answer(200, b"\x0a\x02\x08\x02", "application/x-protobuf")  # 2 rejected spans
REFUSED_SCORES = Answer(207, '{"rejected": 2, "errors": [{"message": "bad value sk-lf-fedcba9876543210"}]}')


@pytest.mark.parametrize(
    ("name", "answer"), [("otel", PARTIAL_JSON), ("otel", PARTIAL_BYTES), ("langfuse", REFUSED_SCORES)]
)
def test_refused_items_of_an_accepted_request_are_logged(
    name: str, answer: Answer, deliver: Deliver, caplog: pytest.LogCaptureFixture
) -> None:
    paths = (SCORES, OTEL_TRACES)
    service = deliver(name, answer=lambda number, request: answer if request.path in paths else None)
    assert "refused 2 items" in caplog.text
    assert not [secret for secret in service.secrets if secret in caplog.text]


def test_requests_are_of_bounded_size(deliver: Deliver) -> None:
    requests = deliver("langfuse", EpisodesPlayed(1, (solved(),) * 130)).taken
    batches = [len(spans_in([request], TRACES)) for request in requests if request.path == TRACES]
    assert (sum(batches), max(batches) <= 512) == (130 * 5, True)
    sizes = [len(scores_in([request])) for request in requests if request.path == SCORES]
    assert (sum(sizes), max(sizes)) == (130 * 7, 500)


def test_another_langfuse_project_is_another_destination() -> None:
    def destination(public: str) -> str:
        settings = {"LANGFUSE_PUBLIC_KEY": public, "LANGFUSE_SECRET_KEY": SECRET}
        sink: Any = make_sink("langfuse", {**settings, "LANGFUSE_HOST": "http://user:pass-word@host"})
        sink.close("finished")
        return str(sink.destination)

    assert destination(PUBLIC) == destination(PUBLIC) != destination(PUBLIC[:-1])
    assert "pass-word" not in destination(PUBLIC)


def test_no_more_reports_are_under_way_than_there_are_connections(deliver: Deliver) -> None:
    under_way, most = 0, 0
    lock, together = threading.Lock(), threading.Event()

    def answer(number: int, request: Any) -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        if number:
            together.set()
        assert together.wait(60)
        time.sleep(0.02)  # so that too many would be seen
        with lock:
            under_way -= 1

    service = deliver("openpipe", EpisodesPlayed(1, (solved(),) * 10), answer)
    assert len({report["tags"]["report_id"] for report in service.arrived()}) == 20
    assert 1 < most <= 8


def test_a_refused_report_holds_up_no_other_and_is_the_only_one_sent_again(
    make_service: Callable[[str], Service], tmp_path: Path
) -> None:
    service, run = make_service("openpipe"), MadeRun(tmp_path / "run")
    assert isinstance(service, HttpService)
    refused: list[str] = []

    def report_id(request: Any) -> str:
        return str(json.loads(request.body)["tags"]["report_id"])

    def answer(number: int, request: Any) -> Answer | None:
        refused[:] = refused or [report_id(request)]
        return Answer(400) if report_id(request) in refused else None

    service.wrong = answer
    assert run.deliver(service.sink()).dead_letters == 1
    taken = len(service.taken)
    assert len({report_id(request) for request in service.taken}) == taken
    service.wrong = lambda number, request: None
    assert sync_run(run.folder, service.sink())[0].complete
    assert [report_id(request) for request in service.taken[taken:]] == refused


def test_what_json_cannot_say_does_not_stop_the_report(deliver: Deliver) -> None:
    turn = Turn("say \ud83d", "ok", float("nan"))
    episode = Episode("e", "t", 0, "start \udc00", (turn,), (), Ending.TERMINATED)
    (report,) = deliver("openpipe", EpisodesPlayed(1, (episode,))).arrived()
    assert {"reward", "episode_reward", "success"}.isdisjoint(report["tags"])
    assert report["reqPayload"]["messages"][0]["content"] == "start \udc00"
