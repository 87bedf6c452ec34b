"""OpenAI's Responses API: the request, and its response.

Source: the reference of ``/v1/responses`` in OpenAI's API documentation.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationInfo, model_validator

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
    OPENAI_LABELS,
    Generation,
    ModelName,
    StrictModel,
    Temperature,
    TokenCount,
    TopP,
)
from art_trainer.serving.dialects.writers import BlockWriter, Json
from art_trainer.serving.http.middleware import ApiError

_MOST_STORED = 1000
_PARTS = ("input_text", "output_text", "text")


class StoredResponses:
    """Conversations that a later request may continue by a response's id: the newest 1,000."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, list[Json]] = OrderedDict()
        self._lock = threading.Lock()

    def save(self, response_id: str, items: list[Json]) -> None:
        """Keep a conversation, as input items."""
        with self._lock:
            self._items[response_id] = items
            if len(self._items) > _MOST_STORED:
                self._items.popitem(last=False)

    def find(self, response_id: str) -> list[Json]:
        """The conversation up to and with a response.

        Raises:
            ApiError: It is not known, or no longer.
        """
        with self._lock:
            items = self._items.get(response_id)
        if items is None:
            message = f"no response {response_id!r} is stored here: send the whole conversation as input"
            raise ApiError(message, "not_found", param="previous_response_id")
        return items


def _join_input(content: object) -> object:
    return join_parts(content, _PARTS)


# Items of the input; their ids and states are ignored.


class _Message(StrictModel):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_join_input)]

    def message(self) -> ChatMessage:
        return ChatMessage(role=self.role, content=self.content)  # type: ignore[arg-type]


class _FunctionCall(StrictModel):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: Annotated[str, BeforeValidator(json_text)] = ""

    def message(self) -> ChatMessage:
        function = FunctionCall(name=self.name, arguments=self.arguments)
        return ChatMessage(role="assistant", tool_calls=[ToolCall(id=self.call_id, function=function)])


class _FunctionOutput(StrictModel):
    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[str, BeforeValidator(_join_input)]

    def message(self) -> ChatMessage:
        return ChatMessage(role="tool", content=self.output, tool_call_id=self.call_id)


def _as_items(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _with_type(value: object) -> object:
    """Items of the input with their type, which messages may leave out."""
    items = _as_items(value)
    if not isinstance(items, list):
        return items
    return [{"type": "message", **item} if isinstance(item, Mapping) else item for item in items]


def _check_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise ValueError(f"a tool of type {tool.get('type')!r} is not supported, only 'function'")
    return {"type": "function", "function": function_tool(tool, "parameters")}


Item = Annotated[_Message | _FunctionCall | _FunctionOutput, Field(discriminator="type")]


class ResponsesRequest(ConversationRequest):
    """A request for a response."""

    labels = OPENAI_LABELS - {"store"}
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "background": (False,),
        "conversation": (),
        "include": ([], ["reasoning.encrypted_content"]),
        "max_tool_calls": (),
        "prompt": (),
        "reasoning": ({},),
        "stream_options": ({}, {"include_obfuscation": False}),
        "text": ({"format": {"type": "text"}}, {}),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    }

    model: ModelName = ""
    input: Annotated[list[Item], BeforeValidator(_with_type), Field(min_length=1)]
    instructions: str = ""
    previous_response_id: str = ""
    store: bool = True
    tools: list[Annotated[dict[str, Any], AfterValidator(_check_tool)]] = Field(default_factory=list)
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: TokenCount | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    _stored: StoredResponses | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _continue(cls, data: Any, info: ValidationInfo) -> Any:
        """Put the conversation of the response that is continued before the input."""
        previous = data.get("previous_response_id")
        if isinstance(previous, str) and isinstance(info.context, StoredResponses):
            new = _as_items(data.get("input"))
            if isinstance(new, list):
                return {**data, "input": [*info.context.find(previous), *new]}
        return data

    def model_post_init(self, context: Any, /) -> None:
        """Remember where responses are stored."""
        self._stored = context

    def conversation(self) -> list[ChatMessage]:
        """The messages that the model sees; the text and the calls of one reply are one message."""
        messages = [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        joins = False  # whether a call belongs to the message before it
        for item in self.input:
            message = item.message()
            if joins and isinstance(item, _FunctionCall):
                last = messages[-1]
                calls = [*last.tool_calls, *message.tool_calls]
                messages[-1] = last.model_copy(update={"tool_calls": calls})
            else:
                messages.append(message)
            joins = message.role == "assistant"
        return messages

    def shown_tools(self) -> list[Tool]:
        """The tools that the model sees; none if it must not call any."""
        return [] if self.tool_choice == "none" else list(self.tools)

    def generation(self, defaults: SamplingParams) -> Generation:
        """What the request asks for; sampling fields that are absent are as in the defaults."""
        return Generation(
            model=self.model,
            sampling=self.override(defaults),
            stops=StopConfig((), defaults.stop_strings),
            max_length=self.max_output_tokens,
            stream=self.stream,
            prompt_field="input",
            tools=argument_names(self.shown_tools()),
            most_calls=None if self.parallel_tool_calls else 1,
        )

    def remember(self, response_id: str, output: Sequence[Json]) -> None:
        """Store the conversation with a response, unless the client does not want that."""
        if self.store and self._stored is not None:
            self._stored.save(response_id, [*(item.model_dump() for item in self.input), *output])


class ResponsesWriter(BlockWriter):
    """Writes a response, or its events."""

    request: ResponsesRequest
    _events = 0

    def failure(self, error: ApiError) -> Json:
        """The event that ends a stream if sampling fails."""
        return self._event("error", code=error.code, message=str(error), param=error.param)

    def _event(self, kind: str, **fields: Any) -> Json:
        self._events += 1
        return {"type": kind, "sequence_number": self._events - 1, **fields}

    def _base(self, status: str, output: Sequence[Json]) -> Json:
        request, sampling = self.request, self.generation.sampling
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._model,
            "output": list(output),
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions or None,
            "max_output_tokens": request.max_output_tokens,
            "metadata": {},
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": request.previous_response_id or None,
            "store": request.store,
            "temperature": sampling.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": request.tool_choice,
            "tools": [{"type": "function", **tool["function"]} for tool in request.tools],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _response(self, message: ChatMessage, output: GenerationOutput) -> Json:
        """The complete response, which a later request may continue."""
        items = [] if message.tool_calls and not message.content else [self._message(message.content)]
        items += [_call_item(call) for call in message.tool_calls]
        read, sampled = len(self._prompts[0]), len(output.run.token_ids)
        cut = output.truncated and not message.tool_calls
        response = self._base("incomplete" if cut else "completed", items)
        response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        response["usage"] = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + sampled,
        }
        self.request.remember(response["id"], items)
        return response

    def _message(self, text: str | None) -> Json:
        """The item of the text; ``None`` while nothing is known of it."""
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "status": "in_progress" if text is None else "completed",
            "content": [] if text is None else [_text_part(text)],
        }

    def _announce(self) -> Iterator[Json]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._base("in_progress", ()))

    def _text_event(self, kind: str, **fields: Any) -> Json:
        return self._event(kind, item_id=f"msg_{self._id}", output_index=0, content_index=0, **fields)

    def _open_text(self) -> Iterator[Json]:
        yield self._event("response.output_item.added", output_index=0, item=self._message(None))
        yield self._text_event("response.content_part.added", part=_text_part(""))

    def _text(self, text: str) -> Json:
        return self._text_event("response.output_text.delta", delta=text, logprobs=[])

    def _close_text(self, message: ChatMessage) -> Iterator[Json]:
        text = message.content
        yield self._text_event("response.output_text.done", text=text, logprobs=[])
        yield self._text_event("response.content_part.done", part=_text_part(text))
        yield self._event("response.output_item.done", output_index=0, item=self._message(text))

    def _call(self, place: int, call: ToolCall) -> Iterator[Json]:
        item, arguments = _call_item(call), call.function.arguments
        at = {"item_id": item["id"], "output_index": place}
        begun = {**item, "status": "in_progress", "arguments": ""}
        yield self._event("response.output_item.added", output_index=place, item=begun)
        yield self._event("response.function_call_arguments.delta", delta=arguments, **at)
        done = {"name": call.function.name, "arguments": arguments}
        yield self._event("response.function_call_arguments.done", **done, **at)
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _close(self, message: ChatMessage, output: GenerationOutput) -> Iterator[Json]:
        response = self._response(message, output)
        yield self._event(f"response.{response['status']}", response=response)


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(call: ToolCall) -> Json:
    return {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.function.name,
        "arguments": call.function.arguments,
    }
