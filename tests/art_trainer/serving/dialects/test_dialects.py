"""OpenAI's Responses API and Anthropic's Messages API, asked by the official clients unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from anthropic import beta_tool

from art_trainer.serving.agents import AgentServer
from art_trainer.serving.agents.sessions import Session
from art_trainer.serving.dialects import ServedPolicy
from tests.art_trainer.serving.helpers import (
    CALL,
    TOKEN,
    WEATHER,
    agent_client,
    plain_agent_client,
    scripted_agent_server,
    scripted_client,
    serving,
    tiny_policy,
    user,
)

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
FLAT = {"type": "function", **WEATHER["function"]}
TOOL: Any = {
    "name": "weather",
    "description": "The weather.",
    "input_schema": WEATHER["function"]["parameters"],
    "cache_control": {"type": "ephemeral"},
}
SAID = f"Let me look. {CALL}"


def claude(server: AgentServer, session: Session) -> anthropic.Anthropic:
    url = server.base_url(session).removesuffix("/v1")
    return anthropic.Anthropic(base_url=url, api_key=session.token, max_retries=0)


def responses_whole(client: openai.OpenAI, **options: Any) -> Any:
    return client.responses.create(model="tiny", **options)


def responses_streamed(client: openai.OpenAI, **options: Any) -> Any:
    """The official helper builds the response from its events, and checks their order."""
    with client.responses.stream(model="tiny", **options) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    return response


@pytest.mark.parametrize("ask", [responses_whole, responses_streamed])
def test_responses_with_tools_are_one_history(ask: Callable[..., Any]) -> None:
    with (
        scripted_agent_server(SAID, "It rains.", "Always.") as (server, session),
        agent_client(server, session) as client,
    ):
        asked: list[Any] = [user("rain in Bonn?")]
        options: Any = {"instructions": "Be brief.", "tools": [FLAT]}
        first = ask(client, input=asked, **options)
        text, call = first.output
        assert (text.content[0].text, text.status) == ("Let me look.", "completed")
        assert (call.name, json.loads(call.arguments)) == ("weather", {"town": "Bonn"})
        assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
        answer = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        second = ask(client, input=[*asked, *first.output, answer], **options)
        assert (second.output_text, second.status) == ("It rains.", "completed")
        third = ask(client, input="Often?", previous_response_id=second.id, **options)
        assert third.output_text == "Always."
        assert third.previous_response_id == second.id
        turns = session.recording.turns(1.0)
    (history,) = session.recording.histories()
    written = server.policy.format.decode(history.token_ids)
    assert written.count(SAID) == written.count("It rains.") == 1
    assert "<|im_start|>system\nBe brief.<|im_end|>" in written
    assert [turn.observation for turn in turns] == ["rain", "Often?", ""]


@pytest.mark.parametrize("streams", [False, True])
def test_messages_with_tools_are_one_history(streams: bool) -> None:
    def ask(**options: Any) -> Any:
        given: Any = {"model": "tiny", "max_tokens": 50, "tools": [TOOL], **options}
        if not streams:
            return client.messages.create(**given)
        with client.messages.stream(**given) as stream:
            pieces = list(stream.text_stream)
            final = stream.get_final_message()
        assert "".join(pieces) == "".join(block.text for block in final.content if block.type == "text")
        return final

    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    with scripted_agent_server(SAID, "It rains.") as (server, session), claude(server, session) as client:
        asked: list[Any] = [user("rain in Bonn?")]
        first = ask(system=system, messages=asked)
        text, call = first.content
        assert (text.text, first.stop_reason) == ("Let me look.", "tool_use")
        assert (call.name, call.input) == ("weather", {"town": "Bonn"})
        counted = client.messages.count_tokens(model="tiny", system=system, messages=asked, tools=[TOOL])
        assert counted.input_tokens == first.usage.input_tokens > 50
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "no rain", "is_error": True}
        said = [{"type": "text", "text": "Well?"}]
        asked += [
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result, *said]},
        ]
        second = ask(system=system, messages=asked)
        assert (second.content[0].text, second.stop_reason) == ("It rains.", "end_turn")
    (history,) = session.recording.histories()
    written = server.policy.format.decode(history.token_ids)
    assert "<tool_response>\nError: no rain\n</tool_response><|im_end|>\n<|im_start|>user\nWell?" in written


def test_anthropics_tool_runner_drives_a_policy_that_writes_plain_calls() -> None:
    @beta_tool
    def weather(town: str, day: str = "today") -> str:
        """The weather.

        Args:
            town: Where.
            day: When.
        """
        return f"rain in {town} {day}"

    with (
        scripted_agent_server('weather("Bonn", day="soon")', "It rains.") as (server, session),
        claude(server, session) as client,
    ):
        runner = client.beta.messages.tool_runner(
            model="tiny", max_tokens=50, tools=[weather], messages=[{"role": "user", "content": "rain?"}]
        )
        final = runner.until_done()
    assert final.content[0].type == "text"
    assert final.content[0].text == "It rains."
    (history,) = session.recording.histories()
    assert "rain in Bonn soon" in server.policy.format.decode(history.token_ids)


def test_why_a_message_ended() -> None:
    asked: Any = {"model": "tiny", "messages": [user("count")], "max_tokens": 9}
    with (
        scripted_client("one. two", "weather(") as (_, url, _),
        anthropic.Anthropic(base_url=url, auth_token=TOKEN, max_retries=0) as client,
    ):
        stopped: Any = client.messages.create(**asked, stop_sequences=["three", ". "])
        assert (stopped.content[0].text, stopped.stop_sequence) == ("one", ". ")
        assert stopped.stop_reason == "stop_sequence"
        unreadable: Any = client.messages.create(**asked, tools=[TOOL])
        assert unreadable.content[0].text == "weather("
    with serving(ServedPolicy(tiny_policy())) as url:
        with anthropic.Anthropic(base_url=url, api_key=TOKEN, max_retries=0) as client:
            cut = client.messages.create(
                model="tiny", messages=[user("x")], max_tokens=1, extra_body={"top_k": 3}
            )
            assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 1)
            with pytest.raises(anthropic.NotFoundError, match="no model 'tinny'"):
                client.messages.create(model="tinny", messages=[user("x")], max_tokens=1)
            with pytest.raises(anthropic.NotFoundError, match="'not_found_error'"):
                client.messages.batches.list()
            with pytest.raises(anthropic.APIStatusError, match=r"'invalid_request_error'.*Allowed") as wrong:
                client.get("/v1/messages", cast_to=object)
            assert wrong.value.response.headers["allow"] == "POST"
        with openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0) as client:
            short = client.responses.create(model="tiny", input="x", max_output_tokens=1)
            assert short.status == "incomplete"
            assert short.incomplete_details is not None
            assert short.incomplete_details.reason == "max_output_tokens"
            unstored = client.responses.create(model="tiny", input="x", store=False)
            for unknown in (unstored.id, "resp_x"):
                with pytest.raises(openai.NotFoundError, match="send the whole conversation"):
                    client.responses.create(model="tiny", input="y", previous_response_id=unknown)


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": [{"type": "reasoning", "summary": []}]}, "input[0]"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "content"),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "web_search"),
        (RESPONSES, {"tools": [{"type": "function"}]}, "name"),
        (RESPONSES, {"tools": [{**FLAT, "parameters": {"properties": 3}}]}, "parameters"),
        (RESPONSES, {"tools": [{**FLAT, "defer_loading": True}]}, "defer_loading"),
        (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}, "text"),
        (RESPONSES, {"truncation": "auto"}, "truncation"),
        (RESPONSES, {"reasoning": {"effort": "low"}}, "reasoning"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"conversation": "c"}, "conversation"),
        (RESPONSES, {"no_such_field": 1}, "no_such_field"),
        (MESSAGES, {"max_tokens": None}, "max_tokens"),
        (MESSAGES, {"messages": []}, "messages"),
        (MESSAGES, {"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        (MESSAGES, {"messages": [user("x"), {"role": "assistant", "content": "y"}]}, "assistant"),
        (MESSAGES, {"messages": [user([{"type": "image"}])]}, "messages[0].content[0]"),
        (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
        (MESSAGES, {"tools": [{**TOOL, "input_examples": [{"town": "Bonn"}]}]}, "input_examples"),
        (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice.type"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking"),
        (MESSAGES, {"mcp_servers": [{}]}, "mcp_servers"),
        (MESSAGES, {"top_k": -1}, "top_k"),
        (MESSAGES, {"no_such_field": 1}, "no_such_field"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(path: str, body: dict[str, Any], named: str) -> None:
    whole = {"input": "x"} if path == RESPONSES else {"messages": [user("x")], "max_tokens": 9}
    with scripted_agent_server() as (server, session), plain_agent_client(server, session) as client:
        answer = client.post(path, json=whole | body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert named in error["message"]
    assert error["type"] == "invalid_request_error"
    assert ("type" in answer.json()) == (path == MESSAGES)  # Anthropic's form
