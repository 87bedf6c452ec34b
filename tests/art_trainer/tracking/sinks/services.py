"""The services behind the sinks: real stores in a folder, HTTP servers in memory, and what arrived there."""

from __future__ import annotations

import base64
import gzip
import json
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from art_trainer.tracking.sinks.base import Sink, make_sink
from tests.art_trainer.tracking.sinks.sink_runs import MadeRun

Request = namedtuple("Request", "path headers body")
Answer = namedtuple("Answer", "status body kind", defaults=["", "application/json"])

HOST = "receiver"
TRACES, OTEL_TRACES = "/api/public/otel/v1/traces", "/v1/traces"
SCORES = "/api/public/scores"
PUBLIC, SECRET = "pk-lf-0123456789abcdef", "sk-lf-fedcba9876543210"
Metrics = Iterable[tuple[tuple[int, str], float]]
Rewards = Iterable[tuple[str, float]]


class Service:
    """A service of one kind; a test has one of its own.

    Each kind has ``rewards``, what arrived by episodes' ids. Stores also have ``metrics``, by step and
    dashboard name, and ``place``, their folder; HTTP services ``arrived``, what they took as plain data.
    """

    settings: Mapping[str, str] = MappingProxyType({})

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder

    def sink(self) -> Sink:
        return make_sink(self.name, self.settings)

    @contextmanager
    def outage(self, run: MadeRun) -> Iterator[None]:
        """The service takes nothing: a file is where its folder should be."""
        place = self.place(run)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("no folder")
        yield
        place.unlink()


class TensorBoard(Service):
    def place(self, run: MadeRun) -> Path:
        return run.folder / "tensorboard"

    def read(self, run: MadeRun) -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        sizes = {"scalars": 0, "tensors": 0}
        return EventAccumulator(str(self.place(run)), size_guidance=sizes).Reload()

    def texts(self, run: MadeRun, name: str) -> list[str]:
        events = self.read(run).Tensors(f"{name}/text_summary")
        return [event.tensor_proto.string_val[0].decode() for event in events]

    def metrics(self, run: MadeRun) -> Metrics:
        read = self.read(run)
        for name in read.Tags()["scalars"]:
            yield from (((event.step, name), event.value) for event in read.Scalars(name))

    def rewards(self, run: MadeRun) -> Rewards:
        heads = [text.partition(":") for text in self.texts(run, "episode")]
        return [(head, float(rest.split()[1].strip(","))) for head, _, rest in heads]


class HttpService(Service):
    """A server in this process that takes everything, unless ``wrong`` has another answer.

    ``taken`` are the requests with a status below 300, ``accepted`` those for which nothing was wrong.
    """

    secrets: tuple[str, ...]

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.wrong: Callable[[int, Request], Answer | None] = lambda number, request: None
        self.accepted: list[Request] = []
        self.taken: list[Request] = []
        self._numbers = count()
        self.settings = self.settings_for(f"http://{HOST}")

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.host != HOST:
            raise httpx2.ConnectError("nobody there")
        body = request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        record = Request(request.url.path, dict(request.headers), body)
        wrong = self.wrong(next(self._numbers), record)
        if wrong is None:
            self.accepted.append(record)
        answer = wrong or self.answer(record)
        if answer.status < 300:
            self.taken.append(record)
        return httpx2.Response(answer.status, content=answer.body, headers={"Content-Type": answer.kind})

    def answer(self, request: Request) -> Answer:
        return Answer(200, "{}")

    @contextmanager
    def outage(self, run: MadeRun) -> Iterator[None]:
        self.wrong = lambda number, request: Answer(503, "down for maintenance")
        yield
        self.wrong = lambda number, request: None


class Langfuse(HttpService):
    secrets = (PUBLIC, SECRET, base64.b64encode(f"{PUBLIC}:{SECRET}".encode()).decode())

    def settings_for(self, url: str) -> dict[str, str]:
        return {"LANGFUSE_PUBLIC_KEY": PUBLIC, "LANGFUSE_SECRET_KEY": SECRET, "LANGFUSE_HOST": url}

    def answer(self, request: Request) -> Answer:
        return Answer(202, '{"message": "Accepted"}') if request.path == SCORES else Answer(200, "{}")

    def arrived(self) -> list[Any]:
        return [*spans_in(self.taken, TRACES), *scores_in(self.taken)]

    def rewards(self, run: MadeRun) -> Rewards:
        traces = {
            span["trace"]: json.loads(span["attributes"]["langfuse.observation.metadata.episode_id"])
            for span in spans_in(self.taken, TRACES)
            if not span["parent"]
        }
        scores = [score for score in scores_in(self.taken) if score["name"] == "reward"]
        by_id = {(score["id"], score["timestamp"]): score for score in scores}  # as Langfuse keeps them
        return [(traces[score["traceId"]], score["value"]) for score in by_id.values()]


class OpenTelemetry(HttpService):
    secrets = ("s3cr3t/value",)

    def settings_for(self, url: str) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=s3cr3t%2Fvalue"}

    def arrived(self) -> list[Any]:
        return spans_in(self.taken, OTEL_TRACES)

    def rewards(self, run: MadeRun) -> Rewards:
        spans = [span for span in self.arrived() if not span["parent"]]
        agents = {(span["trace"], span["id"]): span["attributes"] for span in spans}
        return [(about["art.episode_id"], about["art.reward"]) for about in agents.values()]


KINDS: dict[str, type[Service]] = {
    "tensorboard": TensorBoard,
    "langfuse": Langfuse,
    "otel": OpenTelemetry,
}
HTTP_KINDS = tuple(name for name, kind in KINDS.items() if issubclass(kind, HttpService))


def scores_in(requests: Iterable[Request]) -> list[dict[str, Any]]:
    """Every score of these requests, in order."""
    return [score for request in requests if request.path == SCORES for score in json.loads(request.body)]


def spans_in(requests: Iterable[Request], path: str) -> list[dict[str, Any]]:
    """Every span of these requests as plain data, in order."""
    messages = [ExportTraceServiceRequest.FromString(one.body) for one in requests if one.path == path]
    return [
        _plain_span(span, _attributes(part.resource.attributes))
        for message in messages
        for part in message.resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    ]


def _plain_span(span: Any, resource: Mapping[str, Any]) -> dict[str, Any]:
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
        "attributes": _attributes(span.attributes),
        "events": [[event.name, _attributes(event.attributes)] for event in span.events],
    }


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, kind)
