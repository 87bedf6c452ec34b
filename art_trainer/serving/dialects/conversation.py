"""Conversations of all dialects: messages, as the recording of an episode and the chat template read them."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from jinja2 import TemplateError
from pydantic import BeforeValidator, Field

from art_trainer.serving.dialects.chat import AgentChat, json_text
from art_trainer.serving.dialects.requests import DialectRequest, StrictModel
from art_trainer.serving.http.middleware import ApiError

Tool = Mapping[str, Any]
_TOOL_LABELS = frozenset({"type", "strict", "cache_control", "eager_input_streaming"})
_NOTHING: tuple[object, ...] = (None, False, [], {}, ["direct"])
"""Values of a tool's other fields that change nothing; ``direct`` are calls by the model itself."""


def join_parts(content: object, kinds: Sequence[str] = ("text",)) -> object:
    """The text of a message's content, which may be a list of parts of some types."""
    if not isinstance(content, list):
        return content
    texts = [
        part.get("text") if isinstance(part, Mapping) and part.get("type") in kinds else None
        for part in content
    ]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"this model reads only parts of type {' or '.join(map(repr, kinds))}")
    return "".join(map(str, texts))


class FunctionCall(StrictModel):
    """Name and arguments of a call; the arguments are JSON, or what the model wrote instead."""

    name: str
    arguments: Annotated[str, BeforeValidator(json_text)] = ""

    def parsed(self) -> object:
        """The arguments as a JSON value; the text if it is none."""
        try:
            return json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):  # also for integers of more digits than Python reads
            return self.arguments


class ToolCall(StrictModel):
    """A call of a function in an assistant's message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


def _known_role(role: object) -> object:
    return "system" if role == "developer" else role


class ChatMessage(StrictModel):
    """One message of a conversation; fields that OpenAI adds to its own replies are ignored."""

    role: Annotated[Literal["system", "user", "assistant", "tool"], BeforeValidator(_known_role)]
    content: Annotated[str, BeforeValidator(join_parts)] = ""
    tool_calls: list[ToolCall] = Field(default_factory=list)
    tool_call_id: str = ""
    name: str = ""

    def for_template(self) -> dict[str, Any]:
        """The message for a chat template: arguments of calls as objects if they are JSON objects."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.name:
            message["name"] = self.name
        if self.role == "tool":
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = calls = [call.model_dump() for call in self.tool_calls]
            for call, written in zip(self.tool_calls, calls, strict=True):
                arguments = call.function.parsed()
                written["function"]["arguments"] = (
                    arguments if isinstance(arguments, dict) else call.function.arguments
                )
        return message


class ConversationRequest(DialectRequest):
    """A request for the next message of a conversation."""

    @abc.abstractmethod
    def conversation(self) -> list[ChatMessage]:
        """The messages that the model sees."""

    @abc.abstractmethod
    def shown_tools(self) -> list[Tool]:
        """The tools that the model sees, as in chat completions."""

    def variables(self, chat: AgentChat) -> Mapping[str, Any]:
        """Variables of the chat template.

        Raises:
            ApiError: The template does not read one.
        """
        return {}

    def prompts(self, chat: AgentChat) -> list[list[int]]:
        """The tokens of the conversation.

        Raises:
            ApiError: The chat template refuses the messages, or does not read a variable that is set.
        """
        messages = [message.for_template() for message in self.conversation()]
        try:
            return [chat.prompt(messages, self.shown_tools(), **self.variables(chat))]
        except (TemplateError, TypeError) as error:
            raise template_error(error) from error


def check_function(tool: Mapping[str, Any], schema: str) -> None:
    """Check a tool's name, and the JSON schema of its arguments in the field ``schema``.

    Raises:
        ValueError: It has no name, or its schema is none.
    """
    parameters = tool.get(schema) or {}
    if not isinstance(tool.get("name"), str):
        raise ValueError("a tool needs a name")
    if not (isinstance(parameters, Mapping) and isinstance(parameters.get("properties", {}), Mapping)):
        raise ValueError(f"{schema} of the tool {tool['name']!r} is no JSON schema of an object")


def function_tool(tool: Mapping[str, Any], schema: str) -> dict[str, Any]:
    """A tool of another API as a function of chat completions.

    Raises:
        ValueError: As for :func:`check_function`, or a field would be lost that could change a reply.
    """
    check_function(tool, schema)
    for name in tool.keys() - {"name", "description", schema} - _TOOL_LABELS:
        if tool[name] not in _NOTHING:
            raise ValueError(f"{name} of the tool {tool['name']!r} is not supported, leave it out")
    described = {"description": tool["description"]} if tool.get("description") else {}
    return {"name": tool["name"], **described, "parameters": tool.get(schema) or {}}


def argument_names(tools: Sequence[Tool]) -> dict[str, tuple[str, ...]]:
    """The names of tools, each with the names of its arguments in their order."""
    return {
        tool["function"]["name"]: tuple((tool["function"].get("parameters") or {}).get("properties") or {})
        for tool in tools
    }


def template_error(error: TemplateError | TypeError) -> ApiError:
    """The chat template refuses the messages."""
    return ApiError(f"the model's chat template refuses these messages: {error}", param="messages")
