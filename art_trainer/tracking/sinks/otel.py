"""OpenTelemetry: traces by the semantic conventions for generative AI, for any backend that speaks OTLP/HTTP.

An episode is an ``invoke_agent`` span over a ``chat`` span for each reply and an ``execute_tool`` span for
each action; its scores are ``gen_ai.evaluation.result`` events of the first. The conventions are in
development (https://opentelemetry.io/docs/specs/semconv/gen-ai/): their names are written out here, as the
package that has them moves them between releases. What they have no name for begins with ``art.``.

OpenTelemetry's own exporter reports of a failure only that there was one, and takes any answer below 400 for
a success. So its encoder is used, but not its sender: a login page, a partial success and the server's
message are seen.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import httpx2
from google.protobuf.json_format import Parse, ParseError  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped] # it brings no types
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SpanEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from art_trainer.tracking.sinks.base import RunInfo, SinkUnavailableError
from art_trainer.tracking.sinks.http import HttpClient
from art_trainer.tracking.sinks.redaction import Redactor
from art_trainer.tracking.sinks.traces import Node, Score, Trace, TraceSink, well_formed

_logger = logging.getLogger(__name__)

_PREFIX = "OTEL_EXPORTER_OTLP_"
_OPERATIONS = {"agent": "invoke_agent", "generation": "chat", "tool": "execute_tool"}
_MAX_SPANS = 512  # of one request
_MAX_CHARACTERS = 2_000_000  # of one request, about; backends take a few MB
_JSON = json.JSONEncoder(ensure_ascii=False, default=str)


class OpenTelemetrySink(TraceSink):
    """Sends episodes as OpenTelemetry traces.

    Args:
        settings: OpenTelemetry's variables, ``OTEL_EXPORTER_OTLP_…``; those for traces win over those for all
            signals. What is missing is looked up in the environment.

    Raises:
        SinkUnavailableError: If the timeout is not a number.
    """

    name = "otel"

    def __init__(self, settings: Mapping[str, str]) -> None:
        known = {**os.environ, **settings}

        def setting(name: str, default: str = "") -> str:
            return known.get(f"{_PREFIX}TRACES_{name}") or known.get(f"{_PREFIX}{name}") or default

        server = known.get(f"{_PREFIX}ENDPOINT") or "http://localhost:4318"
        endpoint = known.get(f"{_PREFIX}TRACES_ENDPOINT") or server.rstrip("/") + "/v1/traces"
        headers = _parse_headers(setting("HEADERS"))
        try:
            timeout = float(setting("TIMEOUT", "10"))
        except ValueError as error:
            raise SinkUnavailableError(f"{_PREFIX}TIMEOUT is {error}: set a number of seconds") from None
        self._connect(endpoint, headers, Redactor(headers.values()), timeout, setting("CERTIFICATE") or None)

    def _connect(
        self,
        endpoint: str,
        headers: Mapping[str, str],
        redactor: Redactor,
        timeout: float,
        certificate: str | None = None,
    ) -> None:
        self.http = HttpClient(redactor, headers, timeout, certificate)
        self._endpoint, self.destination = endpoint, redactor(endpoint)

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin or resume a run; nothing is sent yet."""
        super().open(run, resume=resume)
        about = {"art.run.name": run.name, "art.run.tags": run.tags, "art.env_id": run.env_id}
        self._resource = Resource({"service.name": run.project, **about})

    def send(self, step: int, traces: Iterator[Trace]) -> None:
        """Send the spans of a step in requests of bounded size."""
        for batch in _batches(self._span(trace, node) for trace in traces for node in trace.nodes):
            body = gzip.compress(encode_spans(batch).SerializeToString(), 6)
            encoding = {"Content-Encoding": "gzip"}
            self._check(self.http.post(self._endpoint, body, "application/x-protobuf", **encoding))

    def label(self, node: Node) -> str:
        """The name of a node's span."""
        return f"{_OPERATIONS[node.kind]} {node.name}"

    def attributes(self, trace: Trace, node: Node) -> dict[str, Any]:
        """The attributes of a node's span; ``None`` is left out."""
        special = {"agent": _agent, "generation": _chat, "tool": _tool}[node.kind]
        facts = {f"art.{name}": value for name, value in node.facts.items()}
        return {
            "gen_ai.operation.name": _OPERATIONS[node.kind],
            "gen_ai.provider.name": "art-gym",  # the policy is sampled by the trainer itself
            "gen_ai.conversation.id": f"{trace.run_id}/{trace.episode_id}",
            **special(trace, node),
            **facts,
        }

    def events(self, trace: Trace, node: Node) -> list[SpanEvent]:
        """What happened during a node's span: the scores of an agent."""
        return [_evaluation(score, node.end_ns) for score in trace.scores] if node.kind == "agent" else []

    def _span(self, trace: Trace, node: Node) -> ReadableSpan:
        agent = trace.nodes[0]
        attributes = self.attributes(trace, node)
        return ReadableSpan(
            well_formed(self.label(node)),
            context=_context(trace, node),
            parent=None if node is agent else _context(trace, agent),
            resource=self._resource,
            attributes={
                key: well_formed(value) if isinstance(value, str) else value
                for key, value in attributes.items()
                if value is not None
            },
            events=self.events(trace, node),
            kind=SpanKind.CLIENT if node.kind == "generation" else SpanKind.INTERNAL,
            status=Status() if node.error is None else Status(StatusCode.ERROR, well_formed(node.error)),
            start_time=node.start_ns,
            end_time=node.end_ns,
            instrumentation_scope=InstrumentationScope("art_trainer"),
        )

    def _check(self, reply: httpx2.Response) -> None:
        """Log what the server refused of a request that it took; another answer is an error."""
        kind = reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        answer = ExportTraceServiceResponse()
        try:
            if kind == "application/json":
                Parse(reply.content or b"{}", answer, ignore_unknown_fields=True)
            elif kind in ("", "application/x-protobuf", "application/octet-stream"):
                answer.ParseFromString(reply.content)
            else:
                raise DecodeError(kind)
        except (DecodeError, ParseError):
            raise self.http.unexpected(reply) from None
        self._log_refused(answer.partial_success.rejected_spans, answer.partial_success.error_message)

    def _log_refused(self, count: int, why: str) -> None:
        if count:
            _logger.warning("%s: the server refused %d items: %s", self.name, count, self.http.excerpt(why))


def as_json(value: Any) -> str:
    """JSON for an attribute; what JSON has no form for is written as ``str`` gives it."""
    return _JSON.encode(value)


def _agent(trace: Trace, node: Node) -> dict[str, Any]:
    episode = trace.episode
    return {
        "gen_ai.agent.name": node.name,
        "gen_ai.input.messages": _messages("user", node.input),
        "gen_ai.output.messages": _messages("assistant", node.output) if episode.turns else None,
        "gen_ai.tool.definitions": as_json(episode.tools) if episode.tools else None,
        **_request(trace),
        "gen_ai.usage.output_tokens": episode.sampled_tokens or None,
        "error.type": episode.ending.value if node.error is not None else None,
    }


def _chat(trace: Trace, node: Node) -> dict[str, Any]:
    read, sampled = node.usage or (None, None)
    return {
        **_request(trace),
        "gen_ai.response.model": trace.model,
        "gen_ai.response.finish_reasons": (node.stop,),
        "gen_ai.usage.input_tokens": read,
        "gen_ai.usage.output_tokens": sampled,
        "gen_ai.input.messages": _messages("user", node.input),
        "gen_ai.output.messages": _messages("assistant", node.output, finish_reason=node.stop),
    }


def _tool(trace: Trace, node: Node) -> dict[str, Any]:
    return {
        "gen_ai.tool.name": node.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": node.span_id,
        "gen_ai.tool.call.arguments": as_json(node.input),
        "gen_ai.tool.call.result": node.output,
        "error.type": "invalid_reply" if node.error is not None else None,
    }


def _request(trace: Trace) -> dict[str, Any]:
    sampling = {f"gen_ai.request.{name}": value for name, value in trace.sampling.items()}
    return {"gen_ai.request.model": trace.model, **sampling}


def _messages(role: str, content: str, **more: str) -> str:
    return as_json([{"role": role, "parts": [{"type": "text", "content": content}], **more}])


def _evaluation(score: Score, when: int) -> SpanEvent:
    attributes: Mapping[str, str | float] = {
        "gen_ai.evaluation.name": score.name,
        "gen_ai.evaluation.score.value": score.value,
        **({"gen_ai.evaluation.explanation": score.comment} if score.comment else {}),
    }
    return SpanEvent("gen_ai.evaluation.result", attributes, when)


def _parse_headers(headers: str) -> dict[str, str]:
    """Parse ``name=value,name=value``, percent-encoded, as OpenTelemetry's variable has it."""
    pairs = (header.partition("=") for header in headers.split(","))
    return {unquote(name.strip()).lower(): unquote(value.strip()) for name, sign, value in pairs if sign}


def _context(trace: Trace, node: Node) -> SpanContext:
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(trace.trace_id, 16), int(node.span_id, 16), is_remote=False, trace_flags=sampled)


def _batches(spans: Iterable[ReadableSpan]) -> Iterator[Sequence[ReadableSpan]]:
    batch: list[ReadableSpan] = []
    size = 0
    for span in spans:
        length = sum(len(value) for value in (span.attributes or {}).values() if isinstance(value, str))
        if batch and (len(batch) == _MAX_SPANS or size + length > _MAX_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(span)
        size += length
    if batch:
        yield batch
