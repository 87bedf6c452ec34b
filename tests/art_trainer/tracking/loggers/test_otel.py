"""OpenTelemetry: what arrives at a server that speaks OTLP/HTTP, and one that does not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from art_trainer.tracking.loggers.base import LoggerError, RunInfo, make_logger
from tests.art_trainer.tracking.loggers.logged_runs import SETTINGS, log_run, solved
from tests.art_trainer.waiting import until

STARTED = 1_800_000_000_250_000_000


class Server(ThreadingHTTPServer):
    """Takes spans, or answers with another status, or not while its gate is closed."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.gate = Event()
        self.gate.set()
        self.requests: list[tuple[str, Mapping[str, str], bytes]] = []

    def spans(self) -> list[dict[str, Any]]:
        """All spans that arrived, as plain data in the order of their starts."""
        messages = [ExportTraceServiceRequest.FromString(body) for _, _, body in self.requests]
        parts = [part for message in messages for part in message.resource_spans]
        found = [
            {
                "name": span.name,
                "trace": span.trace_id,
                "ids": (span.span_id, span.parent_span_id),
                "times": (span.start_time_unix_nano, span.end_time_unix_nano),
                "error": span.status.message if span.status.code == 2 else None,
                "run": _attributes(part.resource.attributes)["art.run.name"],
                "attributes": _attributes(span.attributes),
                "events": [(event.name, _attributes(event.attributes)) for event in span.events],
            }
            for part in parts
            for scope in part.scope_spans
            for span in scope.spans
        ]
        return sorted(found, key=lambda span: (span["times"][0], -span["times"][1]))


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.gate.wait()
        if self.server.status == 200:
            self.server.requests.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


def _attributes(pairs: Any) -> dict[str, Any]:
    kinds = {pair.key: (pair.value.WhichOneof("value"), pair.value) for pair in pairs}
    return {
        name: [item.string_value for item in value.array_value.values]
        if kind == "array_value"
        else getattr(value, kind)
        for name, (kind, value) in kinds.items()
    }


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as made:
        Thread(target=made.serve_forever).start()
        url = f"http://127.0.0.1:{made.server_address[1]}/api/public/otel"  # as of Langfuse
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic cGs6c2s=,x-key=a%2Fb")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")  # less than the first pause: no repeats
        yield made
        made.shutdown()


def test_an_episode_is_a_trace(server: Server, tmp_path: Path) -> None:
    log_run(tmp_path / "mail-1", [make_logger("otel")], last=1)
    path, headers, _ = server.requests[0]
    assert path == "/api/public/otel/v1/traces"
    assert (headers["authorization"], headers["x-key"]) == ("Basic cGs6c2s=", "a/b")
    spans = server.spans()
    (start,) = {span["trace"] for span in spans if span["times"][0] == STARTED}
    first = [span for span in spans if span["trace"] == start]
    agent, chat, tool, *_ = first
    operations = ["chat art-tiny", "execute_tool search", "chat art-tiny", "execute_tool answer"]
    assert [span["name"] for span in first] == ["invoke_agent art/Email-v0", *operations]
    assert [span["ids"][1] for span in first] == [b"", *[agent["ids"][0]] * 4]
    assert {span["run"] for span in spans} == {"mail-1"}
    starts = [round((span["times"][0] - STARTED) / 1e9, 5) for span in first]
    assert starts == [0, 0, 0.5, 0.625, 0.875]
    assert agent["times"][1] == first[-1]["times"][1]
    about = agent["attributes"]
    assert (
        about.items()
        >= {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "art/Email-v0",
            "gen_ai.conversation.id": "mail-1/000001-0000",
            "gen_ai.request.temperature": 0.7,
            "gen_ai.usage.output_tokens": 7,
            "art.reward": pytest.approx(0.9),
            "art.success": True,
            "art.metric.searches": 1.0,
        }.items()
    )
    assert json.loads(about["gen_ai.input.messages"])[0]["parts"][0]["content"] == "What did the books cost?"
    assert (
        chat["attributes"].items()
        >= {
            "gen_ai.usage.input_tokens": 5,
            "gen_ai.usage.output_tokens": 3,
            "gen_ai.response.finish_reasons": ["stop"],
            "art.latency_seconds": 0.5,
            "art.policy_version": 11,
        }.items()
    )
    assert (
        tool["attributes"].items()
        >= {
            "gen_ai.tool.name": "search",
            "gen_ai.tool.call.arguments": '{"query": "bücher"}',
            "gen_ai.tool.call.result": "Nothing found. ☃",
            "art.reward": -0.1,
            "art.term.cost": -0.1,
        }.items()
    )
    assert first[3]["attributes"]["gen_ai.response.finish_reasons"] == ["length"]
    assert {name for name, _ in agent["events"]} == {"gen_ai.evaluation.result"}
    scores = {event["gen_ai.evaluation.name"]: event for _, event in agent["events"]}
    values = {name: round(event["gen_ai.evaluation.score.value"], 6) for name, event in scores.items()}
    assert values == {
        "reward": 0.9, "independent_reward": 0.8, "success": 1.0, "term.cost": -0.1, "term.correct": 1.0,
        "judge.clarity": 0.75, "judge.clarity.tone": 0.5,
    }  # fmt: skip
    assert scores["judge.clarity"]["gen_ai.evaluation.explanation"] == "short and clear"


def test_failures_of_episodes_are_errors_of_spans(server: Server, tmp_path: Path) -> None:
    log_run(tmp_path, [make_logger("otel")], last=1)
    failed = {span["name"]: span["error"] for span in server.spans() if span["error"] is not None}
    assert failed == {
        "execute_tool invalid_reply": "no call was found",
        "invoke_agent art/Email-v0": "KeyError: 'inbox'",
    }
    results = [span["attributes"].get("gen_ai.tool.call.result") for span in server.spans()]
    assert "No call was found. ?" in results  # half a surrogate pair


def test_what_is_no_number_is_no_score(server: Server, tmp_path: Path) -> None:
    logger = make_logger("otel")
    logger.begin(RunInfo(tmp_path, SETTINGS), 0)
    turn = replace(solved().turns[0], reward=float("nan"), score_terms={"loss": float("inf"), "fine": 1.0})
    logger.log_step(1, {}, [replace(solved(), turns=(turn,), judgements={})], [None])
    logger.end("finished")
    names = [event["gen_ai.evaluation.name"] for _, event in server.spans()[0]["events"]]
    assert names == ["independent_reward", "success", "term.fine"]


def test_a_step_of_many_spans_waits_for_a_slow_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    logger = make_logger("otel")
    logger.begin(RunInfo(tmp_path, SETTINGS), 0)
    server.gate.clear()
    logger.log_step(1, {}, [solved()] * 600, [None] * 600)
    server.gate.set()
    logger.end("finished")
    assert len(server.spans()) == 600 * 5


def test_a_server_that_refuses_is_reported_and_one_that_is_back_is_used(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    logger: Any = make_logger("otel")
    logger.begin(RunInfo(tmp_path, SETTINGS), 0)
    server.status = 401
    logger.log_step(1, {}, [solved()], [None])
    until(lambda: logger._exporter._failed)
    with pytest.raises(LoggerError, match=r"did not take the last spans: .*401.*Unauthorized"):
        logger.log_step(2, {}, [solved()], [None])
    server.status = 200
    with suppress(LoggerError):
        logger.log_step(3, {}, [solved()], [None])
    until(lambda: not logger._exporter._failed)
    logger.end("finished")
    assert 3 in {span["attributes"].get("art.step") for span in server.spans()}
    assert caplog.messages == []


def test_a_dead_server_is_one_warning_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    log_run(tmp_path, [make_logger("otel")])
    (message,) = caplog.messages
    assert message.startswith("otel: OTEL_EXPORTER_OTLP_ENDPOINT did not take the last spans")
