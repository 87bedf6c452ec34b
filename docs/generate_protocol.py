"""Generates the tables and examples of the protocol's page from the models.

python docs/generate_protocol.py writes them; a test compares them with the models.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# The documentation is of this checkout, not of one installed elsewhere.
sys.path.insert(0, str(Path(__file__).parents[1]))

from docstrings import in_line, table
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from art_trainer.distributed import protocol
from art_trainer.distributed.protocol import Limits, Message

PAGE = Path(__file__).parent / "protocol.md"
EXAMPLES: dict[str, list[Message]] = {
    part: [getattr(protocol, name).model_validate_json(json.dumps(fields)) for name, fields in named.items()]
    for part, named in json.loads(PAGE.with_name("protocol_examples.json").read_text("utf-8")).items()
}
"""What clients say, what the server says and what goes over HTTP: a valid message of each kind."""
_SHOWN = [message for messages in EXAMPLES.values() for message in messages]
_LINE = 90
_REF = "#/components/schemas/{model}"
Schema = dict[str, Any]


def page(text: str) -> str:
    """The page with its made parts as the models say them.

    Args:
        text: The page as it is.

    Raises:
        ValueError: Where it has no place for one.
    """
    schemas = _schemas()
    parts = {
        **{part: _messages(messages, schemas) for part, messages in EXAMPLES.items()},
        "parts": "\n\n".join(_described(name, schemas) for name in _parts(schemas)),
        "limits": _limits(),
    }
    for name, made in parts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{PAGE} has no place for the part {name}: write {begin} and {end}")
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n\n{made}\n\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def _schemas() -> dict[str, Schema]:
    """The JSON schema of each model, by its name; those that are shown, then what they are made of."""
    models: list[tuple[type[BaseModel], Any]] = [(type(one), "validation") for one in _SHOWN]
    found: dict[str, Schema] = models_json_schema(models, ref_template=_REF)[1]["$defs"]
    first = [type(one).__name__ for one in _SHOWN]
    return {name: found[name] for name in (*first, *sorted(found.keys() - set(first)))}


def _parts(schemas: dict[str, Schema]) -> list[str]:
    """What messages are made of, in the order in which they name it."""
    found: dict[str, None] = {}
    waiting = [type(one).__name__ for one in _SHOWN]
    messages = set(waiting)
    while waiting:
        named = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schemas[waiting.pop(0)]))
        fresh = [name for name in named if name not in found and "properties" in schemas[name]]
        found |= dict.fromkeys(fresh)
        waiting += fresh
    return [name for name in found if name not in messages]


def _messages(messages: Sequence[Message], schemas: dict[str, Schema]) -> str:
    parts = []
    for message in messages:
        name = type(message).__name__
        example = json.dumps(json.loads(message.model_dump_json()), ensure_ascii=False, indent=2)
        parts += [_described(name, schemas, _kind(message)), f"```json\n{_compact(example)}\n```"]
    return "\n\n".join(parts)


def _kind(message: Message) -> str:
    """A message's ``type``; for what has none, the model's name."""
    return str(getattr(message, "type", type(message).__name__))


def _compact(text: str) -> str:
    """JSON with its short lists and objects on one line each."""

    def fold(match: re.Match[str]) -> str:
        line = match[0][0] + re.sub(r"\s*\n\s*", " ", match[1]) + match[0][-1]
        return line if len(line) <= _LINE else match[0]

    return re.sub(r"[\[{]\s*((?:[^\[\]{}\"]|\"[^\"\n]*\")*?)\s*[\]}]", fold, text)


def _described(name: str, schemas: dict[str, Schema], kind: str | None = None) -> str:
    """A heading, what it is, and a table of its fields."""
    schema = schemas[name]
    heading = f"### {name}" if kind in (None, name) else f"### `{kind}`"
    fields = table(("field", "type", "meaning"), *_rows(schema))
    return "\n\n".join([heading, in_line(schema["description"]), fields])


def _rows(schema: Schema) -> Iterator[tuple[str, str, str]]:
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        if name == "type" and "const" in field:
            yield "`type`", f'`"{field["const"]}"`', ""
            continue
        left_out = "" if name in required else f" May be left out: {_default(field)}."
        meaning = field.get("description", "") + left_out
        yield f"`{name}`", _type(field), in_line(meaning)


def _default(field: Schema) -> str:
    if "default" in field:
        return f"`{json.dumps(field['default'])}`"
    return "`{}`" if field["type"] == "object" else "`[]`"


def _type(schema: Schema) -> str:
    """A schema as text."""
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "any" if name == "JsonValue" else f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    if "prefixItems" in schema:
        return f"[{', '.join(_type(one) for one in schema['prefixItems'])}]"
    kind = schema.get("type")
    if kind == "array":
        return f"array{_bounds(schema)} of {_type(schema['items'])}"
    if kind == "object":
        values = _type(schema.get("additionalProperties", {}))
        return f"object{_bounds(schema)}{'' if values == 'any' else f' of {values}'}"
    return f"{'any' if kind is None else kind}{_bounds(schema)}"


def _bounds(schema: Schema) -> str:
    """What a schema says of sizes, in brackets."""
    low, high = schema.get("minimum"), schema.get("maximum")
    words = [f"`{schema['pattern']}`"] if "pattern" in schema else []
    if low is not None and high is not None:
        words.append(f"{_number(low)} to {_number(high)}")
    elif low is not None or high is not None:
        words.append(f"at least {_number(low)}" if low is not None else f"at most {_number(high)}")
    sizes = {"maxLength": "characters", "maxItems": "", "maxProperties": "entries"}
    for key, unit in sizes.items():
        if key in schema:
            words.append("empty" if schema[key] == 0 else f"at most {schema[key]:,} {unit}".rstrip())
    return f" ({', '.join(words)})" if words else ""


def _number(value: float) -> str:
    powers = {2**31: "2³¹", 2**53: "2⁵³"}
    return powers.get(int(value), f"{value:,}" if isinstance(value, int) else f"{value:g}")


def _limits() -> str:
    """The server's limits with their defaults."""
    text = (Limits.__doc__ or "").partition("Attributes:")[2]
    meanings = dict(re.findall(r"^\s+(\w+): (.+)$", text, re.MULTILINE))
    rows = [
        (f"`{field.name}`", _number(field.default), meanings[field.name])
        for field in dataclasses.fields(Limits)
    ]
    return table(("limit", "", ""), *rows)


if __name__ == "__main__":
    main()
