"""Requests of all dialects: their common fields, messages, and errors that name the wrong field.

A field that is not supported is refused by name. Ignored are only labels that cannot change a reply.
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from fastapi import Request
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from art_trainer.inference.sampling import SamplingParams
from art_trainer.serving.http.middleware import ApiError
from art_trainer.serving.openai.chat import AgentChat, json_text
from art_trainer.serving.openai.replies import StopConfig

_SHORT = reprlib.Repr()
"""Writes a wrong value in an error message: the whole of it could be megabytes."""
_SHORT.maxstring = _SHORT.maxother = 80
_LABELS = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention",
})  # fmt: skip

M = TypeVar("M", bound="StrictModel")


class StrictModel(BaseModel):
    """Strict types; ``null`` counts as absent, as in OpenAI's API.

    Attributes:
        unsupported: Fields that are accepted only with one of some values, which change nothing.
    """

    model_config = ConfigDict(strict=True, frozen=True)
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, Mapping) else data


def parse(model: type[M], body: Mapping[str, Any]) -> M:
    """Validate the body of a request.

    Raises:
        ApiError: A field has a wrong type or value, or is not supported.
    """
    for name, allowed in model.unsupported.items():
        value = body.get(name)
        if value is not None and value not in allowed:
            other = f" or send {allowed[0]!r}" if allowed else ""
            message = f"{name}={_SHORT.repr(value)} is not supported: leave it out{other}"
            raise ApiError(message, param=name)
    known = {name: body[name] for name in body if name not in model.unsupported and name not in _LABELS}
    try:
        return model.model_validate(known)
    except ValidationError as error:
        raise _invalid_field(error) from None


def _invalid_field(error: ValidationError) -> ApiError:
    """Describe the first wrong field of a body."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ApiError):  # raised by a validator that compares several fields
        return cause
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    field = field.removeprefix(".") or "body"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "this field is not supported, leave it out"
    elif first["type"] != "missing":
        message += f", got {_SHORT.repr(first['input'])}"
    return ApiError(f"{field}: {message}", param=field)


async def read_json_body(request: Request) -> dict[str, Any]:
    """Read a request's body as a JSON object.

    Raises:
        ApiError: It is none, or is not declared as JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(f"content-type is {kind!r}: send application/json", "unsupported_media_type")
    try:
        data = from_json(await request.body(), allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ApiError(f"the body is a {type(data).__name__}: send an object")
    return data


def _check_temperature(value: float) -> float:
    if value != 0 and not 0.01 <= value <= 100:
        raise ValueError("Input should be 0, or from 0.01 to 100")
    return value


def as_list(value: object) -> object:
    """A field that may be one text or a list of them."""
    return [value] if isinstance(value, str) else value


class StreamOptions(StrictModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


StopString = Annotated[str, Field(min_length=1, max_length=1000)]
TopLogprobCount = Annotated[int, Field(ge=0, le=20)]


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """What a request asks for, whatever its dialect."""

    model: str
    """The model's name, which may name a version; empty for the newest."""
    sampling: SamplingParams
    """Its stop strings and length are not used."""
    stops: StopConfig
    max_length: int | None
    """Most tokens of a reply, if the client names a limit."""
    seed: int | None
    count: int
    """Replies to each prompt."""
    stream: bool
    include_usage: bool
    """Whether a stream ends with the numbers of tokens."""
    return_token_ids: bool
    prompt_field: str = "messages"
    """The field that the prompts come from."""
    top_logprobs: int | None = None
    """How many top log-probs to report with each token's own; ``None`` reports neither."""
    stop_tokens: frozenset[int] = frozenset()
    """Tokens that end a reply, besides the policy's."""
    tools: tuple[str, ...] = ()
    """Names of the tools that the model sees."""
    most_calls: int | None = None
    """Most tool calls of a reply; ``None`` for no limit."""


class GenerationRequest(StrictModel):
    """Fields that all dialects have in common; sampling fields as in ``SamplingParams``."""

    model_config = ConfigDict(extra="forbid")
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "logit_bias": ({},),
        "response_format": ({"type": "text"},),
        "ignore_eos": (False,),
        "min_tokens": (0,),
        "echo": (False,),
    }

    model: Annotated[str, Field(max_length=1000)] = ""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False
    temperature: Annotated[float, AfterValidator(_check_temperature)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    stop: Annotated[list[StopString], BeforeValidator(as_list), Field(max_length=4)] = []

    def generation(self, defaults: SamplingParams) -> Generation:
        """What the request asks for; sampling fields that are absent are as in the defaults."""
        given: dict[str, Any] = self.model_dump(
            include={"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}, exclude_none=True
        )
        if "top_k" in given:
            given["top_k"] = max(given["top_k"], 0)  # -1 means all tokens in vLLM
        return Generation(
            model=self.model,
            sampling=dataclasses.replace(defaults, **given),
            stops=StopConfig(tuple(self.stop), defaults.stop_strings),
            max_length=self.max_tokens,
            seed=self.seed,
            count=self.n,
            stream=self.stream,
            include_usage=self.stream_options.include_usage,
            return_token_ids=self.return_token_ids,
        )

    def prompts(self, chat: AgentChat) -> list[list[int]]:
        """The tokens of each context that is to be continued.

        Raises:
            ApiError: The chat template refuses the messages.
        """
        raise NotImplementedError


# Messages, as the recording of an episode and the chat template read them.


def _join_parts(content: object) -> object:
    """The text of a message's content, which may be a list of parts."""
    if not isinstance(content, list):
        return content
    texts = [
        part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        for part in content
    ]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("this model reads only parts of type 'text'")
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
    content: Annotated[str, BeforeValidator(_join_parts)] = ""
    tool_calls: list[ToolCall] = []
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
