"""Requests of all dialects: how they are read, what they ask for, and errors that name the wrong field.

A field that is not supported is refused by name. Ignored are only labels that cannot change a reply.
"""

from __future__ import annotations

import abc
import dataclasses
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from fastapi import Request
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from art_trainer.inference.sampling import SamplingParams
from art_trainer.serving.dialects.chat import AgentChat
from art_trainer.serving.dialects.replies import StopConfig
from art_trainer.serving.http.middleware import ApiError

_SHORT = reprlib.Repr()
"""Writes a wrong value in an error message: the whole of it could be megabytes."""
_SHORT.maxstring = _SHORT.maxother = 80
OPENAI_LABELS = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention",
})  # fmt: skip
_SAMPLING = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}

M = TypeVar("M", bound="StrictModel")


class StrictModel(BaseModel):
    """Strict types; ``null`` counts as absent, as in OpenAI's API.

    Attributes:
        labels: Fields that cannot change a reply and are ignored.
        unsupported: Fields that are accepted only with one of some values, which change nothing.
    """

    model_config = ConfigDict(strict=True, frozen=True)
    labels: ClassVar[frozenset[str]] = frozenset()
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, Mapping) else data


def parse(model: type[M], body: Mapping[str, Any], context: object = None) -> M:
    """Validate the body of a request.

    Args:
        model: Its form.
        body: The body.
        context: What the server keeps for requests of that form.

    Raises:
        ApiError: A field has a wrong type or value, or is not supported.
    """
    for name, allowed in model.unsupported.items():
        value = body.get(name)
        if value is not None and value not in allowed:
            other = f" or send {allowed[0]!r}" if allowed else ""
            message = f"{name}={_SHORT.repr(value)} is not supported: leave it out{other}"
            raise ApiError(message, param=name)
    known = {name: body[name] for name in body if name not in model.unsupported and name not in model.labels}
    try:
        return model.model_validate(known, context=context)
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


def as_list(value: object) -> object:
    """A field that may be one text or a list of them."""
    return [value] if isinstance(value, str) else value


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
    stream: bool
    seed: int | None = None
    count: int = 1
    """Replies to each prompt."""
    prompt_field: str = "messages"
    """The field that the prompts come from."""
    top_logprobs: int | None = None
    """How many top log-probs to report with each token's own; ``None`` reports neither."""
    stop_tokens: frozenset[int] = frozenset()
    """Tokens that end a reply, besides the policy's."""
    tools: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Names of the tools that the model sees, each with the names of its arguments."""
    most_calls: int | None = None
    """Most tool calls of a reply; ``None`` for no limit."""


class DialectRequest(StrictModel):
    """A request in one of the dialects."""

    model_config = ConfigDict(extra="forbid")

    stream: bool = False

    def override(self, defaults: SamplingParams) -> SamplingParams:
        """The sampling parameters with those that the request names."""
        return dataclasses.replace(defaults, **self.model_dump(include=_SAMPLING, exclude_none=True))

    @abc.abstractmethod
    def generation(self, defaults: SamplingParams) -> Generation:
        """What the request asks for; sampling fields that are absent are as in the defaults."""

    @abc.abstractmethod
    def prompts(self, chat: AgentChat) -> list[list[int]]:
        """The tokens of each context that is to be continued.

        Raises:
            ApiError: The chat template refuses the messages.
        """


def _check_temperature(value: float) -> float:
    if value != 0 and not 0.01 <= value <= 100:
        raise ValueError("Input should be 0, or from 0.01 to 100")
    return value


ModelName = Annotated[str, Field(max_length=1000)]
StopString = Annotated[str, Field(min_length=1, max_length=1000)]
Temperature = Annotated[float, AfterValidator(_check_temperature)]
TopP = Annotated[float, Field(gt=0, le=1)]
TokenCount = Annotated[int, Field(ge=1)]
