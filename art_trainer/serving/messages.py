"""OpenAI's chat messages: checked, and written for a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art_trainer.web.errors import ApiError

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function, as OpenAI's messages have it."""

    id: str
    name: str
    arguments: str
    """JSON, or what the model said instead of it."""

    def to_json(self) -> dict[str, Any]:
        """The call as a message carries it."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a request."""

    role: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """Which call a tool's message answers."""
    name: str = ""

    @classmethod
    def read(cls, data: object, place: str) -> ChatMessage:
        """Check a message.

        Args:
            data: What the client sent.
            place: Where, such as ``messages[3]``.

        Raises:
            ApiError: Where it is not a text message in OpenAI's format.
        """
        if not isinstance(data, Mapping):
            raise ApiError(f"{place} is a {type(data).__name__}: send an object", param=place)
        role = "system" if data.get("role") == "developer" else data.get("role")
        if role not in ROLES:
            raise ApiError(f"{place}.role is {role!r}: use one of {', '.join(ROLES)}", param=f"{place}.role")
        return cls(
            role=role,
            content=_text(data.get("content"), f"{place}.content"),
            calls=_calls(data.get("tool_calls"), f"{place}.tool_calls") if role == "assistant" else (),
            call_id=str(data.get("tool_call_id") or "") if role == "tool" else "",
            name=str(data.get("name") or ""),
        )

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates take it: arguments of calls as objects, where they are."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.name:
            message["name"] = self.name
        if self.role == "tool":
            message["tool_call_id"] = self.call_id
        if self.calls:
            message["tool_calls"] = [_call_for_template(call) for call in self.calls]
        return message

    def to_json(self) -> dict[str, Any]:
        """The message of an assistant as an answer has it."""
        message: dict[str, Any] = {"role": self.role, "content": self.content, "refusal": None}
        if self.calls:
            message["content"] = self.content or None
            message["tool_calls"] = [call.to_json() for call in self.calls]
        return message


def _text(content: object, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ApiError(f"{place} is a {type(content).__name__}: send a text or a list of parts", param=place)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(part, Mapping) or kind != "text" or not isinstance(part.get("text"), str):
            raise ApiError(f"{place}[{index}] is of type {kind!r}: this model reads text only", param=place)
        texts.append(part["text"])
    return "".join(texts)


def _calls(value: object, place: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ApiError(f"{place} is a {type(value).__name__}: send a list", param=place)
    calls = []
    for index, call in enumerate(value):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ApiError(f"{place}[{index}] has no function with a name", param=place)
        arguments = function.get("arguments")
        written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        calls.append(ToolCall(str(call.get("id") or ""), function["name"], written))
    return tuple(calls)


def _call_for_template(call: ToolCall) -> dict[str, Any]:
    written = call.to_json()
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):  # also for a number of more digits than Python reads
        return written
    if isinstance(arguments, dict):
        written["function"]["arguments"] = arguments
    return written
