"""The policy of a chat API: requests, replies, retries, faults. The transport is replaced, not the client."""

import json
import threading
import time
from types import SimpleNamespace

import httpx
import numpy as np
import openai
import pytest

from art_trainer.inference.openai_policy import OpenAIPolicy
from art_trainer.inference.policy import Conversation
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.types import Ending, EpisodeSpec
from tests.art_trainer.tiny_models import EchoEnv

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]


def completion(content="hello", calls=(), finish="stop"):
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    tool_calls = [{"id": "call", "type": "function", "function": function} for function in functions]
    message = {"role": "assistant", "content": content, "tool_calls": tool_calls or None}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
    return {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


@pytest.fixture
def serve(monkeypatch):
    """Answer request number n with ``answer(n, request)``: a status and a body, or an exception to raise."""
    real = openai.OpenAI

    def start(answer):
        server = SimpleNamespace(requests=[], busy=0, most_busy=0)
        lock = threading.Lock()

        def handle(request):
            asked = json.loads(request.content)
            with lock:
                number = len(server.requests)
                server.requests.append(asked)
                server.busy += 1
                server.most_busy = max(server.most_busy, server.busy)
            found = answer(number, asked)
            with lock:
                server.busy -= 1
            if isinstance(found, Exception):
                raise found
            status, body = found
            text = body if isinstance(body, str) else json.dumps(body)
            headers = {"Retry-After-Ms": "1", "Content-Type": "application/json"}
            return httpx.Response(status, headers=headers, text=text)

        transport = httpx.MockTransport(handle)
        monkeypatch.setattr(
            openai, "OpenAI", lambda **options: real(**options, http_client=httpx.Client(transport=transport))
        )
        return server

    return start


def conversation(tools=(), seed=0):
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "find it"}]
    return Conversation(EchoEnv(), messages, list(tools), np.random.default_rng(seed), 0)


def ask(tools=(), **options):
    with OpenAIPolicy("m", "http://server/v1", **options) as policy:
        live = conversation(tools)
        policy.submit(live)
        ((answered, reply),) = policy.collect()
        assert answered is live
        assert policy.collect() == []
        assert policy.release(live) == ()
    return live, reply


def test_an_answer_becomes_the_reply(serve):
    server = serve(lambda n, r: (200, completion("héllo")))
    live, reply = ask(TOOLS, temperature=0.3, max_new_tokens=77, extra_body={"min_p": 0.1})
    assert (reply.text, reply.stop, reply.token_count, reply.error) == ("héllo", "stop", 5, None)
    assert live.messages[-1] == {"role": "assistant", "content": "héllo"}
    (request,) = server.requests
    assert (request["messages"], request["tools"]) == (live.messages[:-1], TOOLS)
    assert (request["model"], request["temperature"], request["min_p"]) == ("m", 0.3, 0.1)
    assert request["max_completion_tokens"] == 77


def test_seeds_come_from_the_conversation_and_can_be_left_out(serve):
    server = serve(lambda n, r: (200, completion()))
    ask()
    ask()
    ask(TOOLS, send_tools=False, send_seed=False, temperature=None)
    first, second, third = server.requests
    serve(lambda n, r: (200, completion(None, finish="length")))
    _, cut = ask()
    assert (cut.text, cut.stop, cut.error) == ("", "length", None)
    assert first["seed"] == second["seed"]
    assert {"seed", "temperature", "tools"}.isdisjoint(third)


def test_native_tool_calls_are_written_in_hermes_form(serve):
    long = '{"a": ' + 5000 * "1" + "}"  # Python reads no number of that many digits
    calls = [("search", '{"query": "bücher"}'), ("read", None), ("broken", '{"a": '), ("long", long)]
    serve(lambda n, r: (200, completion("I look.", calls, "tool_calls")))
    assert ask()[1].text.splitlines() == [
        "I look.",
        '<tool_call>{"name": "search", "arguments": {"query": "bücher"}}</tool_call>',
        '<tool_call>{"name": "read", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "broken", "arguments": {"a": }</tool_call>',
        f'<tool_call>{{"name": "long", "arguments": {long}}}</tool_call>',
    ]


def test_a_busy_server_is_asked_again_and_a_refusal_ends_the_episode(serve):
    answers = [(503, {"error": {"message": "busy"}})] * 2 + [(200, completion("at last"))]
    serve(lambda n, r: answers[n])
    assert ask(max_retries=2)[1].text == "at last"
    server = serve(lambda n, r: (401, {"error": {"message": "no such luck"}}))
    live, reply = ask(max_retries=2)
    assert len(server.requests) == 1
    assert "no such luck" in reply.error
    assert live.messages[-1]["role"] == "user"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (httpx.ReadTimeout("slow"), "no answer within 0.3 s"),
        (httpx.ConnectError("gone"), "APIConnectionError"),
        ((200, "{broken"), "answer"),
        ((200, {"choices": []}), "answer"),
        ((200, {"choices": [{"index": 0}]}), "answer"),
        ((200, "null"), "answer"),
    ],
)
def test_no_answer_or_a_malformed_one_is_a_policy_error(serve, fault, words):
    serve(lambda n, r: fault)
    _, reply = ask(timeout=0.3, max_retries=0)
    assert reply.text == ""
    assert words in reply.error


def test_requests_run_together_within_the_limit_and_an_error_ends_one_episode_only(serve):
    together = threading.Event()
    refused = EchoEnv(2).reset(seed=1)[0]

    def answer(number, request):
        if number:
            together.set()
        assert together.wait(60)
        time.sleep(0.02)
        if request["messages"][0]["content"] == refused:
            return 400, {"error": {"message": "no"}}
        return 200, completion(f"turn {len(request['messages'])}")

    server = serve(answer)
    with OpenAIPolicy("m", "http://server/v1", max_concurrency=4) as policy:
        episodes = rollout_episodes(policy, lambda: EchoEnv(2), [EpisodeSpec(seed) for seed in range(8)])
    assert 2 <= server.most_busy <= 4
    assert episodes.pop(1).ending is Ending.POLICY_ERROR
    assert [[t.reply for t in e.turns] for e in episodes] == [["turn 1", "turn 3"]] * 7


def test_a_released_conversation_gets_no_answer(serve):
    serve(lambda n, r: (200, completion()))
    with OpenAIPolicy("m", "http://server/v1") as policy:
        gone, kept = conversation(), conversation()
        policy.submit(gone)
        policy.submit(kept)
        policy.release(gone)
        assert [c for c, _ in policy.collect()] == [kept]
        assert policy.collect() == []
