"""Against a real HTTP server on loopback that speaks the wire protocol."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from art_trainer.episodes import Ending
from art_trainer.openai_policy import OpenAIPolicy
from art_trainer.policy import Conversation
from art_trainer.rollout import rollout
from art_trainer.starts import Start
from tests.art_trainer.tiny_models import EchoEnv
from tests.art_trainer.waiting import until

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]


def completion(content="hello", calls=None, finish="stop"):
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{k}", "type": "function", "function": {"name": n, "arguments": a}}
            for k, (n, a) in enumerate(calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


class Server:
    """Answers request number n with ``answer(n, request)``: a status, and a body or a number of seconds."""

    def __init__(self, answer):
        self.requests, self.paths, self.busy, self.most_busy = [], [], 0, 0
        self.lock, self.free = threading.Lock(), threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    number = len(server.requests)
                    server.requests.append(request)
                    server.paths.append(self.path)
                    server.busy += 1
                    server.most_busy = max(server.most_busy, server.busy)
                status, body = answer(number, request)
                if body == "hang":
                    server.free.wait(60)
                with server.lock:
                    server.busy -= 1
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.send_header("Retry-After-Ms", "1")
                    self.end_headers()
                    self.wfile.write(data)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client had its timeout

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.free.set()
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def serve():
    servers = []

    def start(answer):
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def conversation(tools=(), seed=0):
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "find it"}]
    return Conversation(EchoEnv(), messages, list(tools), np.random.default_rng(seed), 0)


def ask(server, tools=(), **options):
    with OpenAIPolicy("m", server.url, **options) as policy:
        live = conversation(tools)
        policy.submit(live)
        ((answered, reply),) = policy.collect()
        assert answered is live
        assert policy.collect() == []
        assert policy.release(live) == ()
    return live, reply


def test_an_answer_becomes_the_reply(serve):
    server = serve(lambda n, r: (200, completion("héllo")))
    live, reply = ask(server, TOOLS, temperature=0.3, max_new_tokens=77, extra_body={"min_p": 0.1})
    assert (reply.text, reply.stop, reply.token_count, reply.error) == ("héllo", "stop", 5, None)
    assert live.messages[-1] == {"role": "assistant", "content": "héllo"}
    (request,) = server.requests
    assert server.paths == ["/v1/chat/completions"]
    assert request["messages"] == live.messages[:-1]
    assert request["tools"] == TOOLS
    assert (request["model"], request["temperature"], request["min_p"]) == ("m", 0.3, 0.1)
    assert request["max_completion_tokens"] == 77


def test_seeds_come_from_the_conversation_and_can_be_left_out(serve):
    server = serve(lambda n, r: (200, completion()))
    ask(server)
    ask(server)
    ask(server, send_seed=False, temperature=None)
    first, second, third = server.requests
    assert first["seed"] == second["seed"]
    assert {"seed", "temperature", "tools"}.isdisjoint(third)


def test_native_tool_calls_are_written_in_hermes_form(serve):
    long = '{"a": ' + 5000 * "1" + "}"  # Python reads no number of that many digits
    calls = [("search", '{"query": "bücher"}'), ("read", None), ("broken", '{"a": '), ("long", long)]
    server = serve(lambda n, r: (200, completion("I look.", calls, "tool_calls")))
    _, reply = ask(server)
    assert reply.text.splitlines() == [
        "I look.",
        '<tool_call>{"name": "search", "arguments": {"query": "bücher"}}</tool_call>',
        '<tool_call>{"name": "read", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "broken", "arguments": {"a": }</tool_call>',
        f'<tool_call>{{"name": "long", "arguments": {long}}}</tool_call>',
    ]


def test_a_cut_reply_says_so_and_an_empty_one_is_empty(serve):
    server = serve(lambda n, r: (200, completion(None, finish="length")))
    _, reply = ask(server)
    assert (reply.text, reply.stop, reply.error) == ("", "length", None)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(serve, status):
    server = serve(
        lambda n, r: (status, {"error": {"message": "busy"}}) if n < 2 else (200, completion("at last"))
    )
    _, reply = ask(server, max_retries=2)
    assert (reply.text, len(server.requests)) == ("at last", 3)


@pytest.mark.parametrize(("status", "tries"), [(429, 3), (500, 3), (400, 1), (401, 1), (404, 1)])
def test_a_server_that_refuses_for_good_is_an_error_in_words(serve, status, tries):
    server = serve(lambda n, r: (status, {"error": {"message": "no such luck"}}))
    live, reply = ask(server, max_retries=2)
    assert len(server.requests) == tries
    assert reply.error.startswith(f"the server answered {status}")
    assert "no such luck" in reply.error
    assert live.messages[-1]["role"] == "user"


def test_a_server_that_hangs_runs_into_the_timeout(serve):
    server = serve(lambda n, r: (200, "hang"))
    _, reply = ask(server, timeout=0.3, max_retries=1)
    assert "no answer within 0.3 s" in reply.error
    until(lambda: len(server.requests) == 2)


@pytest.mark.parametrize(
    "body", ["{broken", "[]", {"choices": []}, {"choices": [{"index": 0}]}, {}, "null", "3"]
)
def test_a_broken_answer_is_an_error_in_words(serve, body):
    _, reply = ask(serve(lambda n, r: (200, body)), max_retries=0)
    assert reply.error
    assert reply.text == ""
    assert "answer" in reply.error


def test_nobody_there_is_an_error_in_words():
    server = Server(lambda n, r: (200, completion()))
    server.close()
    _, reply = ask(server, max_retries=0)
    assert "APIConnectionError" in reply.error


def test_many_conversations_are_asked_at_one_time_within_the_limit(serve):
    together = threading.Event()

    def answer(number, request):
        if number:
            together.set()
        assert together.wait(60)
        time.sleep(0.02)
        return 200, completion(f"turn {len(request['messages'])}")

    server = serve(answer)
    with OpenAIPolicy("m", server.url, max_concurrency=4) as policy:
        episodes = rollout(policy, lambda: EchoEnv(2), [Start(seed) for seed in range(8)])
    assert 2 <= server.most_busy <= 4
    assert [[t.reply for t in e.turns] for e in episodes] == [["turn 1", "turn 3"]] * 8


def test_an_error_ends_one_episode_only(serve):
    def answer(number, request):
        first = request["messages"][0]["content"]
        return (400, {"error": {"message": "no"}}) if first == refused else (200, completion())

    env = EchoEnv(1)
    refused = env.reset(seed=1)[0]
    with OpenAIPolicy("m", serve(answer).url) as policy:
        episodes = rollout(policy, lambda: EchoEnv(1), [Start(seed) for seed in range(3)])
    endings = [Ending.TERMINATED, Ending.POLICY_ERROR, Ending.TERMINATED]
    assert [e.ending for e in episodes] == endings


def test_a_released_conversation_gets_no_answer(serve):
    server = serve(lambda n, r: (200, completion()))
    with OpenAIPolicy("m", server.url) as policy:
        gone, kept = conversation(), conversation()
        policy.submit(gone)
        policy.submit(kept)
        policy.release(gone)
        assert [c for c, _ in policy.collect()] == [kept]
        assert policy.collect() == []


def test_no_concurrency_is_refused():
    with pytest.raises(ValueError, match="max_concurrency"):
        OpenAIPolicy("m", "http://127.0.0.1:1/v1", max_concurrency=0)
