"""The agent server: one URL and token per episode, replies that can be fetched again, and the reward."""

import logging
from collections.abc import Mapping
from typing import Any

import httpx
import openai
import pytest
from fastapi.routing import APIRoute

from art_trainer.serving.agents import AgentServer
from art_trainer.serving.agents.server import _ROUTES
from art_trainer.serving.dialects import streams
from tests.art_trainer.serving.helpers import (
    CHAT,
    REFUSES_BOOM,
    TOOL_CHATML,
    agent_client,
    chat,
    collect,
    content,
    disconnecting,
    hold_decoder,
    plain_agent_client,
    scripted_agent_server,
    tiny_policy,
    user,
)
from tests.art_trainer.waiting import until

BODY = {"model": "any", "messages": [user("hello")]}
JSON = {"content-type": "application/json"}


def test_a_retry_gets_the_stored_reply_and_a_new_request_another() -> None:
    options: dict[str, Any] = {"logprobs": True, "extra_body": {"return_token_ids": True}}
    with AgentServer(tiny_policy()) as server:
        session = server.open()
        with agent_client(server, session) as client:
            first = chat(client, **options)
            again = chat(client, **options, extra_headers={"x-stainless-retry-count": "1"})
            fresh = chat(client)
            keyed = [chat(client, "k", extra_headers={"idempotency-key": "7"}) for _ in range(2)]
            streamed, _, _, _ = collect(list(chat(client, stream=True)))
    assert again.model_dump() == first.model_dump()
    assert keyed[0].model_dump() == keyed[1].model_dump()
    assert len({content(first), content(fresh), streamed}) == 3
    histories = session.recording.histories()
    assert len(histories) == 4
    reported = (*first.model_dump()["prompt_token_ids"], *first.model_dump()["choices"][0]["token_ids"])
    assert reported == histories[0].token_ids
    assert [one.logprob for one in first.choices[0].logprobs.content] == list(histories[0].logprobs)


def test_openais_client_that_loses_a_response_retries_into_the_stored_reply() -> None:
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
        scripted_agent_server("once", "twice") as (server, session),
        httpx.Client(transport=LosesTheFirst()) as http,
        agent_client(server, session, max_retries=2, http_client=http) as client,
    ):
        answer = chat(client)
    assert lost
    assert content(answer) == "once"
    assert len(session.recording.histories()) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_gets_the_reply_that_it_missed(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = hold_decoder(monkeypatch)
    body = BODY | {"stream": stream}
    with AgentServer(tiny_policy()) as server:
        session = server.open()
        with plain_agent_client(server, session) as client:
            with disconnecting(client, CHAT, body):
                until(lambda: any(one.clients for one in session._exchanges.values()))
            until(lambda: not any(one.clients for one in session._exchanges.values()))
            go_on.set()
            answers = [client.post(CHAT, json=body).text for _ in range(2)]
    assert answers[0] != answers[1]
    assert len(session.recording.histories()) == 2  # the one that was missed, and a new one


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_who_leaves_with_the_last_event_has_the_reply(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, write = list[int](), streams._event

    def spy(data: Mapping[str, Any]) -> str:
        counts.append(len(session.recording.histories()))
        return write(data)

    monkeypatch.setattr(streams, "_event", spy)
    with scripted_agent_server("Hello") as (server, session), plain_agent_client(server, session) as client:
        field, limit = {"responses": ("input", "max_output_tokens")}.get(path, ("messages", "max_tokens"))
        client.post(f"/v1/{path}", json={field: [user("Hi")], limit: 9, "stream": True})
    assert (counts[0], counts[-1]) == (0, 1)


def test_a_request_that_failed_is_sampled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy(REFUSES_BOOM + TOOL_CHATML)
    policy.version = 4
    with AgentServer(policy) as server, agent_client(server, server.open()) as client:
        listed = (*client.models.list(), client.models.retrieve("an/y"))
        assert [model.id for model in listed] == ["tiny", "tiny@4", "an/y"]
        with pytest.raises(openai.BadRequestError, match="no boom"):
            chat(client, "boom")
        for place in ((policy.model, "forward"), (server.chat, "in_thread")):
            with monkeypatch.context() as patch:
                patch.setattr(*place, lambda *_, **inputs: 1 / 0)
                with pytest.raises(openai.InternalServerError, match="ZeroDivisionError"):
                    chat(client, "x")
        retried = chat(client, "x", extra_headers={"x-stainless-retry-count": "1"})
        assert (retried.usage.completion_tokens, retried.model) == (12, "tiny@4")


def test_an_episode_continues_its_own_cached_context_and_frees_it_at_its_end() -> None:
    with AgentServer(tiny_policy()) as server:
        one, other = server.open(), server.open()
        for session in (one, other):
            with agent_client(server, session) as client:
                messages = [user("a question that is long enough to be kept")]
                first = content(chat(client, messages))
                chat(client, [*messages, {"role": "assistant", "content": first}, user("and?")])
        assert server.scheduler.wait_idle(60)
        assert list(server.scheduler._idle.values()) == [one, other]
        server.forget(one)
        assert server.scheduler.wait_idle(60)
        assert list(server.scheduler._idle.values()) == [other]


def test_a_reward_ends_the_episode_and_counts_once() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"reward": "1"}, "reward"),
        ({"reward": 1, "rewart": 1}, "rewart"),
        ({}, "reward"),
        ({"reward": 1, "success": "yes"}, "success"),
    ]
    with scripted_agent_server("x") as (server, session), plain_agent_client(server, session) as client:
        for body, param in wrong:
            answer = client.post("/reward", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert client.post("/reward", content=b'{"reward": NaN}', headers=JSON).status_code == 400
        assert session.reward is None
        body = {"reward": 0.5, "success": True, "metrics": {"steps": 3}}
        assert [client.post("/reward", json=body).status_code for _ in range(2)] == [200, 200]
        assert client.post("/reward", json={"reward": 1}).json()["error"]["code"] == "already_rewarded"
        late = client.post(CHAT, json=BODY)
        assert (late.status_code, late.json()["error"]["code"]) == (410, "episode_over")
    assert session.reward is not None
    assert (session.reward.reward, session.reward.success) == (0.5, True)


def test_every_route_needs_the_episodes_own_token(caplog: pytest.LogCaptureFixture) -> None:
    routes = [route for route in _ROUTES.routes if isinstance(route, APIRoute)]
    assert len(routes) == len(_ROUTES.routes) == 9
    with (
        caplog.at_level(logging.DEBUG),
        scripted_agent_server("x") as (server, session),
        httpx.Client(base_url=server.url) as client,
    ):
        sent = ("", f"Bearer {server.open().token}", f"Basic {session.token}")
        for route in routes:
            for path in (session.id, "nobody"):
                for token in sent:
                    url, headers = route.path.replace("{episode}", path), {"authorization": token}
                    answer = client.request(min(route.methods), url, headers=headers, json={})
                    assert answer.status_code == 401, (url, token)
                    error = answer.json()["error"]
                    assert error.get("code", error["type"]) in ("invalid_api_key", "authentication_error")
        for path in ("/docs", "/openapi.json", "/redoc", "/", "/episodes"):
            assert client.get(path).status_code == 404
        with agent_client(server, session) as own:
            chat(own)
    assert session.token not in server.base_url(session)
    assert session.token not in caplog.text


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"host": "evil.example"}, b"{}", 400),
        ({"origin": "http://evil.example"}, b"{}", 403),
        ({"origin": "null"}, b"{}", 403),
        ({"content-type": "text/plain"}, b"{}", 415),
        ({}, b"x" * 2000, 413),
        *(({}, body, 400) for body in (b"{", b"[1]", b"[" * 900, b"\x80\x04K\x01.")),
    ],
)
def test_other_hosts_origins_and_bodies_are_refused(
    headers: dict[str, str], body: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art_trainer.serving.agents.server._MAX_BODY_BYTES", 1000)
    with AgentServer(tiny_policy()) as server, plain_agent_client(server, server.open()) as client:
        assert client.post(CHAT, content=body, headers=JSON | headers).status_code == status


def test_an_address_that_is_every_address_is_refused() -> None:
    with pytest.raises(ValueError, match="host"):
        AgentServer(tiny_policy(), host="0.0.0.0")
