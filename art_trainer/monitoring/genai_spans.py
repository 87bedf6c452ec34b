"""Episodes as spans by OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanKind

from art_trainer.monitoring.events import RunInfo
from art_trainer.monitoring.otlp import SpanMaker, as_json
from art_trainer.monitoring.traces import Action, Generation, Score, Trace

PROVIDER = "art-gym"
"""``gen_ai.provider.name``: the policy is sampled by the trainer itself."""


class GenAiSpans:
    """Writes traces with the conventions' attributes.

    Args:
        run: The run; its name, project and tags become attributes of the resource.
    """

    def __init__(self, run: RunInfo) -> None:
        resource = {
            "service.name": run.project,
            "art.run.name": run.name,
            "art.run.tags": run.tags,
            "art.env_id": run.env_id,
        }
        self._spans = SpanMaker("art_trainer", resource)

    def spans(self, trace: Trace) -> Iterator[ReadableSpan]:
        """An ``invoke_agent`` span, and a ``chat`` and an ``execute_tool`` span for each turn."""
        yield self._agent(trace)
        for generation, action in zip(trace.generations, trace.actions, strict=True):
            yield self._chat(trace, generation)
            yield self._tool(trace, action)

    def _agent(self, trace: Trace) -> ReadableSpan:
        episode = trace.episode
        said = [_message("assistant", turn.reply) for turn in episode.turns[-1:]]
        attributes = {
            **_common(trace, "invoke_agent"),
            "gen_ai.agent.name": episode.env_id,
            "gen_ai.input.messages": as_json([_message("user", episode.observation)]),
            "gen_ai.output.messages": as_json(said) if said else None,
            "gen_ai.tool.definitions": as_json(episode.tools) if episode.tools else None,
            **_request(trace),
            "gen_ai.usage.output_tokens": episode.sampled_tokens or None,
            "art.run_id": trace.run_id,
            "art.step": trace.step,
            "art.task_id": episode.task_id,
            "art.seed": episode.seed,
            "art.ending": episode.ending.value,
            "art.success": episode.success,
            "art.reward": episode.reward,
            "art.turns": len(episode.turns),
            "art.invalid_actions": episode.invalid_actions,
            "art.timed": trace.timed,
            "error.type": episode.ending.value if episode.error is not None else None,
            **{f"art.metric.{name}": value for name, value in episode.metrics.items()},
        }
        return self._spans.span(
            f"invoke_agent {episode.env_id}",
            trace.trace_id,
            trace.span_id,
            None,
            (trace.start_ns, trace.end_ns),
            attributes,
            error=episode.error,
            events=[_evaluation(score, trace.end_ns) for score in trace.scores],
        )

    def _chat(self, trace: Trace, generation: Generation) -> ReadableSpan:
        prompt = [_message(message["role"], message["content"]) for message in generation.prompt]
        said = _message("assistant", generation.reply) | {"finish_reason": generation.stop}
        attributes = {
            **_common(trace, "chat"),
            **_request(trace),
            "gen_ai.response.model": trace.sampling.model,
            "gen_ai.response.finish_reasons": (generation.stop,),
            "gen_ai.usage.input_tokens": generation.input_tokens,
            "gen_ai.usage.output_tokens": generation.output_tokens,
            "gen_ai.input.messages": as_json(prompt),
            "gen_ai.output.messages": as_json([said]),
            "art.turn": generation.turn,
            "art.policy_version": generation.policy_version,
            "art.latency_seconds": generation.seconds,
        }
        return self._spans.span(
            f"chat {trace.sampling.model}",
            trace.trace_id,
            generation.span_id,
            trace.span_id,
            (generation.start_ns, generation.end_ns),
            attributes,
            kind=SpanKind.CLIENT,
        )

    def _tool(self, trace: Trace, action: Action) -> ReadableSpan:
        attributes = {
            **_common(trace, "execute_tool"),
            "gen_ai.tool.name": action.tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": action.span_id,
            "gen_ai.tool.call.arguments": as_json(action.arguments),
            "gen_ai.tool.call.result": action.result,
            "art.turn": action.turn,
            "art.reward": action.reward,
            "art.execution_seconds": action.seconds,
            "error.type": "invalid_reply" if action.error is not None else None,
            **{f"art.term.{name}": value for name, value in action.score_terms.items()},
        }
        return self._spans.span(
            f"execute_tool {action.tool}",
            trace.trace_id,
            action.span_id,
            trace.span_id,
            (action.start_ns, action.end_ns),
            attributes,
            error=action.error,
        )


def _common(trace: Trace, operation: str) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.conversation.id": f"{trace.run_id}/{trace.episode_id}",
    }


def _request(trace: Trace) -> dict[str, Any]:
    return {
        "gen_ai.request.model": trace.sampling.model,
        "gen_ai.request.temperature": trace.sampling.temperature,
        "gen_ai.request.top_p": trace.sampling.top_p,
        "gen_ai.request.max_tokens": trace.sampling.max_tokens,
    }


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def _evaluation(score: Score, when: int) -> Event:
    attributes: Mapping[str, str | float] = {
        "gen_ai.evaluation.name": score.name,
        "gen_ai.evaluation.score.value": score.value,
        **({"gen_ai.evaluation.explanation": score.comment} if score.comment else {}),
    }
    return Event("gen_ai.evaluation.result", attributes, when)
