"""Chat completions of the served policy, read with OpenAI's own client."""

import asyncio
import json
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from art_trainer.serving import ServedPolicy
from art_trainer.serving.live_sampler import LiveSampler
from tests.art_trainer.agent_server.agent_helpers import TOOL_CHATML, WEATHER, asked, tiny_policy, user
from tests.art_trainer.serving.serving_helpers import (
    TOKEN,
    counted_steps,
    plain_client,
    puppet_client,
    served_client,
    serving,
)
from tests.art_trainer.tiny_models import full_logprobs
from tests.art_trainer.waiting import until

CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Bonn"}}\n</tool_call>'
CHAT = "/v1/chat/completions"


def chat(client: openai.OpenAI, words: str = "hello", **options: Any) -> Any:
    return client.chat.completions.create(**{"model": "tiny", "messages": [user(words)]} | options)


def collected(chunks: list[Any], index: int = 0) -> tuple[str, list[Any], list[int], str]:
    """A choice's words, log-probs, token ids and why it ended, out of a stream."""
    words, logprobs, token_ids, finish = "", [], [], ""
    for chunk in chunks:
        for choice in chunk.choices:
            if choice.index == index:
                words += choice.delta.content or ""
                logprobs += choice.logprobs.content if choice.logprobs else []
                token_ids += choice.model_dump().get("token_ids") or []
                finish = choice.finish_reason or finish
    return words, logprobs, token_ids, finish


def test_log_probs_and_token_ids_are_those_of_the_model() -> None:
    policy = tiny_policy()
    with served_client(policy) as (_, client):
        options = {"logprobs": True, "top_logprobs": 3, "extra_body": {"return_token_ids": True}}
        answer = chat(client, seed=1, **options)
        greedy = chat(client, temperature=0, **options)
    for one in (answer, greedy):
        dumped = one.model_dump()
        token_ids = dumped["choices"][0]["token_ids"]
        scored = full_logprobs(policy.model, (*dumped["prompt_token_ids"], *token_ids))
        entries = one.choices[0].logprobs.content
        assert np.allclose([e.logprob for e in entries], scored[-len(token_ids) :], atol=1e-4)
        assert one.usage.prompt_tokens == len(dumped["prompt_token_ids"])
        assert one.usage.completion_tokens == len(token_ids) == len(entries)
        assert all(len(e.top_logprobs) == 3 for e in entries)
        tops = [[top.logprob for top in e.top_logprobs] for e in entries]
        assert all(top == sorted(top, reverse=True) for top in tops)
    assert all(e.logprob == e.top_logprobs[0].logprob for e in greedy.choices[0].logprobs.content)
    assert any(e.logprob < e.top_logprobs[0].logprob for e in answer.choices[0].logprobs.content)


def test_a_stream_says_what_the_whole_answer_says() -> None:
    with served_client() as (_, client):
        options = {"seed": 3, "n": 3, "logprobs": True, "extra_body": {"return_token_ids": True}}
        whole = chat(client, **options)
        chunks = list(chat(client, **options, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        words, logprobs, token_ids, finish = collected(chunks, choice.index)
        assert words == choice.message.content
        assert logprobs == choice.logprobs.content
        assert token_ids == choice.model_dump()["token_ids"]
        assert finish == choice.finish_reason
    assert len({choice.message.content for choice in whole.choices}) == 3
    assert chunks[-1].usage == whole.usage
    assert chunks[0].model_dump()["prompt_token_ids"] == whole.model_dump()["prompt_token_ids"]
    assert {chunk.model for chunk in chunks} == {whole.model} == {"tiny@0"}
    assert len({chunk.id for chunk in chunks}) == 1
    with_words = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(with_words) > 6  # words while they are sampled


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_in_openais_format(stream: bool) -> None:
    with puppet_client(f"Let me see. {CALL}{CALL}") as (_, _, client):
        answer = chat(client, tools=[WEATHER], stream=stream)
        if stream:
            chunks = list(answer)
            words, _, _, finish = collected(chunks)
            calls = [call for chunk in chunks for c in chunk.choices for call in c.delta.tool_calls or ()]
        else:
            message = answer.choices[0].message
            words, calls, finish = message.content, message.tool_calls, answer.choices[0].finish_reason
    assert (words, finish) == ("Let me see.", "tool_calls")
    assert [call.function.name for call in calls] == ["weather"] * 2
    assert json.loads(calls[0].function.arguments) == {"town": "Bonn"}
    assert len({call.id for call in calls}) == 2


def test_tools_and_their_answers_are_shown_to_the_model_and_calls_can_be_turned_off() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Bonn"}'}}
    messages = [
        user("rain?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "it pours"},
    ]
    with puppet_client("yes", CALL, CALL + CALL) as (puppet, _, client):
        assert chat(client, messages=messages, tools=[WEATHER]).choices[0].message.content == "yes"
        none = chat(client, tools=[WEATHER], tool_choice="none").choices[0].message
        one = chat(client, tools=[WEATHER], parallel_tool_calls=False).choices[0].message
        shown = puppet._chat.decode(puppet.questions[0].context)
        assert "weather" not in puppet._chat.decode(puppet.questions[1].context)
    assert "<tool_response>\nit pours\n</tool_response>" in shown
    assert '{"name": "weather", "arguments": {"town": "Bonn"}}' in shown
    assert (none.content, none.tool_calls) == (CALL, None)
    assert len(one.tool_calls) == 1


def test_stop_strings_end_the_reply_and_are_cut_from_it() -> None:
    with served_client(tiny_policy(max_new_tokens=30)) as (_, client):
        free = chat(client, seed=1).choices[0].message.content
        stop = free[4:6]
        cut = chat(client, seed=1, stop=[stop, "never said"])
        words, _, _, finish = collected(list(chat(client, seed=1, stop=stop, stream=True)))
        short = chat(client, seed=1, max_completion_tokens=3)
    assert cut.choices[0].message.content == words == free[: free.index(stop)]
    assert cut.choices[0].finish_reason == finish == "stop"
    assert (short.usage.completion_tokens, short.choices[0].finish_reason) == (3, "length")


def test_the_policys_own_stop_strings_stay_part_of_what_is_said() -> None:
    with served_client(tiny_policy(max_new_tokens=400, stop_strings=("e",))) as (_, client):
        answer = chat(client, seed=4).choices[0]
        words, _, _, _ = collected(list(chat(client, seed=4, stream=True)))
    assert answer.finish_reason == "stop"
    assert answer.message.content.index("e") == len(answer.message.content) - 1
    assert words == answer.message.content


def test_each_request_is_sampled_in_its_own_way() -> None:
    with served_client(tiny_policy(temperature=0.7)) as (_, client):
        greedy = {chat(client, temperature=0).choices[0].message.content for _ in range(2)}
        one = {chat(client, extra_body={"top_k": 1}).choices[0].message.content for _ in range(2)}
        free = {chat(client).choices[0].message.content for _ in range(3)}
        few = {"logprobs": True, "top_logprobs": 20, "extra_body": {"top_k": 5}}
        filtered = chat(client, temperature=1.3, top_p=0.9, seed=5, **few)
        defaults = chat(client, seed=5).choices[0].message.content
        same = chat(client, seed=5, temperature=0.7).choices[0].message.content
    assert greedy == one
    assert len(greedy) == 1
    assert len(free) == 3  # without a seed every reply is another
    tops = filtered.choices[0].logprobs.content[0].top_logprobs
    assert 1 < len(tops) <= 5  # those that the filters drop are not told
    assert sum(np.exp(top.logprob) for top in tops) == pytest.approx(1, abs=1e-4)
    assert defaults == same


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "at least one message"),
        ({"tool_choice": "required"}, "tool_choice='required' is not offered here: send 'auto' or 'none'"),
        ({"tools": [{"type": "function"}]}, "tools[0] has no function"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 0}, "n is 0"),
        ({"n": 1000}, "n is 1000"),
        ({"top_logprobs": 2}, "send logprobs=true"),
        ({"logprobs": True, "top_logprobs": 21}, "from 0 to 20"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": 1e-30}, "temperature is 1e-30"),
        ({"temperature": "hot"}, "send a number"),
        ({"top_p": 0}, "top_p is 0"),
        ({"min_p": 2}, "min_p is 2"),
        ({"top_k": -2}, "top_k is -2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"stop": ["a"] * 5}, "up to 4 texts"),
        ({"stop": ["a" * 2000]}, "none longer than 1000"),
        ({"stop": [""]}, "none empty"),
        ({"stream": 1}, "send a bool"),
        ({"seed": 1.5}, "send a int"),
        ({"min_tokens": 3}, "min_tokens"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(
    fields: dict[str, Any], words: str, plain: httpx.Client
) -> None:
    answer = plain.post(CHAT, json={"model": "tiny", "messages": [user("x")]} | fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]


@pytest.fixture(scope="module")
def plain() -> Any:
    with puppet_client() as (_, url, _), plain_client(url) as client:
        yield client


def test_errors_are_openais_types() -> None:
    refusal = "{% if messages[-1]['content'] == 'boom' %}{{ raise_exception('no boom') }}{% endif %}"
    with served_client(tiny_policy(refusal + TOOL_CHATML, max_context=60)) as (served, client):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="60 tokens") as full:
                chat(client, "x" * 60, stream=stream)
            assert full.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as long:
            chat(client, "x", max_tokens=60)
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="no boom"):
            chat(client, "boom")
        with pytest.raises(openai.NotFoundError, match="did you mean") as unknown:
            chat(client, model="tinny")
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="tiny", input="x")
        with pytest.raises(openai.AuthenticationError) as stranger:
            client.with_options(api_key="wrong").models.list()
        assert stranger.value.code == "invalid_api_key"
        # A reply may be shorter than the policy's are where there is no more room.
        room = 60 - len(served.chat.prompt([user("x" * 34)]))
        assert 1 < room < 12
        assert chat(client, "x" * 34).usage.completion_tokens == room


def test_a_policy_that_breaks_is_a_server_error_and_the_next_question_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served_client() as (served, client):
        with monkeypatch.context() as patch:
            patch.setattr(served._newest.policy.model, "forward", lambda **inputs: 1 / 0)
            for stream in (False, True):
                with pytest.raises(openai.InternalServerError, match="ZeroDivisionError"):
                    chat(client, stream=stream)
        assert chat(client).usage.completion_tokens == 12


def test_a_flood_is_refused_and_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with served_client(max_waiting=3) as (_, client):
        assert len(chat(client, n=8).choices) == 8  # nobody waits, so that it may
        monkeypatch.setattr(LiveSampler, "waiting", 2)
        with pytest.raises(openai.RateLimitError) as flooded:
            chat(client, n=2)
        assert flooded.value.code == "rate_limit_exceeded"
        assert chat(client).choices


def test_for_a_client_that_hangs_up_nothing_more_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy(max_new_tokens=900)
    with served_client(policy) as (served, client), plain_client(f"{client.base_url}") as plain:
        assert chat(client, seed=4).usage.completion_tokens > 150
        steps = counted_steps(monkeypatch, seconds=0.05)
        with chat(client, stream=True, seed=4) as stream:
            assert next(iter(stream)).choices
        assert served._newest.sampler.wait_idle(60)
        streamed = len(steps)
        body = {"model": "tiny", "messages": [user("hello")], "seed": 4}
        with asked(plain, "/chat/completions", body):
            until(lambda: len(steps) > streamed + 2)
        assert served._newest.sampler.wait_idle(60)
        assert chat(client, seed=4, max_tokens=3).choices
    assert streamed < 75
    assert len(steps) - streamed < 75


async def _ask_async(url: str) -> list[Any]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0) as client:
        asks = [
            client.chat.completions.create(model="tiny", messages=[user(f"I am {who}")], seed=who)
            for who in range(6)
        ]
        answers = [one.choices[0].message.content for one in await asyncio.gather(*asks)]
        stream = await client.chat.completions.create(
            model="tiny", messages=[user("I am 2")], seed=2, stream=True
        )
        return [*answers, "".join([c.choices[0].delta.content or "" async for c in stream])]


def test_openais_async_client_gets_the_same_as_the_other_one() -> None:
    with serving(ServedPolicy(tiny_policy())) as url:
        *together, streamed = asyncio.run(_ask_async(url))
        with openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN) as client:
            alone = [chat(client, f"I am {who}", seed=who).choices[0].message.content for who in range(6)]
    assert together == alone
    assert streamed == alone[2]
    assert len(set(alone)) == 6
