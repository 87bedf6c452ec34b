"""Requests of OpenAI's API: each wrong field is refused by name; and replies, split into text and calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from art_trainer.inference.sampling import SamplingParams
from art_trainer.serving.agents.recording import fingerprint
from art_trainer.serving.agents.server import AgentChatRequest
from art_trainer.serving.dialects.chat_completions import ChatRequest
from art_trainer.serving.dialects.choices import GenerationRequest
from art_trainer.serving.dialects.completions import CompletionRequest
from art_trainer.serving.dialects.conversation import ChatMessage
from art_trainer.serving.dialects.replies import split_reply, stream_safe_length
from art_trainer.serving.dialects.requests import parse
from art_trainer.serving.http.middleware import ApiError
from tests.art_trainer.serving.helpers import CALL, user

BODIES: dict[type[GenerationRequest], dict[str, Any]] = {
    ChatRequest: {"model": "tiny", "messages": [user("x")]},
    AgentChatRequest: {"model": "tiny", "messages": [user("x")]},
    CompletionRequest: {"model": "tiny", "prompt": "x"},
}
CHATS = (ChatRequest, AgentChatRequest)
EVERY = (*CHATS, CompletionRequest)


def part(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [fields]}]}


def called(*calls: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": "", "tool_calls": list(calls)}]}


REFUSED: list[tuple[tuple[type[GenerationRequest], ...], dict[str, Any], str]] = [
    (CHATS, {"messages": "hello"}, "messages"),
    (CHATS, {"messages": ["hello"]}, "messages[0]"),
    (CHATS, {"messages": [user("x"), {"role": "bot", "content": "x"}]}, "messages[1].role"),
    (CHATS, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    (CHATS, part(type="image_url", image_url={}), "messages[0].content"),
    (CHATS, called({"id": "x"}), "messages[0].tool_calls[0].function"),
    (CHATS, {"messages": [{"role": "assistant", "tool_calls": "f()"}]}, "messages[0].tool_calls"),
    (CHATS, {"tool_choice": "required"}, "tool_choice"),
    (CHATS, {"tools": [{"type": "function"}]}, "tools[0]"),
    (CHATS, {"functions": [{"name": "f"}]}, "functions"),
    (CHATS, {"top_logprobs": 2}, "top_logprobs"),
    (CHATS, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHATS, {"logprobs": 1}, "logprobs"),
    (CHATS, {"stop": ["a"] * 5}, "stop"),
    (CHATS, {"max_completion_tokens": 0}, "max_completion_tokens"),
    ((AgentChatRequest,), {"n": 2}, "n"),
    ((AgentChatRequest,), {"logprobs": True, "top_logprobs": 2}, "top_logprobs"),
    ((CompletionRequest,), {"suffix": "end"}, "suffix"),
    ((CompletionRequest,), {"best_of": 2}, "best_of"),
    ((CompletionRequest,), {"prompt": [[]]}, "prompt"),
    ((CompletionRequest,), {"prompt": [1, "a"]}, "prompt"),
    ((CompletionRequest,), {"prompt": [True]}, "prompt"),
    ((CompletionRequest,), {"prompt": ["x"] * 300}, "prompt"),
    ((CompletionRequest,), {"prompt": ["x"] * 100, "n": 100}, "n"),
    ((CompletionRequest,), {"logprobs": 21}, "logprobs"),
    ((CompletionRequest,), {"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    (EVERY, {"echo": True}, "echo"),
    (EVERY, {"response_format": {"type": "json_object"}}, "response_format"),
    (EVERY, {"logit_bias": {"3": 1}}, "logit_bias"),
    (EVERY, {"min_tokens": 3}, "min_tokens"),
    (EVERY, {"no_such_field": 1}, "no_such_field"),
    (EVERY, {"guided_json": {}}, "guided_json"),
    ((CompletionRequest, AgentChatRequest), {"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
    ((CompletionRequest, AgentChatRequest), {"reasoning_effort": "low"}, "reasoning_effort"),
    (EVERY, {"stream_options": {"x": 1}}, "stream_options.x"),
    (EVERY, {"n": 1000}, "n"),
    (EVERY, {"max_tokens": 0}, "max_tokens"),
    (EVERY, {"temperature": 1e-30}, "temperature"),
    (EVERY, {"temperature": "hot"}, "temperature"),
    (EVERY, {"top_p": 0}, "top_p"),
    (EVERY, {"min_p": 2}, "min_p"),
    (EVERY, {"top_k": -2}, "top_k"),
    (EVERY, {"repetition_penalty": 0}, "repetition_penalty"),
    (EVERY, {"stop": [""]}, "stop[0]"),
    (EVERY, {"stream": 1}, "stream"),
    (EVERY, {"seed": 1.5}, "seed"),
]


@pytest.mark.parametrize(("models", "fields", "param"), REFUSED, ids=[str(one[1])[:40] for one in REFUSED])
def test_a_wrong_field_is_refused_by_name(
    models: tuple[type[GenerationRequest], ...], fields: dict[str, Any], param: str
) -> None:
    for model in models:
        with pytest.raises(ApiError) as refused:
            parse(model, BODIES[model] | fields)
        assert (refused.value.param, refused.value.status) == (param, 400)
        assert param in str(refused.value)
        assert len(str(refused.value)) < 300


@pytest.mark.parametrize("model", EVERY)
def test_values_that_change_nothing_and_labels_are_accepted(model: type[GenerationRequest]) -> None:
    same = {"frequency_penalty": 0.0, "presence_penalty": None, "logit_bias": {}, "user": "u", "seed": None}
    assert parse(model, BODIES[model]) == parse(model, BODIES[model] | same)


def test_sampling_fields_replace_the_defaults() -> None:
    defaults = SamplingParams(temperature=0.7, top_k=5, max_new_tokens=9)
    given = parse(ChatRequest, BODIES[ChatRequest] | {"top_k": -1, "min_p": 0.1, "temperature": 0})
    assert given.generation(defaults).sampling == SamplingParams(
        temperature=0, top_k=0, min_p=0.1, max_new_tokens=9
    )
    assert parse(ChatRequest, BODIES[ChatRequest]).generation(defaults).sampling == defaults


def test_lengths_and_log_probs_are_counted_as_each_api_does() -> None:
    chat = parse(ChatRequest, BODIES[ChatRequest] | {"max_completion_tokens": 3, "logprobs": True})
    text = parse(CompletionRequest, BODIES[CompletionRequest])
    asked = [request.generation(SamplingParams()) for request in (chat, text)]
    assert [(one.max_length, one.top_logprobs) for one in asked] == [(3, 0), (16, None)]


def assistant(content: object, *arguments: object, call_id: str = "a") -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "f", "arguments": a}} for a in arguments
    ]
    return {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})


def print_of(message: dict[str, Any]) -> str:
    return fingerprint(ChatMessage.model_validate(message))


ARGUMENTS = '{"a": 1, "b": [2]}'
PARTS = [{"type": "text", "text": "wor"}, {"type": "text", "text": "ds"}]


@pytest.mark.parametrize(
    ("again", "same"),
    [
        (assistant("words", '{"b":[2],"a":1}', call_id="other"), True),
        (assistant("words", {"b": [2], "a": 1}), True),
        (assistant(PARTS, ARGUMENTS), True),
        (assistant(" words\n", ARGUMENTS) | {"refusal": None, "annotations": [], "name": "bob"}, True),
        (assistant("word", ARGUMENTS), False),
        (assistant("words", '{"a": 2}'), False),
        (assistant("words"), False),
        (assistant("words", ARGUMENTS, ARGUMENTS), False),
        ({"role": "user", "content": "words"}, False),
    ],
)
def test_fingerprints_are_equal_for_all_ways_of_writing_a_message(again: dict[str, Any], same: bool) -> None:
    assert (print_of(again) == print_of(assistant("words", ARGUMENTS))) is same


def template_arguments(arguments: str) -> Any:
    message = ChatMessage.model_validate(assistant("", arguments))
    (call,) = message.for_template()["tool_calls"]
    return call["function"]["arguments"]


@pytest.mark.parametrize(
    "arguments", ['{"x": ' + "9" * 5_000 + "}", '{"x": ' * 50_000, "{", "NaN", "[1]"], ids=len
)
def test_arguments_that_are_not_a_json_object_stay_text(arguments: str) -> None:
    assert template_arguments(arguments) == arguments
    assert print_of(assistant("", arguments)) != print_of(assistant(None, "{}"))
    assert print_of(assistant("", "")) == print_of(assistant(None, "{}"))


def test_arguments_reach_the_template_as_an_object() -> None:
    assert template_arguments('{"a": 1}') == {"a": 1}


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


@example('a</think>{"name": "weather", "arguments": {}}', True)
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
