"""Episodes as the spans that Langfuse reads: agent, generation and tool observations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langfuse import LangfuseOtelSpanAttributes as _Names
from opentelemetry.sdk.trace import ReadableSpan

from art_trainer.monitoring.events import RunInfo
from art_trainer.monitoring.otlp import SpanMaker, as_json
from art_trainer.monitoring.traces import Action, Generation, Trace


class LangfuseSpans:
    """Writes traces with the attributes by which Langfuse's OTLP endpoint knows its own notions.

    Args:
        run: The run; its project and tags become tags.
    """

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._spans = SpanMaker("art_trainer", {"service.name": "art_trainer"})

    def spans(self, trace: Trace) -> Iterator[ReadableSpan]:
        """An agent, and a generation and a tool for each turn."""
        # Langfuse filters by these on every observation, not on the trace alone.
        common = {
            _Names.TRACE_SESSION_ID: trace.run_id,
            _Names.TRACE_NAME: self._run.env_id,
            _Names.TRACE_TAGS: (*self._run.tags, self._run.project),
            _Names.VERSION: f"step-{trace.step}",
        }
        yield self._agent(trace, common)
        for generation, action in zip(trace.generations, trace.actions, strict=True):
            yield self._generation(trace, generation, common)
            yield self._action(trace, action, common)

    def _agent(self, trace: Trace, common: Mapping[str, Any]) -> ReadableSpan:
        episode = trace.episode
        output = {
            "last_reply": episode.turns[-1].reply if episode.turns else None,
            "ending": episode.ending.value,
            "success": episode.success,
            "reward": episode.reward,
        }
        metadata = {
            "episode_id": trace.episode_id,
            "step": trace.step,
            "env_id": episode.env_id,
            "task_id": episode.task_id,
            "seed": episode.seed,
            "turns": len(episode.turns),
            "invalid_actions": episode.invalid_actions,
            "sampled_tokens": episode.sampled_tokens,
            "metrics": dict(episode.metrics) or None,
            "unjudged": episode.unjudged,
            "timed": trace.timed,
        }
        attributes = {
            **common,
            _Names.IS_APP_ROOT: True,
            _Names.OBSERVATION_TYPE: "agent",
            _Names.OBSERVATION_INPUT: episode.observation,
            _Names.OBSERVATION_OUTPUT: as_json(output),
            **self._metadata(metadata),
            **self._level(episode.error),
        }
        times = (trace.start_ns, trace.end_ns)
        return self._spans.span(
            episode.env_id, trace.trace_id, trace.span_id, None, times, attributes, error=episode.error
        )

    def _generation(self, trace: Trace, generation: Generation, common: Mapping[str, Any]) -> ReadableSpan:
        sampling = trace.sampling
        parameters = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        known = {name: value for name, value in parameters.items() if value is not None}
        usage = None
        if generation.input_tokens is not None and generation.output_tokens is not None:
            usage = as_json({"input": generation.input_tokens, "output": generation.output_tokens})
        metadata = {
            "turn": generation.turn,
            "policy_version": generation.policy_version,
            "latency_seconds": generation.seconds,
        }
        attributes = {
            **common,
            _Names.OBSERVATION_TYPE: "generation",
            _Names.OBSERVATION_MODEL: sampling.model,
            _Names.OBSERVATION_MODEL_PARAMETERS: as_json(known),
            _Names.OBSERVATION_USAGE_DETAILS: usage,
            _Names.OBSERVATION_INPUT: as_json(generation.prompt),
            _Names.OBSERVATION_OUTPUT: as_json({"role": "assistant", "content": generation.reply}),
            **self._metadata(metadata),
        }
        times = (generation.start_ns, generation.end_ns)
        return self._spans.span("reply", trace.trace_id, generation.span_id, trace.span_id, times, attributes)

    def _action(self, trace: Trace, action: Action, common: Mapping[str, Any]) -> ReadableSpan:
        metadata = {
            "turn": action.turn,
            "reward": action.reward,
            "score_terms": dict(action.score_terms) or None,
            "execution_seconds": action.seconds,
        }
        attributes = {
            **common,
            _Names.OBSERVATION_TYPE: "tool",
            _Names.OBSERVATION_INPUT: as_json(action.arguments),
            _Names.OBSERVATION_OUTPUT: action.result,
            **self._metadata(metadata),
            **self._level(action.error),
        }
        times = (action.start_ns, action.end_ns)
        return self._spans.span(
            action.tool, trace.trace_id, action.span_id, trace.span_id, times, attributes, error=action.error
        )

    def _metadata(self, values: Mapping[str, Any]) -> dict[str, str]:
        prefix = _Names.OBSERVATION_METADATA
        return {f"{prefix}.{key}": as_json(value) for key, value in values.items() if value is not None}

    def _level(self, error: str | None) -> dict[str, str]:
        if error is None:
            return {}
        return {_Names.OBSERVATION_LEVEL: "ERROR", _Names.OBSERVATION_STATUS_MESSAGE: error}
