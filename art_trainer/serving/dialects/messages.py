"""Anthropic's Messages API: the request, and its response.

Source: the references of ``/v1/messages`` and ``/v1/messages/count_tokens`` in Anthropic's API documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from art_trainer.inference.sampling import SamplingParams
from art_trainer.serving.dialects.batch_scheduler import GenerationOutput
from art_trainer.serving.dialects.chat import json_text
from art_trainer.serving.dialects.conversation import (
    ChatMessage,
    ConversationRequest,
    FunctionCall,
    Tool,
    ToolCall,
    argument_names,
    function_tool,
    join_parts,
)
from art_trainer.serving.dialects.replies import StopConfig
from art_trainer.serving.dialects.requests import (
    Generation,
    ModelName,
    StopString,
    StrictModel,
    Temperature,
    TokenCount,
    TopP,
)
from art_trainer.serving.dialects.writers import BlockWriter, Json
from art_trainer.serving.http.middleware import ApiError, anthropic_error


class _Text(StrictModel):
    """Text; marks for caching and citations are ignored, as all fields of blocks that change no reply."""

    type: Literal["text"]
    text: str


class _ToolUse(StrictModel):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[str, BeforeValidator(json_text)]


class _ToolResult(StrictModel):
    """What a tool answered."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[str, BeforeValidator(join_parts)] = ""
    is_error: bool = False


def _as_blocks(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Block = Annotated[_Text | _ToolUse | _ToolResult, Field(discriminator="type")]


class _Message(StrictModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["user", "assistant"]
    content: Annotated[list[Block], BeforeValidator(_as_blocks)]

    def messages(self) -> Iterator[ChatMessage]:
        """The message in the form of chat completions, in which each tool's result is one of its own."""
        text = "".join(block.text for block in self.content if isinstance(block, _Text))
        if self.role == "assistant":
            calls = [
                ToolCall(id=block.id, function=FunctionCall(name=block.name, arguments=block.input))
                for block in self.content
                if isinstance(block, _ToolUse)
            ]
            yield ChatMessage(role="assistant", content=text, tool_calls=calls)
            return
        results = [block for block in self.content if isinstance(block, _ToolResult)]
        for block in results:
            error = "Error: " if block.is_error else ""
            yield ChatMessage(role="tool", content=error + block.content, tool_call_id=block.tool_use_id)
        if text or not results:
            yield ChatMessage(role="user", content=text)


class _ToolChoice(StrictModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["auto", "none"] = "auto"
    disable_parallel_tool_use: bool = False


def _check_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type", "custom") not in ("custom", None):
        raise ValueError(f"a tool of type {tool['type']!r} is not supported, only 'custom'")
    return {"type": "function", "function": function_tool(tool, "input_schema")}


def _refuse_thread(thread: object) -> object:
    """Conversations are not kept here; at this code the official client sends them whole."""
    message = "thread is not supported: leave it out, and send the whole conversation"
    raise ApiError(message, "thread_unsupported_request", param="thread")


class MessagesRequest(ConversationRequest):
    """A request for a message."""

    labels = frozenset({"metadata", "service_tier", "cache_control", "diagnostics"})
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "container": (),
        "context_management": (),
        "mcp_servers": ([],),
        "output_format": (),
        "output_config": ({},),
        "thinking": ({"type": "disabled"},),
    }

    model: ModelName = ""
    max_tokens: TokenCount
    messages: Annotated[list[_Message], Field(min_length=1)]
    system: Annotated[list[_Text], BeforeValidator(_as_blocks)] = Field(default_factory=list)
    tools: list[Annotated[dict[str, Any], AfterValidator(_check_tool)]] = Field(default_factory=list)
    tool_choice: _ToolChoice = _ToolChoice()
    stop_sequences: Annotated[list[StopString], Field(max_length=16)] = Field(default_factory=list)
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    thread: Annotated[object, AfterValidator(_refuse_thread)] = None

    def conversation(self) -> list[ChatMessage]:
        """The messages that the model sees.

        Raises:
            ApiError: The last one is the assistant's, which asks for its continuation.
        """
        if self.messages[-1].role == "assistant":
            message = "the last message is the assistant's: leave it out, the model writes whole replies"
            raise ApiError(message, param="messages")
        system = "\n".join(block.text for block in self.system)
        shown = [ChatMessage(role="system", content=system)] if system else []
        return shown + [one for message in self.messages for one in message.messages()]

    def shown_tools(self) -> list[Tool]:
        """The tools that the model sees; none if it must not call any."""
        return [] if self.tool_choice.type == "none" else list(self.tools)

    def generation(self, defaults: SamplingParams) -> Generation:
        """What the request asks for; sampling fields that are absent are as in the defaults."""
        return Generation(
            model=self.model,
            sampling=self.override(defaults),
            stops=StopConfig(tuple(self.stop_sequences), defaults.stop_strings),
            max_length=self.max_tokens,
            stream=self.stream,
            tools=argument_names(self.shown_tools()),
            most_calls=1 if self.tool_choice.disable_parallel_tool_use else None,
        )


class TokenCountRequest(MessagesRequest):
    """A request for the number of a prompt's tokens."""

    max_tokens: TokenCount = 1


class MessagesWriter(BlockWriter):
    """Writes a message, or its events."""

    def failure(self, error: ApiError) -> Json:
        """The event that ends a stream if sampling fails."""
        return anthropic_error(error)

    def _message(self, blocks: list[Json], stop: Json, sampled: int) -> Json:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": blocks,
            **stop,
            "usage": {"input_tokens": len(self._prompts[0]), "output_tokens": sampled},
        }

    def _stop(self, message: ChatMessage, output: GenerationOutput) -> Json:
        """Why the reply ended."""
        found = self.generation.stops.dropped_from(self._chat.decode(output.text_ids))
        reason = "end_turn" if found is None else "stop_sequence"
        if output.truncated:
            reason = "max_tokens"
        if message.tool_calls:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": found}

    def _response(self, message: ChatMessage, output: GenerationOutput) -> Json:
        calls = message.tool_calls
        blocks: list[Json] = []
        if message.content or not calls:
            blocks.append({"type": "text", "text": message.content})
        blocks += [{**_tool_use(call), "input": call.function.parsed()} for call in calls]
        return self._message(blocks, self._stop(message, output), len(output.run.token_ids))

    def _announce(self) -> Iterator[Json]:
        nothing = {"stop_reason": None, "stop_sequence": None}
        yield {"type": "message_start", "message": self._message([], nothing, 0)}

    def _open_text(self) -> Iterator[Json]:
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}

    def _text(self, text: str) -> Json:
        return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}

    def _close_text(self, message: ChatMessage) -> Iterator[Json]:
        yield {"type": "content_block_stop", "index": 0}

    def _call(self, place: int, call: ToolCall) -> Iterator[Json]:
        yield {"type": "content_block_start", "index": place, "content_block": _tool_use(call)}
        delta = {"type": "input_json_delta", "partial_json": call.function.arguments}
        yield {"type": "content_block_delta", "index": place, "delta": delta}
        yield {"type": "content_block_stop", "index": place}

    def _close(self, message: ChatMessage, output: GenerationOutput) -> Iterator[Json]:
        usage = {"output_tokens": len(output.run.token_ids)}
        yield {"type": "message_delta", "delta": self._stop(message, output), "usage": usage}
        yield {"type": "message_stop"}


def _tool_use(call: ToolCall) -> Json:
    """The block of a call whose input is not yet known."""
    return {"type": "tool_use", "id": call.id, "name": call.function.name, "input": {}}
