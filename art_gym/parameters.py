"""Parameters of tools: their types, their JSON schema, and the conversion of what a model wrote."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal, NamedTuple, NewType

from art_gym.errors import did_you_mean

Code = NewType("Code", str)
"""The type of a parameter that takes program text: a fenced block in a reply then fills it."""

_TRUE, _FALSE = {"true", "yes", "1"}, {"false", "no", "0"}
_REQUIRED: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool.

    Attributes:
        name: Its name.
        kind: One of ``str, int, float, bool, date, Code`` or ``list`` (of ``item``) or ``Literal``.
        description: From the method's docstring.
        default: Its default, or ``inspect.Parameter.empty`` if it is required.
        optional: Whether ``None`` is allowed.
        choices: The values of a ``Literal``.
        item: The element type of a list.
        examples: Values that the tool takes, for the schema and the random player.
    """

    name: str
    kind: Any
    description: str
    default: Any = _REQUIRED
    optional: bool = False
    choices: tuple[Any, ...] = ()
    item: Any = str
    examples: tuple[Any, ...] = ()

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return self.default is _REQUIRED

    @property
    def type_name(self) -> str:
        """The type as it is written in the usage line."""
        if self.kind is Literal:
            name = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in self.choices)
        elif self.kind is list:
            name = f"list[{_name(self.item)}]"
        else:
            name = _name(self.kind)
        return f"{name} | None" if self.optional else name

    def convert(self, value: Any) -> Any:
        """Convert what a model wrote to this parameter's type.

        Args:
            value: A JSON value or the text of one.

        Raises:
            ValueError: If the value is not of this type.
        """
        nothing = self.optional and isinstance(value, str) and value.strip() in _NOTHING - {*self.choices}
        if value is None or nothing:
            if self.optional:
                return None
            raise ValueError(f"`{self.name}` must be {self._wanted()}, not None")
        if self.kind is Literal:
            return self._choose(value)
        if self.kind is list:
            items = value if isinstance(value, list | tuple) else _split(value)
            return [self._convert_one(self.item, item) for item in items]
        return self._convert_one(self.kind, value)

    def check(self, value: Any) -> None:
        """Check a value that an author declares: it is of the type, not only a text that can be converted.

        Raises:
            ValueError: If it is not.
        """
        if plain(self.convert(value)) != plain(value):
            raise ValueError(f"`{self.name}` must be {self.type_name}, not {_shown(value)}")

    def schema(self) -> dict[str, Any]:
        """This parameter's JSON schema."""
        if self.kind is Literal:
            schema: dict[str, Any] = {
                "type": _KINDS[type(self.choices[0])].schema["type"],
                "enum": list(self.choices),
            }
        elif self.kind is list:
            schema = {"type": "array", "items": dict(_KINDS[self.item].schema)}
        else:
            schema = dict(_KINDS[self.kind].schema)
        schema["description"] = self.description
        if not self.required and self.default is not None:
            schema["default"] = plain(self.default)
        if self.examples:
            schema["examples"] = plain(self.examples)
        return schema

    def example(self) -> Any:
        """A valid value, for examples in error messages."""
        if self.examples:
            return self.examples[0]
        if self.choices:
            return self.choices[0]
        if self.kind is list:
            return [_KINDS[self.item].example]
        return _KINDS[self.kind].example

    def _choose(self, value: Any) -> Any:
        text = str(value)
        if type(self.choices[0]) is int:
            with contextlib.suppress(ValueError, TypeError):
                text = str(_to_int(value))
        for same in (str, str.strip, lambda written: written.strip().lower()):
            for choice in self.choices:
                if same(str(choice)) == same(text):
                    return choice
        known = [str(choice) for choice in self.choices]
        raise ValueError(f"`{self.name}` cannot be {_shown(value)}{did_you_mean(text.strip(), known)}")

    def _convert_one(self, kind: Any, value: Any) -> Any:
        try:
            return _KINDS[kind].convert(value)
        except (ValueError, TypeError, OverflowError):
            pass
        raise ValueError(f"`{self.name}` must be {self._wanted()}, not {_shown(value)}")

    def _wanted(self) -> str:
        if self.kind is list:
            return f"{_KINDS[self.item].words} in a list"
        return _KINDS[self.kind].words if self.kind in _KINDS else "a value"


def plain(value: Any) -> Any:
    """A value of a parameter as JSON has it: dates are text."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value


_NOTHING = {"None", "none", "null", ""}


def _name(kind: Any) -> str:
    return "str" if kind is Code else str(kind.__name__)


def _to_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    return value if isinstance(value, str) else str(value)


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError
        return int(value)
    if isinstance(value, str) and len(value) > 40:  # int() refuses or crawls on thousands of digits
        raise ValueError
    return int(value)


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError
    return number


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, str | int) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError


def _to_date(value: Any) -> date:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    if not isinstance(value, str):
        raise TypeError
    return datetime.fromisoformat(value.strip()).date()


class _Kind(NamedTuple):
    """What there is to know about a type."""

    words: str
    schema: dict[str, str]
    example: Any
    convert: Callable[[Any], Any]


_KINDS: dict[Any, _Kind] = {
    str: _Kind("text", {"type": "string"}, "text", _to_text),
    Code: _Kind("code", {"type": "string"}, "print(1)", _to_text),
    int: _Kind("a whole number", {"type": "integer"}, 1, _to_int),
    float: _Kind("a number", {"type": "number"}, 0.5, _to_float),
    bool: _Kind("true or false", {"type": "boolean"}, True, _to_bool),
    date: _Kind(
        "a date such as 2024-03-01", {"type": "string", "format": "date"}, date(2024, 3, 1), _to_date
    ),
}
SUPPORTED = tuple(_KINDS)  # in which a hint is looked for that has no hash, such as `[int]`
"""The types an argument, or the items of a list, can have; beside ``Literal``."""


def _split(value: Any) -> list[Any]:
    """Read a list that was written as one value: a comma-separated text, or a single item."""
    if isinstance(value, str):
        return [part.strip().strip("\"'") for part in value.strip().strip("[]").split(",") if part.strip()]
    return [value]


def _shown(value: Any) -> str:
    """A wrong value as an error message quotes it: short."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"
