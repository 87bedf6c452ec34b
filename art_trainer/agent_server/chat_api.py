"""OpenAI's wire format: requests in, completions out, at once or as a stream of events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from art_trainer.agent_server.errors import ApiError
from art_trainer.agent_server.messages import AgentMessage
from art_trainer.agent_server.recording import Reply
from art_trainer.chat import ChatFormat

_MOST_STOPS = 4
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "functions": ([],),
    "audio": (),
    "prediction": (),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
}
"""Fields that would change what is sampled in a way not offered here, and what they may be set to."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for a chat completion.

    ``temperature``, ``top_p`` and the other ways to sample are the training run's, whatever the client asks
    for: what is learned from must be sampled from the policy as it is.
    """

    messages: tuple[AgentMessage, ...]
    tools: tuple[Mapping[str, Any], ...]
    """What the model is shown of the tools; none where it must not call any."""
    model: str
    max_tokens: int | None
    stops: tuple[str, ...]
    seed: int | None
    stream: bool
    include_usage: bool
    logprobs: bool
    token_ids: bool
    one_call: bool

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> ChatRequest:
        """Check a request's body.

        Raises:
            ApiError: Where a field is of a wrong type, or asks for what is not offered.
        """
        for name, neutral in _NEUTRAL.items():
            value = body.get(name)
            if value is not None and value not in neutral:
                allowed = f"leave it out or send {neutral[0]!r}" if neutral else "leave it out"
                raise ApiError(f"{name}={value!r} is not offered here: {allowed}", param=name)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ApiError("messages is a list with at least one message", param="messages")
        options = _typed(body, "stream_options", Mapping) or {}
        return cls(
            messages=tuple(AgentMessage.read(m, f"messages[{i}]") for i, m in enumerate(messages)),
            tools=_tools(body),
            model=_typed(body, "model", str) or "",
            max_tokens=_max_tokens(body),
            stops=_stops(body.get("stop")),
            seed=_typed(body, "seed", int),
            stream=bool(_typed(body, "stream", bool)),
            include_usage=bool(options.get("include_usage")),
            logprobs=bool(_typed(body, "logprobs", bool)),
            token_ids=bool(_typed(body, "return_token_ids", bool)),
            one_call=_typed(body, "parallel_tool_calls", bool) is False,
        )

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Names of the tools that the model is shown."""
        return tuple(str(tool["function"]["name"]) for tool in self.tools)


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's answer on the wire."""

    id: str
    model: str
    request: ChatRequest
    chat: ChatFormat
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, reply: Reply) -> dict[str, Any]:
        """A reply as a chat completion."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.message.content, "refusal": None}
        if reply.message.calls:
            message["content"] = reply.message.content or None
            message["tool_calls"] = [call.to_json() for call in reply.message.calls]
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": _finish_reason(reply)}
        answer = {**self._head("chat.completion"), "choices": [choice], "usage": _usage(reply)}
        self._add_tokens(answer, choice, reply)
        return answer

    def words(self, words: str) -> dict[str, Any]:
        """A chunk with words of a reply that is not complete."""
        return self._chunk({"content": words})

    def first_chunk(self) -> dict[str, Any]:
        """The chunk that says who speaks."""
        return self._chunk({"role": "assistant", "content": ""})

    def last_chunks(self, reply: Reply, said: str) -> Iterator[dict[str, Any]]:
        """The chunks of a stream after the words that were streamed while they were sampled.

        Args:
            reply: The reply, now complete.
            said: The words that were streamed.
        """
        rest = reply.message.content.removeprefix(said)
        if rest:
            yield self.words(rest)
        for index, call in enumerate(reply.message.calls):
            yield self._chunk({"tool_calls": [{"index": index, **call.to_json()}]})
        last = self._chunk({}, _finish_reason(reply))
        self._add_tokens(last, last["choices"][0], reply)
        yield last
        if self.request.include_usage:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": _usage(reply)}

    def _add_tokens(self, answer: dict[str, Any], choice: dict[str, Any], reply: Reply) -> None:
        choice["logprobs"] = _logprobs(reply, self.chat) if self.request.logprobs else None
        if self.request.token_ids:
            choice["token_ids"] = list(reply.sampled.token_ids)
            answer["prompt_token_ids"] = list(reply.thread.context[: reply.prompt_length])

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": dict(delta), "finish_reason": finish, "logprobs": None}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}


def server_sent(data: Mapping[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


STREAM_END = "data: [DONE]\n\n"


def models(name: str, version: int) -> dict[str, Any]:
    """The list of models: the policy, by its bare name and by its name with the version."""
    names = (name, f"{name}@{version}")
    entries = [{"id": known, "object": "model", "created": 0, "owned_by": "art-trainer"} for known in names]
    return {"object": "list", "data": entries}


def _finish_reason(reply: Reply) -> str:
    if reply.message.calls:
        return "tool_calls"
    return "length" if reply.cut else "stop"


def _usage(reply: Reply) -> dict[str, int]:
    sampled = len(reply.sampled.token_ids)
    return {
        "prompt_tokens": reply.prompt_length,
        "completion_tokens": sampled,
        "total_tokens": reply.prompt_length + sampled,
    }


def _logprobs(reply: Reply, chat: ChatFormat) -> dict[str, Any]:
    pairs: Iterable[tuple[int, float]] = zip(reply.sampled.token_ids, reply.sampled.logprobs, strict=True)
    content = []
    for token, logprob in pairs:
        text = chat.decode([token])
        entry = {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        content.append(entry)
    return {"content": content, "refusal": None}


def _typed(body: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = body.get(name)
    wrong_bool = isinstance(value, bool) and kind is int
    if value is not None and (wrong_bool or not isinstance(value, kind)):
        found = type(value).__name__
        raise ApiError(f"{name} is {value!r}, of type {found}: send a {kind.__name__}", param=name)
    return value


def _tools(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        words = f"tool_choice={choice!r} is not offered here: send 'auto' or 'none'"
        raise ApiError(words, param="tool_choice")
    tools: Sequence[Any] = _typed(body, "tools", list) or []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            place = f"tools[{index}]"
            raise ApiError(f"{place} has no function with a name", param=place)
    return () if choice == "none" else tuple(tools)


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value: int | None = _typed(body, name, int)
        if value is not None:
            if value < 1:
                raise ApiError(f"{name} is {value}: send at least 1", param=name)
            return value
    return None


def _stops(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    good = isinstance(stops, list) and all(isinstance(stop, str) and stop for stop in stops)
    if not isinstance(stops, list) or not good or len(stops) > _MOST_STOPS:
        raise ApiError(f"stop is {value!r}: send up to {_MOST_STOPS} texts, none empty", param="stop")
    return tuple(stops)
