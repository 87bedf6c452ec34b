import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from fastapi.routing import APIRoute

from art_trainer.agent_server import AgentServer
from art_trainer.agent_server.app import _ROUTES
from art_trainer.slot_decoder import SlotDecoder
from tests.art_trainer.agent_server.agent_helpers import (
    TOOL_CHATML,
    WEATHER,
    asked,
    client_of,
    plain_client,
    puppet_server,
    tiny_policy,
    user,
)
from tests.art_trainer.waiting import until

CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Bonn"}}\n</tool_call>'
CHAT = "/v1/chat/completions"


def chat(client: openai.OpenAI, messages: list[Any], **options: Any) -> Any:
    return client.chat.completions.create(model="any", messages=messages, **options)


def streamed(client: openai.OpenAI, messages: list[Any], **options: Any) -> tuple[str, list[Any], list[Any]]:
    """A stream's words, its calls and its chunks."""
    words, calls = "", {}
    chunks = list(chat(client, messages, stream=True, **options))
    for chunk in chunks:
        for choice in chunk.choices:
            words += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                calls[call.index] = (call.id, call.function.name, call.function.arguments)
    return words, [calls[index] for index in sorted(calls)], chunks


def test_a_stream_says_what_the_whole_answer_says_with_real_sampling() -> None:
    with AgentServer(tiny_policy()) as server:
        session = server.open(5)
        with client_of(server, session) as client:
            whole = chat(client, [user("hello")], seed=3, logprobs=True)
            options = {"seed": 3, "logprobs": True, "stream_options": {"include_usage": True}}
            words, _, chunks = streamed(client, [user("hello")], **options)
    choice = whole.choices[0]
    assert words == choice.message.content
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == choice.finish_reason
    assert chunks[-2].choices[0].logprobs.content == choice.logprobs.content
    assert len(choice.logprobs.content) == whole.usage.completion_tokens > 3
    assert len({chunk.id for chunk in chunks}) == 1


def test_words_are_streamed_while_they_are_sampled() -> None:
    with puppet_server("good morning") as (server, session), client_of(server, session) as client:
        words, _, chunks = streamed(client, [user("hello")])
    assert words == "good morning"
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) >= 1
    assert chunks[0].choices[0].delta.role == "assistant"


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_in_openais_format_and_their_answers_continue_the_tokens(stream: bool) -> None:
    with puppet_server(f"Let me see. {CALL}{CALL}", "It rains.") as (server, session):
        with client_of(server, session) as client:
            messages = [user("rain in Bonn?")]
            if stream:
                words, calls, chunks = streamed(client, messages, tools=[WEATHER])
                finish = chunks[-1].choices[0].finish_reason
            else:
                choice = chat(client, messages, tools=[WEATHER]).choices[0]
                words, finish = choice.message.content, choice.finish_reason
                calls = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls]
            assert (words, finish) == ("Let me see.", "tool_calls")
            assert [(name, json.loads(arguments)) for _, name, arguments in calls] == [
                ("weather", {"town": "Bonn"})
            ] * 2
            back = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": '{"town":"Bonn"}'}}
                for i, n, _ in calls
            ]
            messages += [{"role": "assistant", "content": "Let me see.", "tool_calls": back}]
            messages += [{"role": "tool", "content": "rain", "tool_call_id": i} for i, _, _ in calls]
            answer = chat(client, messages, tools=[WEATHER])
        assert answer.choices[0].message.content == "It rains."
        assert answer.choices[0].message.tool_calls is None
        first, second = server.sampler.contexts  # type: ignore[attr-defined]
        assert second[: len(first)] == first
        assert len(session.recording.histories()) == 1


def test_with_tool_choice_none_the_model_sees_no_tools_and_a_call_is_words() -> None:
    with puppet_server(CALL) as (server, session), client_of(server, session) as client:
        message = chat(client, [user("x")], tools=[WEATHER], tool_choice="none").choices[0].message
        assert (message.content, message.tool_calls) == (CALL, None)
        assert len(server.sampler.contexts[0]) < 100  # type: ignore[attr-defined]


def test_without_parallel_calls_the_client_gets_the_first() -> None:
    with puppet_server(CALL + CALL) as (server, session), client_of(server, session) as client:
        message = chat(client, [user("x")], tools=[WEATHER], parallel_tool_calls=False).choices[0].message
        assert len(message.tool_calls) == 1


def test_a_stop_string_ends_the_reply_and_is_cut_from_it() -> None:
    with AgentServer(tiny_policy(max_new_tokens=30)) as server:
        session = server.open(1)
        with client_of(server, session) as client:
            free = chat(client, [user("hello")], seed=1).choices[0].message.content
            stop = free[4:6]
            cut = chat(client, [user("hello")], seed=1, stop=[stop])
            streamed_words, _, _ = streamed(client, [user("hello")], seed=1, stop=[stop])
            short = chat(client, [user("hello")], seed=1, max_tokens=3)
    assert cut.choices[0].message.content == streamed_words == free[: free.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert (short.usage.completion_tokens, short.choices[0].finish_reason) == (3, "length")


def test_a_client_that_asks_again_gets_the_stored_reply() -> None:
    with AgentServer(tiny_policy()) as server:
        session = server.open()
        with client_of(server, session) as client:
            first = chat(client, [user("hello")])
            again = chat(client, [user("hello")], extra_headers={"x-stainless-retry-count": "1"})
            fresh = chat(client, [user("hello")])
            keyed = [chat(client, [user("k")], extra_headers={"idempotency-key": "7"}) for _ in range(2)]
            words, _, _ = streamed(client, [user("hello")])
    assert again.model_dump() == first.model_dump()
    assert fresh.choices[0].message.content != first.choices[0].message.content
    assert keyed[0].model_dump() == keyed[1].model_dump()
    assert words not in (first.choices[0].message.content, fresh.choices[0].message.content)
    assert len(session.recording.histories()) == 4


def test_openais_client_that_loses_an_answer_retries_into_the_stored_reply() -> None:
    lost: list[httpx.Request] = []

    class LosesTheFirst(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            response = super().handle_request(request)
            response.read()
            if not lost:
                lost.append(request)
                raise httpx.ReadTimeout("lost on the way", request=request)
            return response

    with (
        puppet_server("once", "twice") as (server, session),
        httpx.Client(transport=LosesTheFirst()) as http,
        client_of(server, session, max_retries=2, http_client=http) as client,
    ):
        answer = chat(client, [user("hello")])
    assert lost
    assert answer.choices[0].message.content == "once"
    assert len(session.recording.histories()) == 1


def test_a_plain_client_that_hung_up_gets_the_reply_that_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    step = SlotDecoder.step

    def held(self: SlotDecoder, sequences: Any) -> None:
        go_on.wait(60)
        step(self, sequences)

    monkeypatch.setattr(SlotDecoder, "step", held)
    with AgentServer(tiny_policy()) as server:
        session = server.open()
        body = {"model": "any", "messages": [user("hello")]}
        with plain_client(server, session) as client:
            with asked(client, CHAT, body):
                until(lambda: any(e.clients for e in session._exchanges.values()))
            until(lambda: not any(e.clients for e in session._exchanges.values()))
            go_on.set()
            answers = [client.post(CHAT, json=body).json()["choices"] for _ in range(2)]
    assert answers[0] != answers[1]
    assert len(session.recording.histories()) == 2  # the one that was missed, and a new one


def test_many_clients_share_one_batch_and_get_what_each_gets_alone() -> None:
    policy = tiny_policy(max_batch=4)

    def talk(server: AgentServer, number: int) -> list[str]:
        session, words = server.open(number), []
        with client_of(server, session) as client:
            messages = [user(f"I am {number}")]
            for _ in range(3):
                words.append(chat(client, messages).choices[0].message.content)
                messages += [{"role": "assistant", "content": words[-1]}, user("go on")]
        assert len(session.recording.histories()) == 1
        return words

    with AgentServer(policy) as server:
        alone = [talk(server, number) for number in range(3)]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda number: talk(server, number), range(8)))
    assert together[:3] == alone


def test_a_full_context_is_told_in_openais_form() -> None:
    with AgentServer(tiny_policy(max_context=60)) as server:
        session = server.open()
        with client_of(server, session) as client:
            with pytest.raises(openai.BadRequestError) as told:
                chat(client, [user("x" * 60)])
            assert told.value.code == "context_length_exceeded"
            assert "60 tokens" in told.value.message
            assert chat(client, [user("x")]).usage.completion_tokens == 12


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "at least one message"),
        ({"messages": "hello"}, "at least one message"),
        ({"n": 2}, "n=2 is not offered"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice='required'"),
        ({"tools": [{"type": "function"}]}, "tools[0] has no function"),
        ({"max_tokens": 0}, "at least 1"),
        ({"max_tokens": True}, "send a int"),
        ({"stop": ["a"] * 5}, "up to 4 texts"),
        ({"stream": "yes"}, "send a bool"),
        ({"logit_bias": {"3": 1}}, "logit_bias"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    with puppet_server() as (server, session), plain_client(server, session) as client:
        url = CHAT
        answer = client.post(url, json={"model": "any", "messages": [user("x")]} | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert words in answer.json()["error"]["message"]


def test_a_template_that_refuses_the_messages_is_told_to_the_client() -> None:
    refusal = "{% if messages[-1]['content'] == 'boom' %}{{ raise_exception('no boom') }}{% endif %}"
    with (
        puppet_server(policy=tiny_policy(refusal + TOOL_CHATML)) as (server, session),
        client_of(server, session) as client,
        pytest.raises(openai.BadRequestError, match="no boom"),
    ):
        chat(client, [user("boom")])


def test_the_models_are_listed_by_name_and_version() -> None:
    with puppet_server("x") as (server, session), client_of(server, session) as client:
        server.policy.version = 4
        assert [model.id for model in client.models.list()] == ["tiny", "tiny@4"]
        assert chat(client, [user("x")]).model == "tiny@4"


def test_token_ids_are_given_to_who_asks_for_them() -> None:
    with puppet_server("hey") as (server, session), client_of(server, session) as client:
        answer = chat(client, [user("x")], extra_body={"return_token_ids": True}).model_dump()
    (history,) = session.recording.histories()
    assert (*answer["prompt_token_ids"], *answer["choices"][0]["token_ids"]) == history.token_ids


def test_a_policy_that_breaks_is_a_server_error_and_the_next_question_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = tiny_policy()
    with AgentServer(policy) as server:
        session = server.open()
        with client_of(server, session) as client:
            with monkeypatch.context() as patch:
                patch.setattr(policy.model, "forward", lambda **inputs: 1 / 0)
                with pytest.raises(openai.InternalServerError, match="ZeroDivisionError"):
                    chat(client, [user("x")])
            retried = {"x-stainless-retry-count": "1"}
            assert chat(client, [user("x")], extra_headers=retried).usage.completion_tokens == 12


def test_a_reward_ends_the_episode_and_counts_once() -> None:
    with puppet_server("x") as (server, session), plain_client(server, session) as client:
        path = "/reward"
        for wrong in ({"reward": "1"}, {"rewart": 1}, {}, {"reward": 1, "success": "yes"}):
            assert client.post(path, json=wrong).status_code == 400
        nan = client.post(path, content=b'{"reward": NaN}', headers={"content-type": "application/json"})
        assert nan.status_code == 400
        assert session.reward is None
        body = {"reward": 0.5, "success": True, "metrics": {"steps": 3}}
        assert [client.post(path, json=body).status_code for _ in range(2)] == [200, 200]
        assert client.post(path, json={"reward": 1}).json()["error"]["code"] == "already_rewarded"
        late = client.post(CHAT, json={"messages": [user("x")]})
        assert (late.status_code, late.json()["error"]["code"]) == (410, "episode_over")
    assert session.reward is not None
    assert (session.reward.value, session.reward.success) == (0.5, True)


def test_every_route_wants_the_episodes_own_token() -> None:
    routes = [route for route in _ROUTES.routes if isinstance(route, APIRoute)]
    assert len(routes) == len(_ROUTES.routes) == 3
    with puppet_server("x") as (server, session), httpx.Client(base_url=server.url) as client:
        other = server.open()
        for route in routes:
            for path in (session.id, "nobody"):
                for headers in ({}, {"authorization": f"Bearer {other.token}"},
                                {"authorization": f"Basic {session.token}"}):  # fmt: skip
                    url = route.path.replace("{episode}", path)
                    answer = client.request(min(route.methods), url, headers=headers, json={})
                    assert answer.status_code == 401, (url, headers)
                    assert answer.json()["error"]["code"] == "invalid_api_key"
        for path in ("/docs", "/openapi.json", "/redoc", "/", "/episodes"):
            assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 400),
        ({"host": "127.0.0.1.evil.example"}, 400),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"content-type": "text/plain"}, 415),
    ],
)
def test_other_hosts_pages_and_kinds_of_content_are_refused(headers: dict[str, str], status: int) -> None:
    with puppet_server("x") as (server, session), plain_client(server, session) as client:
        url = CHAT
        body = json.dumps({"messages": [user("x")]}).encode()
        sent = {"content-type": "application/json"} | headers
        assert client.post(url, content=body, headers=sent).status_code == status


def test_large_and_broken_bodies_are_refused() -> None:
    with AgentServer(tiny_policy(), max_body_bytes=1000) as server:
        session = server.open()
        with plain_client(server, session) as client:
            url, kind = CHAT, {"content-type": "application/json"}
            assert client.post(url, content=b"x" * 2000, headers=kind).status_code == 413
            parts = (b"x" * 100 for _ in range(20))  # sent in chunks, without a length
            assert client.post(url, content=parts, headers=kind).status_code == 413
            for broken in (b"{", b"[1]", b"[" * 900, b"\xff"):
                assert client.post(url, content=broken, headers=kind).status_code == 400


def test_no_secret_stands_in_a_url_or_a_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), puppet_server("x") as (server, session):
        assert session.token not in server.base_url(session)
        with client_of(server, session) as client:
            chat(client, [user("x")])
    assert session.token not in caplog.text


def test_an_address_that_is_every_address_is_refused() -> None:
    with pytest.raises(ValueError, match="every address of this machine"):
        AgentServer(tiny_policy(), host="0.0.0.0")
