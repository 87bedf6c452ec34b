"""Separating text and tool calls in complete and in unfinished replies."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.serving.openai.replies import split_reply, stream_safe_length
from tests.art_trainer.serving.helpers import CALL

TOOLS = ("weather",)


@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        ("no call", "no call", []),
        (f"Let me see.\n{CALL}", "Let me see.", ["weather"]),
        (f"{CALL}\n{CALL}", "", ["weather", "weather"]),
        ("<think>use <tool_call>?</think>Hm.", "<think>use <tool_call>?</think>Hm.", []),
        (f"<think>x</think>{CALL}", "<think>x</think>", ["weather"]),
        ('{"name": "weather", "parameters": {"town": "Bonn"}}', "", ["weather"]),
        ('{"name": "Ann", "parameters": {"age": 3}}', '{"name": "Ann", "parameters": {"age": 3}}', []),
        ('[TOOL_CALLS][{"name": "weather", "arguments": {}}, {"name": "x", "arguments": {}}]', "",
         ["weather", "x"]),
        ("<function=weather><parameter=town>Bonn</parameter></function>", "", ["weather"]),
        ('<tool_call>{"name": "weather", "argum', '<tool_call>{"name": "weather", "argum', []),
    ],
)  # fmt: skip
def test_a_reply_is_split_into_text_and_calls(text: str, content: str, names: list[str]) -> None:
    words, calls = split_reply(text, TOOLS)
    assert (words, [name for name, _ in calls]) == (content, names)
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)
    assert split_reply(text, ()) == (text, [])


PIECES = st.lists(
    st.sampled_from(
        ["a", " ", "\n", "<", "<tool", "<tool_call>", CALL, "STOP", "ST", "{", "[TOOL_", "</think>"]
    ),
    max_size=8,
).map("".join)


@given(PIECES, st.booleans())
def test_streamed_text_is_a_prefix_of_the_final_content(text: str, tools: bool) -> None:
    names = TOOLS if tools else ()
    end = text.find("STOP")
    final, _ = split_reply(text if end < 0 else text[:end], names)
    for length in range(len(text) + 1):
        seen = text[:length]
        if "STOP" in seen[:-1]:
            break
        assert final.startswith(seen[: stream_safe_length(seen, names, ("STOP",))])


@pytest.mark.parametrize(
    ("text", "tools", "safe"),
    [
        ("plain words", (), "plain words"),
        ("plain words", TOOLS, "plain words"),
        ("half a character \ufffd", (), "half a character "),
        ("wait <tool", TOOLS, "wait"),
    ],
)
def test_certain_text_is_streamed_at_once(text: str, tools: tuple[str, ...], safe: str) -> None:
    assert text[: stream_safe_length(text, tools, ())] == safe
