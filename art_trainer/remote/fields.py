"""What the protocol's messages are made of: strict models, and fields that are bounded."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue
from pydantic_core import PydanticKnownError

CLIENT_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""What a worker may be called: it stands in a path."""
MAX_LEASES = 4096
"""Most leases one message may name."""

Short = Annotated[str, Field(max_length=2_000)]
Token = Annotated[str, Field(max_length=200)]
Count = Annotated[int, Field(ge=0, le=2**31)]
Version = Annotated[int, Field(ge=0, le=2**53)]
Bytes = Annotated[int, Field(ge=0, le=2**53)]
LeaseIds = Annotated[list[Token], Field(max_length=MAX_LEASES)]
Real = Annotated[float, Field(ge=-1e30, le=1e30)]
"""A number that many of can be added up in float32."""
Reals = Annotated[dict[Short, Real], Field(max_length=1_000)]
Seconds = Annotated[float, Field(ge=0, le=1e11)]


def _finite(value: JsonValue) -> JsonValue:
    """Refuse what ``allow_inf_nan`` does not look at: numbers inside of JSON that may be anything."""
    left = [value]
    while left:
        match left.pop():
            case float(number) if not math.isfinite(number):
                raise PydanticKnownError("finite_number")
            case dict(members):
                left += members.values()
            case list(members):
                left += members
    return value


Json = Annotated[JsonValue, AfterValidator(_finite)]
"""Any JSON, but for numbers that are none: Python's own parser would take ``NaN`` and ``1e999``."""


class Message(BaseModel):
    """Read strictly: no other fields, no conversions, finite numbers."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
