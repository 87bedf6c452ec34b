import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.agent_server.fingerprints import fingerprint
from art_trainer.serving.messages import ChatMessage
from art_trainer.serving.tool_calls import speakable, split_reply
from art_trainer.web.errors import ApiError

CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Bonn"}}\n</tool_call>'
TOOLS = ("weather",)


def read(message: dict[str, Any]) -> ChatMessage:
    return ChatMessage.read(message, "messages[0]")


def assistant(content: object, *arguments: object, call_id: str = "a") -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "f", "arguments": one}} for one in arguments
    ]
    return {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})


@pytest.mark.parametrize(
    "again",
    [
        assistant("words", '{"a":1,"b":[2]}'),
        assistant("words", '{"b": [2], "a": 1}', call_id="other"),
        assistant("words", {"b": [2], "a": 1}),
        assistant([{"type": "text", "text": "wor"}, {"type": "text", "text": "ds"}], '{"a": 1, "b": [2]}'),
        assistant(" words\n", '{"a": 1, "b": [2]}') | {"refusal": None, "annotations": [], "name": "bob"},
    ],
)
def test_a_message_is_known_again_however_a_client_writes_it(again: dict[str, Any]) -> None:
    assert fingerprint(read(again)) == fingerprint(read(assistant("words", '{"a": 1, "b": [2]}')))


@pytest.mark.parametrize(
    "other",
    [
        assistant("word", '{"a": 1}'),
        assistant("words", '{"a": 2}'),
        assistant("words"),
        assistant("words", '{"a": 1}', '{"a": 1}'),
        {"role": "user", "content": "words"},
    ],
)
def test_a_message_that_says_something_else_is_another(other: dict[str, Any]) -> None:
    assert fingerprint(read(other)) != fingerprint(read(assistant("words", '{"a": 1}')))


def test_empty_content_and_none_are_the_same() -> None:
    assert fingerprint(read(assistant(None, "{}"))) == fingerprint(read(assistant("", "")))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("hello", "send an object"),
        ({"role": "bot", "content": "x"}, "role is 'bot'"),
        ({"role": "user", "content": 3}, "is a int"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "reads text only"),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}, "no function with a name"),
        ({"role": "assistant", "content": "", "tool_calls": "f()"}, "send a list"),
    ],
)
def test_what_is_no_message_is_refused_in_words(message: Any, words: str) -> None:
    with pytest.raises(ApiError, match=words.replace("(", r"\(")):
        ChatMessage.read(message, "messages[0]")


def test_arguments_reach_the_template_as_an_object_and_broken_ones_as_they_are() -> None:
    (call,) = read(assistant("", '{"a": 1}')).for_template()["tool_calls"]
    assert call["function"]["arguments"] == {"a": 1}
    (call,) = read(assistant("", '{"a": ')).for_template()["tool_calls"]
    assert call["function"]["arguments"] == '{"a": '


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
def test_a_reply_is_split_into_words_and_calls(text: str, content: str, names: list[str]) -> None:
    split = split_reply(text, TOOLS)
    assert (split.content, [name for name, _ in split.calls]) == (content, names)
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in split.calls)


def test_without_tools_everything_is_words() -> None:
    assert split_reply(CALL, ()).calls == ()


PIECES = st.lists(
    st.sampled_from(
        ["a", " ", "\n", "<", "<tool", "<tool_call>", CALL, "STOP", "ST", "{", "[TOOL_", "</think>"]
    ),
    max_size=8,
).map("".join)


@given(PIECES, st.booleans())
def test_what_is_said_while_a_reply_grows_begins_the_content_it_ends_with(text: str, tools: bool) -> None:
    names = TOOLS if tools else ()
    end = text.find("STOP")
    final = split_reply(text if end < 0 else text[:end], names).content
    for length in range(len(text) + 1):
        seen = text[:length]
        if "STOP" in seen[:-1]:
            break
        certain = seen[: speakable(seen, names, ("STOP",))]
        assert final.startswith(certain)


def test_words_are_said_at_once_where_nothing_can_change_them() -> None:
    assert speakable("plain words", (), ()) == len("plain words")
    assert speakable("plain words", TOOLS, ()) == len("plain words")
    assert speakable("half a sign \ufffd", (), ()) == len("half a sign ")
    assert speakable("wait <tool", TOOLS, ()) == len("wait")
