"""Text completions of a served policy, by text and by token ids."""

from typing import Any

import numpy as np
import openai
import pytest

from tests.art_trainer.serving.helpers import served_client, tiny_policy
from tests.art_trainer.tiny_models import full_logprobs

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


def test_log_probs_are_those_of_the_model() -> None:
    policy = tiny_policy()
    with served_client(policy) as (served, client):
        choice = complete(client, logprobs=2, seed=3, extra_body=TOKENS).choices[0]
        none = complete(client, logprobs=0, seed=3).choices[0].logprobs
        ids = served.chat.encode("hello")
    token_ids = choice.model_dump()["token_ids"]
    reported = choice.logprobs
    assert np.allclose(
        reported.token_logprobs, full_logprobs(policy.model, (*ids, *token_ids))[-8:], atol=1e-4
    )
    assert none.token_logprobs == reported.token_logprobs
    assert [len(top) for top in none.top_logprobs] == [1] * 8
    assert all(1 <= len(top) <= 3 for top in reported.top_logprobs)
    assert reported.text_offset[0] == 0
    lengths = [len(text) for text in reported.tokens]
    assert reported.text_offset == [sum(lengths[:place]) for place in range(8)]


def test_a_stream_has_what_the_whole_response_has() -> None:
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
        free = complete(client, seed=1, max_tokens=30).choices[0].text
        stop = free[3:5]
        cut = complete(client, seed=1, max_tokens=30, stop=stop).choices[0]
        keep = {"include_stop_str_in_output": True}
        kept = complete(client, seed=1, max_tokens=30, stop=stop, extra_body=keep)
        ids = complete(client, seed=1, max_tokens=30, extra_body=TOKENS).choices[0].model_dump()["token_ids"]
        stopped = complete(client, seed=1, max_tokens=30, extra_body={**TOKENS, "stop_token_ids": ids[5:6]})
    assert cut.text == free[: free.index(stop)]
    assert kept.choices[0].text == free[: free.index(stop) + len(stop)]
    assert cut.finish_reason == stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].model_dump()["token_ids"] == ids[: ids.index(ids[5]) + 1]


def test_the_default_length_is_openais() -> None:
    with served_client() as (_, client):
        assert client.completions.create(model="tiny", prompt="x").usage.completion_tokens == 16


def test_prompts_of_one_request_without_a_seed_have_randomness_of_their_own() -> None:
    with served_client() as (_, client):
        assert len({choice.text for choice in complete(client, ["x"] * 4, n=2).choices}) == 8


def test_prompts_that_the_model_cannot_read_are_refused() -> None:
    with served_client() as (_, client):
        for prompt, limit, param in (("", 8, "prompt"), ([0, 300], 8, "prompt"), ([-1], 8, "prompt")):
            with pytest.raises(openai.BadRequestError) as refused:
                complete(client, prompt, max_tokens=limit)
            assert refused.value.param == param
        with pytest.raises(openai.BadRequestError) as full:
            complete(client, max_tokens=2000)
        assert full.value.code == "context_length_exceeded"
