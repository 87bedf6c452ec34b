"""Langfuse: an observation tree and scores for every episode, one session a run.

Spans go over OTLP, with the attributes by which Langfuse knows its own terms, and scores to its scores
endpoint. The SDK's tracer and score queue are not used: they log a failure and drop what failed. Langfuse
goes by ids, so what comes twice replaces itself; a score only if its time is the same too, so it has one that
follows from the step.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import langfuse
from langfuse import LangfuseOtelSpanAttributes as _Names
from opentelemetry.sdk.trace import Event as SpanEvent

from art_trainer.tracking.sinks.base import required
from art_trainer.tracking.sinks.otel import OpenTelemetrySink, as_json
from art_trainer.tracking.sinks.redaction import Redactor
from art_trainer.tracking.sinks.traces import Node, Trace, digest

_SCORES_PER_REQUEST = 500  # the endpoint takes 1 MB; a score is some 300 bytes


class LangfuseSink(OpenTelemetrySink):
    """Shows episodes in Langfuse.

    Args:
        settings: ``LANGFUSE_PUBLIC_KEY``, ``LANGFUSE_SECRET_KEY`` and ``LANGFUSE_HOST``.

    Raises:
        SinkUnavailableError: If a key is missing.
    """

    name = "langfuse"

    def __init__(self, settings: Mapping[str, str]) -> None:
        public, secret = required(settings, self.name, "LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")
        host = (settings.get("LANGFUSE_HOST") or "https://cloud.langfuse.com").rstrip("/")
        password = base64.b64encode(f"{public}:{secret}".encode()).decode()
        headers = {
            "Authorization": f"Basic {password}",
            # The server reads the attributes as the SDK of this name and version writes them.
            "x-langfuse-sdk-name": "python",
            "x-langfuse-sdk-version": langfuse.__version__,
            "x-langfuse-public-key": public,
            "x-langfuse-ingestion-version": "4",
        }
        redactor = Redactor([public, secret, password])
        self._connect(f"{host}/api/public/otel/v1/traces", headers, redactor, timeout=5.0)
        # The public key names the project; its digest tells another project from this one.
        self.destination = f"{redactor(host)} project {digest(public, 4)}"
        self._scores_url = f"{host}/api/public/scores"

    def send(self, step: int, traces: Iterator[Trace]) -> None:
        """Send a step's spans, then its scores."""
        whole = list(traces)
        super().send(step, iter(whole))
        scores = (score for trace in whole for score in _scores(trace))
        while batch := list(islice(scores, _SCORES_PER_REQUEST)):
            self._send_scores(batch)

    def label(self, node: Node) -> str:
        """The name of an observation."""
        return "reply" if node.kind == "generation" else node.name

    def attributes(self, trace: Trace, node: Node) -> dict[str, Any]:
        """The attributes of an observation; Langfuse filters by the trace's on each of them."""
        special = {"agent": _agent, "generation": _generation, "tool": _tool}[node.kind]
        return {
            _Names.TRACE_NAME: trace.episode.env_id,
            _Names.TRACE_TAGS: (*self.run.tags, self.run.project),
            _Names.TRACE_SESSION_ID: trace.run_id,
            _Names.VERSION: f"step-{trace.nodes[0].facts['step']}",
            _Names.OBSERVATION_TYPE: node.kind,
            _Names.OBSERVATION_LEVEL: None if node.error is None else "ERROR",
            _Names.OBSERVATION_STATUS_MESSAGE: node.error,
            **special(trace, node),
            **{
                f"{_Names.OBSERVATION_METADATA}.{name}": as_json(value)
                for name, value in node.facts.items()
                if value is not None
            },
        }

    def events(self, trace: Trace, node: Node) -> list[SpanEvent]:
        """Scores are no events here: they have an endpoint."""
        return []

    def _send_scores(self, scores: Sequence[Mapping[str, Any]]) -> None:
        """Send scores; those that the server refuses (HTTP 207) must not be sent again."""
        reply = self.http.post(self._scores_url, json.dumps(scores), "application/json")
        try:
            answer = reply.json()
            errors = [error["message"] for error in answer.get("errors") or ()]
            self._log_refused(int(answer.get("rejected", 0)), "; ".join(errors))
        except (ValueError, AttributeError, TypeError, KeyError):
            raise self.http.unexpected(reply) from None


def _agent(trace: Trace, node: Node) -> dict[str, Any]:
    shown = {name: node.facts[name] for name in ("ending", "success", "reward")}
    return {
        _Names.IS_APP_ROOT: True,
        _Names.OBSERVATION_INPUT: node.input,
        _Names.OBSERVATION_OUTPUT: as_json({"last_reply": node.output, **shown}),
    }


def _generation(trace: Trace, node: Node) -> dict[str, Any]:
    usage = None if node.usage is None else dict(zip(("input", "output"), node.usage, strict=True))
    return {
        _Names.OBSERVATION_MODEL: trace.model,
        _Names.OBSERVATION_MODEL_PARAMETERS: as_json(trace.sampling),
        _Names.OBSERVATION_USAGE_DETAILS: None if usage is None else as_json(usage),
        _Names.OBSERVATION_INPUT: as_json([{"role": "user", "content": node.input}]),
        _Names.OBSERVATION_OUTPUT: as_json({"role": "assistant", "content": node.output}),
    }


def _tool(trace: Trace, node: Node) -> dict[str, Any]:
    return {_Names.OBSERVATION_INPUT: as_json(node.input), _Names.OBSERVATION_OUTPUT: node.output}


def _scores(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield a trace's scores, as the scores endpoint takes them."""
    when = datetime.fromtimestamp(trace.scored_ns / 1e9, UTC).isoformat(timespec="milliseconds")
    for score in trace.scores:
        yield {
            "id": score.score_id,
            "traceId": trace.trace_id,
            "name": score.name,
            "value": int(score.value) if score.boolean else score.value,
            "dataType": "BOOLEAN" if score.boolean else "NUMERIC",
            "timestamp": when,
            **({"comment": score.comment} if score.comment else {}),
        }
