"""Chat and text completions of a served policy, read with OpenAI's own client."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import openai
import pytest

from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.serving.agents import AgentServer
from art_trainer.serving.dialects.batch_scheduler import BatchScheduler
from art_trainer.serving.dialects.chat import AgentChat
from tests.art_trainer.serving.helpers import (
    CALL,
    CHAT,
    REFUSES_BOOM,
    TOOL_CHATML,
    WEATHER,
    agent_client,
    chat,
    collect,
    content,
    count_steps,
    disconnecting,
    plain_client,
    scripted_client,
    served_client,
    tiny_policy,
    user,
)
from tests.art_trainer.tiny_models import full_logprobs
from tests.art_trainer.waiting import until


def test_log_probs_and_token_ids_are_those_of_the_model() -> None:
    policy = tiny_policy()
    options = {"logprobs": True, "top_logprobs": 3, "extra_body": {"return_token_ids": True}}
    with served_client(policy) as (_, client):
        sampled, greedy = (chat(client, temperature=t, seed=1, **options) for t in (1, 0))
    for answer in (sampled, greedy):
        dumped = answer.model_dump()
        token_ids = dumped["choices"][0]["token_ids"]
        scored = full_logprobs(policy.model, (*dumped["prompt_token_ids"], *token_ids))
        entries = answer.choices[0].logprobs.content
        assert np.allclose([e.logprob for e in entries], scored[-len(token_ids) :], atol=1e-4)
        assert answer.usage.prompt_tokens == len(dumped["prompt_token_ids"])
        assert answer.usage.completion_tokens == len(token_ids) == len(entries)
        tops = [[top.logprob for top in e.top_logprobs] for e in entries]
        assert all(len(top) == 3 and top == sorted(top, reverse=True) for top in tops)
        most_likely = all(e.logprob == e.top_logprobs[0].logprob for e in entries)
        assert most_likely == (answer is greedy)


def test_variables_of_the_chat_template_are_set_or_refused_by_name() -> None:
    template = TOOL_CHATML + "{% if enable_thinking is false %}hush{% endif %}{{ reasoning_effort }}"

    def prompt(*, extra: Any = None, **fields: Any) -> str:
        answer = chat(client, **fields, extra_body={"return_token_ids": True, **(extra or {})})
        return policy.tokenizer.decode(answer.model_dump()["prompt_token_ids"])

    policy = tiny_policy(template)
    with served_client(policy) as (_, client):
        plain = prompt()
        assert prompt(extra={"chat_template_kwargs": {"enable_thinking": False}}) == f"{plain}hush"
        assert prompt(reasoning_effort="low") == f"{plain}low"
        for wrong in ("chat_template", "messages", "loop", "tokenize"):
            with pytest.raises(
                openai.BadRequestError, match=f"not read '{wrong}', it reads enable_thinking, r"
            ):
                prompt(extra={"chat_template_kwargs": {wrong: 1}})
    with served_client() as (_, client), pytest.raises(openai.BadRequestError) as refused:
        chat(client, reasoning_effort="low")
    assert refused.value.param == "reasoning_effort"


def test_a_stream_has_what_the_whole_response_has() -> None:
    with served_client() as (_, client):
        options = {"seed": 3, "n": 3, "logprobs": True, "extra_body": {"return_token_ids": True}}
        whole = chat(client, **options)
        chunks = list(chat(client, **options, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        text, logprobs, token_ids, finish = collect(chunks, choice.index)
        assert (text, finish) == (choice.message.content, choice.finish_reason)
        assert logprobs == choice.logprobs.content
        assert token_ids == choice.model_dump()["token_ids"]
    assert len({choice.message.content for choice in whole.choices}) == 3
    assert chunks[-1].usage == whole.usage
    assert chunks[0].model_dump()["prompt_token_ids"] == whole.model_dump()["prompt_token_ids"]
    assert {chunk.model for chunk in chunks} == {whole.model} == {"tiny@0"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) > 6


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_in_openais_format(stream: bool) -> None:
    with scripted_client(f"Let me see. {CALL}{CALL}") as (_, _, client):
        answer = chat(client, tools=[WEATHER], stream=stream)
        if stream:
            chunks = list(answer)
            text, _, _, finish = collect(chunks)
            calls = [call for chunk in chunks for c in chunk.choices for call in c.delta.tool_calls or ()]
        else:
            message = answer.choices[0].message
            text, calls, finish = message.content, message.tool_calls, answer.choices[0].finish_reason
    assert (text, finish) == ("Let me see.", "tool_calls")
    assert [call.function.name for call in calls] == ["weather"] * 2
    assert json.loads(calls[0].function.arguments) == {"town": "Bonn"}
    assert len({call.id for call in calls}) == 2


def test_the_model_sees_tools_and_their_answers_and_calls_can_be_turned_off() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Bonn"}'}}
    messages = [
        user("rain?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "it pours"},
    ]
    with scripted_client("yes", CALL, CALL + CALL) as (script, _, client):
        assert content(chat(client, messages, tools=[WEATHER])) == "yes"
        none = chat(client, tools=[WEATHER], tool_choice="none").choices[0].message
        one = chat(client, tools=[WEATHER], parallel_tool_calls=False).choices[0].message
    assert "<tool_response>\nit pours\n</tool_response>" in script.shown(0)
    assert '{"name": "weather", "arguments": {"town": "Bonn"}}' in script.shown(0)
    assert "weather" not in script.shown(1)
    assert (none.content, none.tool_calls) == (CALL, None)
    assert len(one.tool_calls) == 1


def test_a_tokenizer_that_takes_back_spaces_streams_no_text_twice() -> None:
    with served_client(TransformersPolicy.from_pretrained("art-tiny")) as (_, client):
        for seed in range(4):
            options = {"model": "art-tiny", "seed": seed, "max_tokens": 30}
            text = content(chat(client, "find the mail", **options))
            assert collect(list(chat(client, "find the mail", **options, stream=True)))[0] == text


def test_stop_strings_end_the_reply_and_are_removed() -> None:
    with served_client(tiny_policy(max_new_tokens=30)) as (_, client):
        free = content(chat(client, seed=1))
        stop = free[4:6]
        cut = chat(client, seed=1, stop=[stop, "never said"])
        text, _, _, finish = collect(list(chat(client, seed=1, stop=stop, stream=True)))
        short = chat(client, seed=1, max_completion_tokens=3)
    assert content(cut) == text == free[: free.index(stop)]
    assert cut.choices[0].finish_reason == finish == "stop"
    assert (short.usage.completion_tokens, short.choices[0].finish_reason) == (3, "length")


def test_the_policys_own_stop_strings_stay_part_of_the_reply() -> None:
    with served_client(tiny_policy(max_new_tokens=400, stop_strings=("e",))) as (_, client):
        answer = chat(client, seed=4)
        text, _, _, finish = collect(list(chat(client, seed=4, stream=True)))
    assert answer.choices[0].finish_reason == finish == "stop"
    assert text == content(answer)
    assert text.index("e") == len(text) - 1


def test_each_request_has_its_own_sampling_parameters() -> None:
    with served_client(tiny_policy(temperature=0.7)) as (_, client):
        greedy = {content(chat(client, temperature=0)) for _ in range(2)}
        one = {content(chat(client, extra_body={"top_k": 1})) for _ in range(2)}
        free = {content(chat(client)) for _ in range(3)}
        few = {"logprobs": True, "top_logprobs": 20, "extra_body": {"top_k": 5}}
        filtered = chat(client, temperature=1.3, top_p=0.9, seed=5, **few)
        assert content(chat(client, seed=5)) == content(chat(client, seed=5, temperature=0.7))
    assert greedy == one
    assert (len(greedy), len(free)) == (1, 3)  # without a seed every reply is another
    tops = filtered.choices[0].logprobs.content[0].top_logprobs
    assert 1 < len(tops) <= 5  # tokens that the filters drop are not reported
    assert sum(np.exp(top.logprob) for top in tops) == pytest.approx(1, abs=1e-4)


def test_errors_are_openais_types() -> None:
    full, bad = "context_length_exceeded", openai.BadRequestError
    refusals: list[tuple[type[openai.APIStatusError], str, dict[str, Any], str | None]] = [
        (bad, "x" * 60, {}, full),
        (bad, "x" * 60, {"stream": True}, full),
        (bad, "x", {"max_tokens": 60}, full),
        (bad, "boom", {}, None),
        (openai.NotFoundError, "x", {"model": "tinny"}, "model_not_found"),
        (openai.AuthenticationError, "x", {"extra_headers": {"authorization": "no"}}, "invalid_api_key"),
    ]
    with served_client(tiny_policy(REFUSES_BOOM + TOOL_CHATML, max_context=60)) as (served, client):
        for kind, text, options, code in refusals:
            with pytest.raises(kind) as refused:
                chat(client, text, **options)
            assert refused.value.code == code
        with pytest.raises(bad) as wrong:
            chat(client, top_p=2)
        assert (wrong.value.param, wrong.value.type) == ("top_p", "invalid_request_error")
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="tiny", input="x")
        # A reply may be shorter than the policy's limit if there is no more room.
        room = 60 - len(served.chat.prompt([user("x" * 34)]))
        assert 1 < room < 12
        assert chat(client, "x" * 34).usage.completion_tokens == room


def test_a_model_is_retrieved_by_name_and_version() -> None:
    policy = tiny_policy()
    policy.name = "lab/tiny"
    with served_client(policy) as (_, client):
        listed = list(client.models.list())
        assert [model.id for model in listed] == ["lab/tiny", "lab/tiny@0"]
        assert [client.models.retrieve(model.id) for model in listed] == listed
        assert client.get("/models/", cast_to=dict[str, Any])["object"] == "list"
        for name in ("lab/tinny", "lab/tiny@1"):
            with pytest.raises(openai.NotFoundError) as unknown:
                client.models.retrieve(name)
            assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_raises_is_a_server_error(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    with served_client() as (served, client):
        with monkeypatch.context() as patch:
            patch.setattr(served.scheduler.policy.model, "forward", lambda **inputs: 1 / 0)
            with pytest.raises(openai.InternalServerError, match="ZeroDivisionError"):
                chat(client, stream=stream)
        assert content(chat(client))


def test_too_many_waiting_replies_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art_trainer.serving.dialects.served_policy._MAX_WAITING", 3)
    with served_client() as (_, client):
        assert len(chat(client, n=8).choices) == 8  # nothing waits yet
        monkeypatch.setattr(BatchScheduler, "waiting", 2)
        with pytest.raises(openai.RateLimitError) as overloaded:
            chat(client, n=2)
        assert overloaded.value.code == "rate_limit_exceeded"
        assert chat(client).choices


def test_nothing_more_is_sampled_for_a_client_that_disconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy(max_new_tokens=900)
    with served_client(policy) as (served, client):
        url = str(client.base_url).removesuffix("/v1/")
        assert chat(client, seed=4).usage.completion_tokens > 150
        steps = count_steps(monkeypatch, seconds=0.02)
        with chat(client, stream=True, seed=4) as stream:
            assert next(iter(stream)).choices
        assert served.scheduler.wait_idle(60)
        streamed = len(steps)
        body = {"model": "tiny", "messages": [user("hello")], "seed": 4}
        with plain_client(url) as plain, disconnecting(plain, CHAT, body):
            until(lambda: len(steps) > streamed + 2)
        assert served.scheduler.wait_idle(60)
        assert chat(client, seed=4, max_tokens=3).choices
    assert streamed < 75
    assert len(steps) - streamed < 75


TOKENS = {"return_token_ids": True}


def complete(client: openai.OpenAI, prompt: Any = "hello", **options: Any) -> Any:
    return client.completions.create(**{"model": "tiny", "prompt": prompt, "max_tokens": 8} | options)


def test_text_token_ids_and_lists_of_them_are_continued_alike() -> None:
    with served_client() as (served, client):
        ids = served.chat.encode("hello")
        other = served.chat.encode("good bye")
        by_text = complete(client, seed=1).choices[0].text
        by_ids = complete(client, ids, seed=1).choices[0].text
        texts = complete(client, ["hello", "good bye"], seed=1)
        lists = complete(client, [ids, other], seed=1, n=2, extra_body=TOKENS)
    assert by_text == by_ids == texts.choices[0].text == lists.choices[0].text
    assert texts.choices[1].text == lists.choices[2].text
    assert [choice.index for choice in lists.choices] == [0, 1, 2, 3]
    assert lists.choices[1].text != lists.choices[0].text
    prompts = [choice.model_dump()["prompt_token_ids"] for choice in lists.choices]
    assert prompts == [ids, ids, other, other]
    assert lists.usage.prompt_tokens == len(ids) + len(other)
    assert lists.usage.completion_tokens == 32


def test_log_probs_are_reported_as_the_older_api_does() -> None:
    policy = tiny_policy()
    with served_client(policy) as (served, client):
        choice = complete(client, logprobs=2, seed=3, extra_body=TOKENS).choices[0]
        none = complete(client, logprobs=0, seed=3).choices[0].logprobs
        ids = (*served.chat.encode("hello"), *choice.model_dump()["token_ids"])
    found = choice.logprobs
    assert np.allclose(found.token_logprobs, full_logprobs(policy.model, ids)[-8:], atol=1e-4)
    assert none.token_logprobs == found.token_logprobs
    assert [len(top) for top in none.top_logprobs] == [1] * 8
    assert all(1 <= len(top) <= 3 for top in found.top_logprobs)
    lengths = [len(text) for text in found.tokens]
    assert found.text_offset == [sum(lengths[:place]) for place in range(8)]


def test_a_stream_of_text_has_what_the_whole_response_has() -> None:
    options = {"seed": 2, "n": 2, "logprobs": 1, "extra_body": TOKENS}
    with served_client() as (_, client):
        whole = complete(client, **options)
        chunks = list(complete(client, **options, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        pieces = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert "".join(piece.text for piece in pieces) == choice.text
        logprobs = [value for piece in pieces for value in piece.logprobs.token_logprobs]
        assert logprobs == choice.logprobs.token_logprobs
        assert [t for p in pieces for t in p.model_dump()["token_ids"]] == choice.model_dump()["token_ids"]
        assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [choice.finish_reason]
        assert sum("prompt_token_ids" in piece.model_dump() for piece in pieces) == 1
    assert chunks[-1].usage == whole.usage


def test_stop_strings_are_kept_if_the_client_asks_for_them() -> None:
    with served_client() as (_, client):

        def said(**extra: Any) -> Any:
            options = {"seed": 1, "max_tokens": 30, "stop": extra.pop("stop", None)}
            return complete(client, **options, extra_body=TOKENS | extra).choices[0]

        free = said()
        stop, ids = free.text[3:5], free.model_dump()["token_ids"]
        cut, kept = said(stop=stop), said(stop=stop, include_stop_str_in_output=True)
        stopped = said(stop_token_ids=ids[5:6])
    assert cut.text == free.text[: free.text.index(stop)]
    assert kept.text == cut.text + stop
    assert cut.finish_reason == stopped.finish_reason == "stop"
    assert stopped.model_dump()["token_ids"] == ids[: ids.index(ids[5]) + 1]


def test_prompts_of_one_request_without_a_seed_have_randomness_of_their_own() -> None:
    with served_client() as (_, client):
        assert len({choice.text for choice in complete(client, ["x"] * 4, n=2).choices}) == 8


def test_prompts_that_the_model_cannot_read_are_refused() -> None:
    with served_client() as (_, client):
        for prompt in ("", [0, 300], [-1]):
            with pytest.raises(openai.BadRequestError) as refused:
                complete(client, prompt)
            assert refused.value.param == "prompt"
        with pytest.raises(openai.BadRequestError) as full:
            complete(client, max_tokens=2000)
        assert full.value.code == "context_length_exceeded"


def test_a_text_too_long_for_the_context_is_refused_before_it_is_tokenised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served_client() as (served, client), plain_client(str(client.base_url)) as plain:
        longest = served.context_limit * max(map(len, served.chat.tokenizer.get_vocab()))
        monkeypatch.setattr(served.chat, "tokenizer", None)
        refused = plain.post("completions", json={"prompt": ["x" * (longest + 1)]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert refused.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize("agents", [False, True])
def test_others_are_answered_while_a_long_text_is_tokenised(
    monkeypatch: pytest.MonkeyPatch, agents: bool
) -> None:
    reading, go_on = threading.Event(), threading.Event()
    encode = AgentChat.encode

    def held(self: AgentChat, text: str, **options: Any) -> list[int]:
        if "long text" in text:
            reading.set()
            assert go_on.wait(300)
        return encode(self, text, **options)

    with ExitStack() as stack:
        if agents:
            server = stack.enter_context(AgentServer(tiny_policy()))
            client = stack.enter_context(agent_client(server, server.open()))
        else:
            _, client = stack.enter_context(served_client())
        monkeypatch.setattr(AgentChat, "encode", held)
        threads = stack.enter_context(ThreadPoolExecutor(1))
        answer = threads.submit(chat, client, "a long text")
        assert reading.wait(300)
        assert client.models.list().data
        go_on.set()
        assert answer.result(60).choices
