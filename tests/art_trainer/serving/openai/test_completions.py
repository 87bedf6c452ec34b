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
