"""What is rendered in a format is read back with the same types; the readers say where a text goes wrong."""

import json
from collections.abc import Callable
from datetime import date
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.parameters import Parameter
from art_gym.parsing.formats import call_from_json, read_json, read_json_call, read_markup
from art_gym.parsing.parser import Call, parse
from art_gym.parsing.text_calls import (
    ErrorKind,
    Problem,
    RawCall,
    call_pattern,
    read_tag_call,
    read_text_call,
    shown,
    tag_pattern,
)
from art_gym.tools import Tool

OP = Tool(
    "op",
    "Take one of everything.",
    (
        Parameter("text", str, "Text."),
        Parameter("count", int, "A whole number."),
        Parameter("ratio", float, "A number."),
        Parameter("flag", bool, "Yes or no."),
        Parameter("day", date, "A day."),
        Parameter("tags", list, "Words.", item=str),
        Parameter("sizes", list, "Whole numbers.", item=int),
        Parameter("mode", Literal, "A choice.", choices=("slow", "fast")),
        Parameter("note", str, "Text or nothing.", None, True),
        Parameter("level", Literal, "A choice of numbers.", 1, choices=(1, 2, 3)),
    ),
)
TOOLS = {"op": OP}
CALLS = call_pattern(TOOLS)

# The marks of other formats would be that format; "None" and "" mean nothing where nothing is allowed.
TEXTS = st.text(max_size=12).filter(lambda text: "<" not in text)
NOTES = st.none() | st.text(min_size=1, max_size=8).filter(
    lambda text: "<" not in text and text.strip() not in ("", "None", "none", "null")
)
ARGUMENTS = st.fixed_dictionaries(
    {
        "text": TEXTS,
        "count": st.integers(-(10**30), 10**30),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "day": st.dates(),
        "tags": st.lists(TEXTS, max_size=3),
        "sizes": st.lists(st.integers(-99, 99), max_size=3),
        "mode": st.sampled_from(["slow", "fast"]),
    },
    optional={"note": NOTES, "level": st.sampled_from([1, 2, 3])},
)
Arguments = dict[str, Any]


def _plain(arguments: Arguments) -> Arguments:
    return {name: str(value) if isinstance(value, date) else value for name, value in arguments.items()}


def _raw(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _json(template: str, **options: Any) -> Callable[[Arguments], str]:
    """Arguments as JSON, in a format's marks."""
    return lambda arguments: template % json.dumps(_plain(arguments), **options)


def _openai(arguments: Arguments) -> str:
    function = {"name": "op", "arguments": json.dumps(_plain(arguments))}
    return json.dumps({"tool_calls": [{"id": "1", "type": "function", "function": function}]})


def _coder(arguments: Arguments) -> str:
    given = "".join(
        f"<parameter={name}>\n{_raw(value)}\n</parameter>\n" for name, value in _plain(arguments).items()
    )
    return f"<tool_call>\n<function=op>\n{given}</function>\n</tool_call>"


def _glm(arguments: Arguments) -> str:
    given = "".join(
        f"<arg_key>{name}</arg_key>\n<arg_value>{_raw(value)}</arg_value>\n"
        for name, value in _plain(arguments).items()
    )
    return f"<tool_call>op\n{given}</tool_call>"


def _python(template: str, comma: str) -> Callable[[Arguments], str]:
    """Arguments as Python writes them, in a format's marks."""
    return lambda given: template % comma.join(f"{name}={value!r}" for name, value in _plain(given).items())


_NAMED = '{"name": "op", "arguments": %s}'
FORMATS: dict[str, Callable[[Arguments], str]] = {
    "hermes": _json(f"<tool_call>\n{_NAMED}\n</tool_call>", ensure_ascii=False),
    "llama": _json('<|python_tag|>{"name": "op",\n  "parameters": %s}<|eom_id|>', indent=2),
    "llama tag": _json("<function=op>%s</function>", ensure_ascii=False),
    "openai": _openai,
    "fenced": _json(f"Now:\n```json\n{_NAMED}\n```"),
    "kimi": _json(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.op:0<|tool_call_argument_begin|>"
        "%s<|tool_call_end|><|tool_calls_section_end|>",
        ensure_ascii=False,
    ),
    "deepseek": _json("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>op<｜tool▁sep｜>%s<｜tool▁call▁end｜>"),
    "mistral": _json("[TOOL_CALLS]op[ARGS]%s</s>"),
    "coder": _coder,
    "glm": _glm,
    "rendered": lambda arguments: TOOLS["op"].render(arguments),
    "python": _python("I think `op(%s)` is it.", ", "),
    "pythonic": _python("[op(%s)]", ","),
}


@pytest.mark.parametrize("render", FORMATS.values(), ids=FORMATS)
@settings(max_examples=60)
@given(arguments=ARGUMENTS)
def test_what_is_rendered_is_read_back(render: Callable[[Arguments], str], arguments: Arguments) -> None:
    call = parse(render(arguments), TOOLS)
    assert call == Call("op", arguments), render(arguments)
    assert isinstance(call, Call)
    assert {k: type(v) for k, v in call.arguments.items()} == {k: type(v) for k, v in arguments.items()}


@settings(max_examples=300)
@given(arguments=ARGUMENTS, render=st.sampled_from(list(FORMATS.values())), share=st.floats(0, 0.999))
def test_a_reply_cut_anywhere_is_never_another_call(
    arguments: Arguments, render: Callable[[Arguments], str], share: float
) -> None:
    reply = render(arguments)
    found = parse(reply[: int(len(reply) * share)], TOOLS)
    assert not isinstance(found, Call) or found.arguments == arguments


def test_tokens_written_apart_are_the_same_call() -> None:
    words = (Parameter("query", str, "Words."), Parameter("sender", str, "Who.", None, True))
    apart = parse('search ( " ann b " , sender = " ann " )', {"search": Tool("search", "Search.", words)})
    assert apart == Call("search", {"query": "ann b", "sender": "ann"})


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ('{"a": 1, "b" 2}', ErrorKind.BROKEN_JSON, 'broken at character 14, near `"a": 1, "b" 2}`'),
        ('{"a": [1, 2}', ErrorKind.BROKEN_JSON, "Expecting ',' delimiter"),
        *((cut, ErrorKind.INCOMPLETE, "cut off") for cut in ('{"a": "b\\', '{"a": "\\u12', '{"a": tr', "{")),
        ("[" * 10_000, ErrorKind.BROKEN_JSON, "nested too deeply"),
        ("[NaN]", ErrorKind.WRONG_TYPE, "NaN is not a number"),
        ("[1e400]", ErrorKind.WRONG_TYPE, "too large"),
        ("9" * 301, ErrorKind.WRONG_TYPE, "301 digits"),
    ],
)
def test_json_faults_say_what_and_where(text: str, kind: ErrorKind, words: str) -> None:
    found = read_json(text, 0)
    assert isinstance(found, Problem)
    assert found.kind is kind
    assert words in found.message


@pytest.mark.parametrize(
    "value", [None, 3, "op", [], {}, [[]], {"name": 3}, {"tool_calls": []}, {"function": 1}]
)
def test_other_json_is_no_call(value: Any) -> None:
    assert call_from_json(value) is None


def test_json_is_read_where_it_stands() -> None:
    for value in ({"name": "a"}, {"name": "a", "arguments": None}, {"name": "a", "arguments": ""}):
        assert call_from_json(value) == RawCall("a", {})
    assert read_json('{"a": "b\nc"}', 0) == ({"a": "b\nc"}, 12), "line breaks in strings"
    text = 'So {"x": 1} or {"name": "op", "arguments": {}} it is'
    found = read_json_call(text)
    assert isinstance(found, RawCall)
    assert text[found.start : found.end] == '{"name": "op", "arguments": {}}'
    assert read_json_call("{a} and {b}") is None


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (r'"\x41\101\u0042\U00000043\t\q\/\"\'"', "AABC\t\\q/\"'"),
        ('"a\\\nb"', "ab"),
        (r'"\Uffffffff"', "\\Uffffffff"),
        ("'''it's \"x\"'''", 'it\'s "x"'),
        ('""""""', ""),
        ("+3", 3),
        (".5", 0.5),
        ("1.", 1.0),
        ("-2.5E-1", -0.25),
        ("false", False),
        ("[1, [2, 'a'], (3,), {'k': null}]", [1, [2, "a"], [3], {"k": None}]),
        ("{1: 2, a: b}", {"1": 2, "a": "b"}),
    ],
)
def test_literals_are_read_as_python_writes_them(written: str, value: Any) -> None:
    found = read_text_call(f"op(first=0, x={written})", CALLS)
    assert isinstance(found, RawCall), found
    assert found.keywords == {"first": 0, "x": value}
    assert type(found.keywords["x"]) is type(value)


@pytest.mark.parametrize(
    "written",
    ["1 + 1", "f(1)", "a b", "'a' 'b'", "lambda x: 0", "[1", "[1)", "...", "x==1", f"{'[' * 40}1{']' * 40}"],
)
def test_what_is_no_literal_is_not_evaluated(written: str) -> None:
    found = read_text_call(f"op({written})", CALLS)
    assert isinstance(found, Problem)
    assert found.tool == "op"


@pytest.mark.parametrize(
    "text", ["re.op('a')", "top('a')", "I op (twice) a day", "op", "op 'a'", "the op (a, b) or", "op[1]"]
)
def test_prose_is_no_call(text: str) -> None:
    assert read_text_call(text, CALLS) is None
    assert read_markup("a < b and b > c", CALLS) is None
    assert read_tag_call("<p>text</p>", tag_pattern(TOOLS)) is None


def test_the_first_readable_call_is_taken_and_those_after_it_counted() -> None:
    text = "op(what) then op('a' b), `op('c', [1])`; op(d) op('e') op('"
    found = read_text_call(text, CALLS)
    assert isinstance(found, RawCall)
    assert text[found.start : found.end] == "op('c', [1])"
    assert (found.positional, found.extra) == (["c", [1]], 1)


def test_shown_is_short_and_printable() -> None:
    assert shown("abc") == "abc"
    assert shown("a" * 99) == "a" * 39 + "…"
    assert shown("a\n\x00\ud800") == "a\\n\\x00\\ud800"
