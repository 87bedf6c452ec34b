"""Values as strict JSON can hold them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """Return a copy in which numbers that are not finite are ``None``; anything unknown is its words."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return str(value)


def to_bytes(value: Any) -> bytes:
    """Return a value as compact JSON.

    It is ASCII: a lone surrogate in a reply is data too, and only as an escape it survives.

    Raises:
        ValueError: Where a number is not finite.
        TypeError: Where there is no JSON for it.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
