"""Traces of episodes: what Langfuse and OpenTelemetry receive, ids and identity."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from art_trainer.tracking.sinks.base import EpisodesPlayed, make_sink
from art_trainer.tracking.sinks.traces import Tracer
from art_trainer.types import Ending, Episode, Judgement, Turn
from tests.art_trainer.tracking.sinks.services import (
    HTTP_KINDS,
    OTEL_TRACES,
    PUBLIC,
    SCORES,
    SECRET,
    TRACES,
    Answer,
    HttpService,
    scores_in,
    spans_in,
)
from tests.art_trainer.tracking.sinks.traced_episodes import played, run_info, solved

GOLDEN = Path(__file__).parent / "golden"
"""What each service received when this was last looked at; delete a file to have it written anew."""
IDENTITY = {"run_id": "mail-1-abcd", "started_ns": 1_000_000_000_000_000_000}
Deliver = Callable[..., HttpService]


@pytest.fixture
def deliver(make_service: Any, tmp_path: Path) -> Deliver:
    """Deliver an event to a service of a kind; return the service."""

    def deliver_to(name: str, event: EpisodesPlayed | None = None, answer: Any = None) -> HttpService:
        service = make_service(name)
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
    (langfuse, *_), (otel, *_) = (deliver(name).taken for name in HTTP_KINDS)
    pair = base64.b64encode(f"{PUBLIC}:{SECRET}".encode()).decode()
    assert langfuse.headers["authorization"] == f"Basic {pair}"
    assert langfuse.headers["x-langfuse-public-key"] == PUBLIC
    assert otel.headers["x-key"] == "s3cr3t/value"


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


TRACER = Tracer("mail-1-abcd", 1_000_000_000_000, "art-tiny", {"temperature": 0.7, "max_tokens": 4})


def traced(episode, timing=None):
    return TRACER.trace(episode, 3, "000003-0000", timing)


def test_what_is_no_number_is_no_score():
    turn = Turn("a", "b", float("nan"), {"loss": float("inf"), "fine": 1.0})
    episode = Episode("e", "t", 0, "o", (turn,), (), Ending.TERMINATED, judgements={"j": Judgement(0.5)})
    assert [score.name for score in traced(episode).scores] == ["term.fine", "judge.j"]


def test_ids_are_the_same_at_every_delivery_and_no_two_are():
    def ids():
        for tracer in (TRACER, dataclasses.replace(TRACER, run_id="mail-1-ef01")):
            for trace in (*tracer.traces(played(1)), *tracer.traces(played(2))):
                yield trace.trace_id
                yield from (node.span_id for node in trace.nodes)
                yield from (score.score_id for score in trace.scores)

    first, again = list(ids()), list(ids())
    assert first == again
    assert len(set(first)) == len(first)
    assert {len(one) for one in first} == {16, 32}


def test_trace_ids_are_those_of_langfuses_own_function():
    langfuse = pytest.importorskip("langfuse")
    made = langfuse.Langfuse.create_trace_id(seed="mail-1-abcd/000003-0000")
    assert traced(solved()).trace_id == made
