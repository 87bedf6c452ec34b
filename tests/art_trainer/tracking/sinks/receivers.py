"""A server in this process that keeps what it is sent, and episodes to send it."""

import gzip
import json
import threading
from collections import namedtuple

import httpx2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from art_trainer.tracking.sinks.base import EpisodesPlayed, RunInfo
from art_trainer.types import Ending, Episode, EpisodeTiming, Judgement, Span, TokenHistory, Turn, TurnTiming

Request = namedtuple("Request", "path headers body")
Answer = namedtuple("Answer", "status body kind", defaults=["", "application/json"])

HOST = "receiver"
TRACES = "/api/public/otel/v1/traces"
SCORES = "/api/public/scores"
PUBLIC, SECRET = "pk-lf-0123456789abcdef", "sk-lf-fedcba9876543210"
TOOLS = (
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}},
)


class Receiver:
    """A transport that answers every request with ``answer(number, request)``; taken are those below 300."""

    def __init__(self, answer):
        self.requests, self.taken, self.answer = [], [], answer
        self.lock = threading.Lock()

    def __call__(self, request):
        if request.url.host != HOST:
            raise httpx2.ConnectError("nobody there")
        gzipped = request.headers.get("Content-Encoding") == "gzip"
        body = gzip.decompress(request.read()) if gzipped else request.read()
        record = Request(request.url.path, dict(request.headers), body)
        with self.lock:
            number = len(self.requests)
            self.requests.append(record)
        answer = self.answer(number, record)
        if answer.status < 300:
            self.taken.append(record)
        return httpx2.Response(answer.status, content=answer.body, headers={"Content-Type": answer.kind})


def too_late(number, request):
    """An answer that comes too late."""
    raise httpx2.ReadTimeout("too late")


def spans_in(requests, path=TRACES):
    """Every span of these requests as plain data, in order."""
    found = []
    for request in requests:
        if request.path == path:
            message = ExportTraceServiceRequest.FromString(request.body)
            for part in message.resource_spans:
                about = attributes(part.resource.attributes)
                found += [plain_span(span, about) for scope in part.scope_spans for span in scope.spans]
    return found


def plain_span(span, resource):
    return {
        "name": span.name,
        "kind": span.kind,
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "error": span.status.message if span.status.code == 2 else None,
        "resource": {name: value for name, value in resource.items() if not name.startswith("telemetry")},
        "attributes": attributes(span.attributes),
        "events": [[event.name, attributes(event.attributes)] for event in span.events],
    }


def attributes(pairs):
    return {pair.key: plain(pair.value) for pair in pairs}


def plain(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, kind)


def scores_in(requests):
    """Every score of these requests, in order."""
    return [score for request in requests if request.path == SCORES for score in json.loads(request.body)]


SETTINGS = {
    "env": "art/Email-v0", "model": "art-tiny", "temperature": 0.7, "max_completion_length": 4, "seed": 3,
}  # fmt: skip


def run_info(folder, config=SETTINGS):
    return RunInfo(folder / "mail-1", config)


def solved():
    """Two calls, judged and measured, with the tokens of both replies."""
    history = TokenHistory(
        (
            Span((1, 2, 3, 4, 5)),
            Span((6, 7, 8), 0, (-0.1, -0.2, -0.3), 11),
            Span((9, 10)),
            Span((11, 12, 13, 14), 1, (-0.1, -0.2, -0.3, -0.4), 11),
        )
    )
    turns = (
        Turn(
            'I look.\nsearch("bücher")',
            "Nothing found. ☃",
            -0.1,
            {"cost": -0.1},
            {"name": "search", "arguments": {"query": "bücher"}},
        ),
        Turn(
            'answer("5 €")',
            "Right.",
            1.0,
            {"correct": 1.0, "cost": 0.0},
            {"name": "answer", "arguments": {"text": "5 €"}},
        ),
    )
    return Episode(
        "art/Email-v0",
        "task-7",
        41,
        "What did the books cost?",
        turns,
        (history,),
        Ending.TERMINATED,
        success=True,
        metrics={"searches": 1.0},
        tools=TOOLS,
        judgements={"clarity": Judgement(0.75, "short and clear", {"tone": 0.5})},
        independent_reward=0.8,
    )


def invalid():
    """A reply without a call, then the end; no tokens. Half a surrogate pair is in what was seen."""
    fault = {"kind": "no_call", "message": "no call was found"}
    turns = (Turn("hello", "No call was found. \ud83d", -0.5, {"invalid": -0.5}, None, fault),)
    return Episode("art/Email-v0", "task-8", 42, "Find it.", turns, (), Ending.TRUNCATED, success=False)


def broken():
    """The environment raised at once."""
    return Episode("art/Email-v0", "task-9", 43, "", (), (), Ending.ENV_ERROR, error="KeyError: 'inbox'")


def played(step=3, timed=True):
    """A step's event: the three episodes, the first of them with its times."""
    timing = EpisodeTiming(1_800_000_000.25, (TurnTiming(0.5, 0.125), TurnTiming(0.25, None)))
    episodes = (solved(), invalid(), broken())
    return EpisodesPlayed(step, episodes, (timing, None, None) if timed else None)
