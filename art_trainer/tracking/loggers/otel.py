"""OpenTelemetry: traces by the semantic conventions for generative AI, for any backend that speaks OTLP/HTTP.

::

    invoke_agent ENV           the episode: first observation in, last reply out, scores as events
    ├─ chat MODEL              one reply of the model: new messages in, reply out, tokens
    ├─ execute_tool TOOL       its result: arguments, observation, reward
    ├─ chat MODEL
    …

The conventions are in development (https://opentelemetry.io/docs/specs/semconv/gen-ai/): their names are
written out here, as the package that has them moves them between releases. What they have no name for begins
with ``art.``. A chat's input is what the model had not read before: a trace grows with the episode's length,
not with its square.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from art_trainer.tracking.callbacks import Outcome
from art_trainer.tracking.loggers.base import LoggerError, RunInfo, RunLogger, episode_id, well_formed
from art_trainer.types import Episode, EpisodeTiming, Turn, TurnTiming

_QUEUE = 32_768  # spans: more than a step has, as the SDK drops what comes while its queue is full
_SECOND = 1_000_000_000  # ns
_UNMEASURED = 1_000  # ns; a span of unknown length still comes before what follows it
_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "max_completion_length": "max_tokens"}
"""Settings of the trainer, and their names in a request to a model."""
_exporter_log = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")


class OpenTelemetryLogger(RunLogger):
    """Sends episodes as OpenTelemetry traces. Metrics and checkpoints are ignored.

    The SDK queues spans, sends them in batches from a thread of its own, repeats and gives up. It reads its
    settings from the environment: ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_EXPORTER_OTLP_HEADERS`` and its
    other variables.
    """

    name = "otel"

    def begin(self, run: RunInfo, step: int) -> None:
        """Start the SDK; nothing is sent yet."""
        about = {"art.run.name": run.name, "art.run.tags": run.tags, "art.env_id": run.env_id}
        given = OTELResourceDetector().detect().attributes  # OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
        resource = Resource.create({"service.name": "art-gym", **about, **given})
        queue = None if "OTEL_BSP_MAX_QUEUE_SIZE" in os.environ else _QUEUE
        self._exporter = _Exporter()
        _exporter_log.addFilter(self._exporter.keep_message)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, max_queue_size=queue))
        self._tracer = self._provider.get_tracer("art_trainer")
        self._run = run
        sampling = {name: run.config.get(setting) for setting, name in _SAMPLING.items()}
        self._request = {
            "gen_ai.request.model": run.model,
            **{f"gen_ai.request.{name}": value for name, value in sampling.items()},
        }

    def log_step(
        self,
        step: int,
        metrics: Mapping[str, float],
        episodes: Sequence[Episode],
        timings: Sequence[EpisodeTiming | None],
    ) -> None:
        """Queue the traces of a step's episodes.

        Raises:
            LoggerError: If the last batch could not be sent.
        """
        for index, (episode, timing) in enumerate(zip(episodes, timings, strict=True)):
            self._trace(episode, step, episode_id(step, index), timing)
        self._exporter.check()

    def end(self, outcome: Outcome) -> None:
        """Send what is queued; the SDK gives up after 30 seconds.

        Raises:
            LoggerError: If the last batch could not be sent.
        """
        self._provider.shutdown()
        _exporter_log.removeFilter(self._exporter.keep_message)
        self._exporter.check()

    def _trace(self, episode: Episode, step: int, name: str, timing: EpisodeTiming | None) -> None:
        """Add the spans of an episode, under one that is no child of what the program may be tracing."""
        start = time.time_ns() if timing is None else round(timing.started * 1e6) * 1_000
        common = {
            "gen_ai.provider.name": "art-gym",  # the policy is sampled by the trainer itself
            "gen_ai.conversation.id": f"{self._run.name}/{name}",
        }
        facts = {"art.step": step, "art.episode_id": name, "art.timed": timing is not None}
        attributes = {**common, **self._request, **_agent_attributes(episode), **facts}
        agent = self._start("invoke_agent", episode.env_id, attributes, start, Context())
        took = [TurnTiming()] * len(episode.turns) if timing is None else timing.turns
        end = self._trace_turns(episode, took, start, common, set_span_in_context(agent, Context()))
        for score in _scores(episode):
            agent.add_event("gen_ai.evaluation.result", _clean(score), end)
        _end(agent, end, episode.error)

    def _trace_turns(
        self,
        episode: Episode,
        took: Sequence[TurnTiming],
        now: int,
        common: Mapping[str, Any],
        parent: Context,
    ) -> int:
        """Add a chat and a tool call for each turn, one after the other; return when the last one ended."""
        usage, prompt = token_usage(episode), episode.observation
        for number, (turn, seconds) in enumerate(zip(episode.turns, took, strict=True)):
            facts = {**common, "art.turn": number}
            chat = {**facts, **self._request, **self._chat_attributes(turn, prompt, usage.get(number))}
            chat["art.latency_seconds"] = seconds.reply_seconds
            span = self._start("chat", self._run.model, chat, now, parent, SpanKind.CLIENT)
            now = _end(span, now + _length(seconds.reply_seconds))
            tool = {**facts, **_tool_attributes(turn), "art.execution_seconds": seconds.action_seconds}
            span = self._start("execute_tool", tool["gen_ai.tool.name"], tool, now, parent)
            problem = None if turn.error is None else str(turn.error.get("message", turn.error))
            now = _end(span, now + _length(seconds.action_seconds), problem)
            prompt = turn.observation
        return now

    def _start(
        self,
        operation: str,
        name: str,
        attributes: Mapping[str, Any],
        start: int,
        parent: Context,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        label = well_formed(f"{operation} {name}")
        named = {"gen_ai.operation.name": operation, **attributes}
        return self._tracer.start_span(label, parent, kind, _clean(named), start_time=start)

    def _chat_attributes(self, turn: Turn, prompt: str, usage: tuple[int, int, int] | None) -> dict[str, Any]:
        read, sampled, version = usage or (None, None, None)
        longest = self._request["gen_ai.request.max_tokens"]
        stop = "length" if sampled is not None and sampled == longest else "stop"
        return {
            "gen_ai.response.model": self._run.model,
            "gen_ai.response.finish_reasons": (stop,),
            "gen_ai.usage.input_tokens": read,
            "gen_ai.usage.output_tokens": sampled,
            "gen_ai.input.messages": _messages("user", prompt),
            "gen_ai.output.messages": _messages("assistant", turn.reply, finish_reason=stop),
            "art.policy_version": version,
        }


class _Exporter(OTLPSpanExporter):
    """Remembers whether the last batch was sent, of which the SDK tells nobody."""

    _failed = False
    _message = ""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch, with repeats; called from the SDK's thread."""
        result = super().export(spans)
        self._failed = result is not SpanExportResult.SUCCESS
        return result

    def keep_message(self, record: logging.LogRecord) -> bool:
        """Logging filter: keep the SDK's messages, so that one warning shows the last of them."""
        self._message = record.getMessage()
        return False

    def check(self) -> None:
        """Raise a LoggerError if the last batch was not sent."""
        if self._failed:
            raise LoggerError(f"OTEL_EXPORTER_OTLP_ENDPOINT did not take the last spans: {self._message}")


def token_usage(episode: Episode) -> dict[int, tuple[int, int, int]]:
    """Return by turn the tokens before the reply in its own context, those of the reply, and the version.

    The version is that of the weights that sampled the last token. Without token histories it is empty.
    """
    usage: dict[int, tuple[int, int, int]] = {}
    for history in episode.histories:
        place = 0
        for span in history.spans:
            if span.turn is not None:
                read, sampled, _ = usage.get(span.turn, (place, 0, 0))
                usage[span.turn] = (read, sampled + len(span.token_ids), span.policy_version)
            place += len(span.token_ids)
    return usage


def _agent_attributes(episode: Episode) -> dict[str, Any]:
    last = _messages("assistant", episode.turns[-1].reply) if episode.turns else None
    return {
        "gen_ai.agent.name": episode.env_id,
        "gen_ai.input.messages": _messages("user", episode.observation),
        "gen_ai.output.messages": last,
        "gen_ai.tool.definitions": _as_json(episode.tools) if episode.tools else None,
        "gen_ai.usage.output_tokens": episode.sampled_tokens or None,
        "error.type": None if episode.error is None else episode.ending.value,
        "art.task_id": episode.task_id,
        "art.seed": episode.seed,
        "art.ending": episode.ending.value,
        "art.success": episode.success,
        "art.reward": episode.reward,
        "art.turns": len(episode.turns),
        "art.invalid_actions": episode.invalid_actions,
        "art.unjudged": episode.unjudged,
        **{f"art.metric.{name}": value for name, value in episode.metrics.items()},
    }


def _tool_attributes(turn: Turn) -> dict[str, Any]:
    """The attributes of an action; without a call its tool is ``reply``, or ``invalid_reply``."""
    call = turn.call or {}
    return {
        "gen_ai.tool.name": str(call.get("name", "reply" if turn.error is None else "invalid_reply")),
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.arguments": _as_json(call.get("arguments") or {}),
        "gen_ai.tool.call.result": turn.observation,
        "error.type": None if turn.error is None else "invalid_reply",
        "art.reward": turn.reward,
        **{f"art.term.{name}": value for name, value in turn.score_terms.items()},
    }


def _scores(episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield the attributes of each finite number about the whole episode."""
    numbers = {"reward": episode.reward, "independent_reward": episode.independent_reward}
    numbers |= {"success": None if episode.success is None else float(episode.success)}
    numbers |= {f"term.{name}": value for name, value in episode.score_terms.items()}
    comments = {}
    for judge, judgement in episode.judgements.items():
        numbers[f"judge.{judge}"] = judgement.score
        comments[f"judge.{judge}"] = judgement.explanation
        numbers |= {f"judge.{judge}.{part}": value for part, value in judgement.parts.items()}
    for name, value in numbers.items():
        if value is not None and math.isfinite(value):
            yield {
                "gen_ai.evaluation.name": name,
                "gen_ai.evaluation.score.value": value,
                "gen_ai.evaluation.explanation": comments.get(name) or None,
            }


def _messages(role: str, content: str, **more: str) -> str:
    return _as_json([{"role": role, "parts": [{"type": "text", "content": content}], **more}])


def _as_json(value: Any) -> str:
    """JSON for an attribute; what JSON has no form for is written as ``str`` gives it."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _clean(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that the SDK can encode: without those that are unknown, in well-formed text."""
    return {
        name: well_formed(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }


def _end(span: Span, when: int, problem: str | None = None) -> int:
    """End a span, as failed if there was a problem; return the time."""
    if problem is not None:
        span.set_status(Status(StatusCode.ERROR, well_formed(problem)))
    span.end(when)
    return when


def _length(seconds: float | None) -> int:
    return _UNMEASURED if seconds is None else max(round(seconds * _SECOND), _UNMEASURED)
