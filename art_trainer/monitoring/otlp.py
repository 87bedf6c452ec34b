"""Spans over OTLP/HTTP, with every failure told to the caller.

OpenTelemetry's exporter encodes, compresses, reads the usual environment variables and tries again within its
time limit, but says of a failure only that there was one, and takes any reply below 400 for success. Its
HTTP session is replaced here by one that remembers the last reply, so that a login page, a partial success
and the server's own words are seen.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import requests
from google.protobuf.message import DecodeError  # type: ignore[import-untyped] # it brings no types
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from art_trainer.monitoring.events import SinkError
from art_trainer.monitoring.redaction import Redactor
from art_trainer.monitoring.replies import nonsense, refusal
from art_trainer.monitoring.traces import well_formed

_MOST_SPANS = 512
_MOST_CHARACTERS = 2_000_000  # of one request, about; backends take a few MB
_JSON = json.JSONEncoder(ensure_ascii=False, default=str)
_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


class OtlpSender:
    """Sends spans and waits for the server's word.

    Args:
        redactor: Masks secrets in the words of a failure.
        endpoint: The full address of the traces; by default as ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` or
            ``OTEL_EXPORTER_OTLP_ENDPOINT`` say, else ``http://localhost:4318/v1/traces``.
        headers: Of each request, beside those that ``OTEL_EXPORTER_OTLP_HEADERS`` names.
        timeout: Most seconds for one request with its repetitions; by default as
            ``OTEL_EXPORTER_OTLP_TIMEOUT`` says, else 10.

    Attributes:
        rejected: How many spans a server has refused in replies that otherwise took the request.
    """

    def __init__(
        self,
        redactor: Redactor,
        *,
        endpoint: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        self.rejected = 0
        self._redactor = redactor
        self._session = _Session()
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint, headers=headers, timeout=timeout, session=self._session
        )

    def send(self, spans: Iterable[ReadableSpan]) -> None:
        """Send spans in requests of bounded size.

        Raises:
            SinkUnavailableError: Where the server refused the key.
            SinkError: Where a request failed in any other way; those before it were taken.
        """
        for batch in _batches(spans):
            self._send(batch)

    def close(self) -> None:
        """Give up the connection."""
        with _silence():
            self._exporter.shutdown()  # type: ignore[no-untyped-call] # its signature lacks them

    def _send(self, batch: Sequence[ReadableSpan]) -> None:
        self._session.reply, self._session.fault = None, None
        with _silence():
            result = self._exporter.export(batch)
        reply = self._session.reply
        if reply is not None and reply.status_code >= 300:
            raise refusal(reply.status_code, reply.text, self._redactor)
        if result is not SpanExportResult.SUCCESS or reply is None:
            fault = self._session.fault
            words = "spans could not be encoded or are too large" if fault is None else repr(fault)
            raise SinkError(f"spans were not delivered: {self._redactor(words)}")
        self.rejected += self._rejected(reply)

    def _rejected(self, reply: requests.Response) -> int:
        """How many spans the server took no notice of; it must not be sent them again."""
        kind = reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        try:
            if not reply.content:
                return 0
            if kind == "application/json":
                return int((reply.json().get("partialSuccess") or {}).get("rejectedSpans", 0))
            if kind in ("", "application/x-protobuf", "application/octet-stream"):
                answer = ExportTraceServiceResponse.FromString(reply.content)
                return int(answer.partial_success.rejected_spans)
        except (DecodeError, ValueError, AttributeError, TypeError):
            pass
        raise nonsense("spans", reply.text, self._redactor)


class SpanMaker:
    """Makes finished spans with given ids and times.

    Args:
        scope: Name of what made them.
        resource: Attributes that all of them share.
    """

    def __init__(self, scope: str, resource: Mapping[str, AttributeValue]) -> None:
        self._scope = InstrumentationScope(scope)
        self._resource = Resource(resource)

    def span(
        self,
        name: str,
        trace_id: str,
        span_id: str,
        parent_id: str | None,
        times: tuple[int, int],
        attributes: Mapping[str, AttributeValue | None],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        error: str | None = None,
        events: Sequence[Event] = (),
    ) -> ReadableSpan:
        """Make one span; attributes that are ``None`` are left out.

        Args:
            name: What the span is called.
            trace_id: 32 hexadecimal digits.
            span_id: 16 hexadecimal digits.
            parent_id: The parent's; ``None`` for a root.
            times: Start and end, Unix time in ns.
            attributes: By name.
            kind: OpenTelemetry's kind of span.
            error: What went wrong; ``None`` leaves the status unset.
            events: What happened during it.
        """
        return ReadableSpan(
            well_formed(name),
            context=_context(trace_id, span_id),
            parent=None if parent_id is None else _context(trace_id, parent_id),
            resource=self._resource,
            attributes={key: _plain(value) for key, value in attributes.items() if value is not None},
            events=events,
            kind=kind,
            status=Status() if error is None else Status(StatusCode.ERROR, well_formed(error)),
            start_time=times[0],
            end_time=times[1],
            instrumentation_scope=self._scope,
        )


def as_json(value: Any) -> str:
    """JSON for an attribute; what JSON has no form for is written as ``str`` gives it."""
    return _JSON.encode(value)


def _plain(value: AttributeValue) -> AttributeValue:
    return well_formed(value) if isinstance(value, str) else value


def _context(trace_id: str, span_id: str) -> SpanContext:
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=sampled)


def _batches(spans: Iterable[ReadableSpan]) -> Iterator[list[ReadableSpan]]:
    batch: list[ReadableSpan] = []
    size = 0
    for span in spans:
        length = sum(len(value) for value in (span.attributes or {}).values() if isinstance(value, str))
        if batch and (len(batch) == _MOST_SPANS or size + length > _MOST_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(span)
        size += length
    if batch:
        yield batch


class _Session(requests.Session):
    """Remembers how its last request went."""

    def __init__(self) -> None:
        super().__init__()
        self.reply: requests.Response | None = None
        self.fault: requests.RequestException | None = None
        # Without this a password for the host in ~/.netrc takes the place of the Authorization header.
        self.auth = _as_it_is

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send, and note the reply or the fault."""
        self.reply, self.fault = None, None
        try:
            self.reply = super().send(request, **options)
        except requests.RequestException as fault:
            self.fault = fault
            raise
        return self.reply


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


@contextmanager
def _silence() -> Iterator[None]:
    """Keep this thread's words out of the exporter's log: a failure is raised, and counted, by the caller."""
    thread = threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger = logging.getLogger(_LOGGER)
    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)
