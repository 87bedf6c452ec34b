"""Malformed and odd replies that an environment must answer without an exception."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_ANYWHERE = (
    "",
    " \n\t",
    "\0",
    "\ud800",
    "I do not know what to do.",
    "{",
    "}",
    "[]",
    "null",
    "NaN",
    '{"name": "',
    '{"name": null, "arguments": null}',
    '{"tool_calls": [{}]}',
    "[" * 50_000,
    "(" * 50_000,
    '{"a":' * 50_000,
    "<think>" * 1_000,
    "<think>never closed",
    "<think></think>",
    "<tool_call>",
    "</tool_call><tool_call>",
    "<tool_call>[]</tool_call>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.:0<|tool_call_argument_begin|>",
    "<|python_tag|>",
    "<|im_end|>",
    "```",
    "```python\nprint(1)\n```",
    "no_such_tool()",
    "__init__()",
    "__class__.__bases__()",
    "reset()",
    'step("again")',
    "close()",
    "snapshot()",
    "é" * 1_000_000,
    "a( " * 300_000,
    "\n" * 1_000_000,
)
_FORMATS = (
    "{name}",
    "{name}(",
    "{name}()",
    "{name}(**1)",
    "{name}(\0)",
    "{name}(\ud800)",
    '{name}("\ud800")',
    "{name}(1, 2, 3, 4, 5, 6, 7, 8, 9)",
    "{name}(x for x in y)",
    "{name}({name}())",
    "{name}(" * 1_000,
    '{{"name": "{name}"',
    '{{"name": "{name}", "arguments": []}}',
    '{{"name": "{name}", "parameters": "text"}}',
    '{{"name": "{name}", "arguments": "{{"}}',
    '<tool_call>{{"name": "{name}", "arguments": {{"no such argument": 1}}}}</tool_call>',
    '<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' * 2,
    "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{{}}<|tool_call_end|>",
    '{{"tool_calls": [{{"function": {{"name": "{name}", "arguments": "{{}}"}}}}]}}',
    "<|python_tag|>{name}.call()",
    "```\n{name}()\n```",
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    "",
    "\0",
    "\ud800",
    "; DROP TABLE messages; --",
    '" OR NEAR(* AND (',
    "x" * 100_000,
    0,
    -1,
    10**30,
    1e308,
    float("inf"),
    float("nan"),
    [],
    [None, [[]]],
    {},
    "9999-12-31",
    "0000-00-00",
)
_EXAMPLES: Mapping[str, Any] = {  # by a schema's format or type
    "string": "text",
    "date": "2024-03-01",
    "integer": 1,
    "number": 0.5,
    "boolean": True,
    "array": [],
    "object": {},
}


def hostile_replies(tools: Mapping[str, Any]) -> Iterator[str]:
    """Replies to provoke an environment with these tools: broken formats and odd values of every argument.

    Args:
        tools: Name → object with a ``schema()`` in OpenAI's format.
    """
    yield from _ANYWHERE
    for name, item in tools.items():
        for form in _FORMATS:
            yield form.format(name=name)
        function = item.schema()["function"]
        properties = function["parameters"]["properties"]
        usual = {key: _example(properties.get(key, {})) for key in function["parameters"]["required"]}
        for key in properties:
            for value in _VALUES:
                yield json.dumps({"name": name, "arguments": usual | {key: value}})


def _example(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    return _EXAMPLES.get(schema.get("format", ""), _EXAMPLES.get(schema.get("type", ""), "text"))
