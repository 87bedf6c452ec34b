"""The policy of a chat API, against a real server on loopback: requests, replies, retries, faults."""

import contextlib
import threading

import numpy as np
import pytest

from art_trainer.inference.openai_policy import OpenAIPolicy
from art_trainer.inference.policy import Conversation
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.types import Ending, EpisodeSpec
from tests.art_trainer.tiny_models import EchoEnv
from tests.wrappers.judging.judge_server import JudgeServer, Reply, completion, says

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]


@pytest.fixture
def serve():
    """Answer request number n with ``answer(n, request)``."""
    with contextlib.ExitStack() as servers:
        yield lambda answer: servers.enter_context(contextlib.closing(JudgeServer(answer)))


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


def calls(found):
    body = completion("I look.", finish="tool_calls")
    body["choices"][0]["message"]["tool_calls"] = found
    return Reply(body)


def test_an_answer_becomes_the_reply(serve):
    server = serve(lambda n, r: says("héllo\ud800"))
    live, reply = ask(server, TOOLS, temperature=0.3, max_new_tokens=77, extra_body={"min_p": 0.1})
    assert (reply.text, reply.stop, reply.error) == ("héllo\\ud800", "stop", None)
    assert live.messages[-1] == {"role": "assistant", "content": reply.text}
    (request,) = server.requests
    assert (request["messages"], request["tools"]) == (live.messages[:-1], TOOLS)
    assert (request["model"], request["temperature"], request["min_p"]) == ("m", 0.3, 0.1)
    assert request["max_completion_tokens"] == 77


def test_seeds_come_from_the_conversation_and_what_is_optional_can_be_left_out(serve):
    server = serve(lambda n, r: says(None, finish="length"))
    ask(server)
    ask(server)
    _, cut = ask(server, TOOLS, send_tools=False, send_seed=False, temperature=None)
    first, second, third = server.requests
    assert first["seed"] == second["seed"]
    assert {"seed", "temperature", "tools"}.isdisjoint(third)
    assert (cut.text, cut.stop, cut.error) == ("", "length", None)


def test_native_tool_calls_are_written_in_hermes_form(serve):
    long = '{"a": ' + 5000 * "1" + "}"  # Python reads no number of that many digits
    wanted = [("search", '{"query": "bücher"}'), ("read", None), ("broken", '{"a": '), ("long", long)]
    found = [{"function": {"name": name, "arguments": arguments}} for name, arguments in wanted]
    first, *written = ask(serve(lambda n, r: calls(found)))[1].text.split("\n<tool_call>\n")
    assert first == "I look."
    assert [call.removesuffix("\n</tool_call>") for call in written] == [
        '{"name": "search", "arguments": {"query": "bücher"}}',
        '{"name": "read", "arguments": {}}',
        '{"name": "broken", "arguments": {"a": }',
        f'{{"name": "long", "arguments": {long}}}',
    ]


def test_a_busy_server_is_asked_again_and_a_refusal_ends_the_episode(serve):
    busy = Reply({"error": {"message": "busy"}}, 503, {"Retry-After-Ms": "1"})
    answers = [busy, busy, says("at last")]
    assert ask(serve(lambda n, r: answers[n]), max_retries=2)[1].text == "at last"
    server = serve(lambda n, r: Reply({"error": {"message": "no such luck"}}, 401))
    live, reply = ask(server, max_retries=2)
    assert len(server.requests) == 1
    assert "no such luck" in reply.error
    assert live.messages[-1]["role"] == "user"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (None, "APIConnectionError"),  # the server is gone
        (Reply(hang=True), "no answer within 0.3 s"),
        *((Reply(body), "is not JSON") for body in (b"<html>", b"\xff", b"[" * 100_000)),
        *((Reply(body), "has no text") for body in (None, {"choices": 5}, {"choices": [{"index": 0}]})),
        *((calls(found), "a tool call has the form") for found in (5, [None], [{"function": "search"}])),
        (says(5), "has no text"),
        (calls([{"function": {"name": "search", "arguments": [1]}}]), "a tool call has the form"),
    ],
)
def test_no_answer_or_a_malformed_one_is_a_policy_error_that_names_the_server(serve, fault, words):
    server = serve(lambda n, r: fault)
    if fault is None:
        server.close()
    _, reply = ask(server, timeout=0.3, max_retries=0)
    assert reply.text == ""
    assert words in reply.error
    assert server.url in reply.error


def test_requests_run_together_within_the_limit_and_an_error_ends_one_episode_only(serve):
    together = threading.Event()
    refused = EchoEnv(2).reset(seed=1)[0]

    def answer(number, request):
        if number:
            together.set()
        assert together.wait(300)
        if request["messages"][0]["content"] == refused:
            return Reply({"error": {"message": "no"}}, 400)
        return says(f"turn {len(request['messages'])}")

    server = serve(answer)
    with OpenAIPolicy("m", server.url, max_concurrency=4) as policy:
        episodes = rollout_episodes(policy, lambda: EchoEnv(2), [EpisodeSpec(seed) for seed in range(8)])
    assert 2 <= server.most_busy <= 4
    assert episodes.pop(1).ending is Ending.POLICY_ERROR
    assert [[t.reply for t in e.turns] for e in episodes] == [["turn 1", "turn 3"]] * 7


def test_a_released_conversation_gets_no_answer(serve):
    with OpenAIPolicy("m", serve(lambda n, r: says("hello")).url) as policy:
        gone, kept = conversation(), conversation()
        policy.submit(gone)
        policy.submit(kept)
        policy.release(gone)
        assert [c for c, _ in policy.collect()] == [kept]
        assert policy.collect() == []
