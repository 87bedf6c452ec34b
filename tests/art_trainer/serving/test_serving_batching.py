"""Many clients share a batch, and new weights come between requests, never within one."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
import torch
from peft import LoraConfig, get_peft_model

from art_trainer.decoding import RecomputeDecoder
from art_trainer.sampler import SamplingParams
from art_trainer.serving import ServedPolicy
from art_trainer.slot_decoder import SlotDecoder
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_trainer.agent_server.agent_helpers import tiny_policy, user
from tests.art_trainer.serving.serving_helpers import client_of, counted_steps, served_client, serving
from tests.art_trainer.tiny_models import CHATML, byte_tokenizer, full_logprobs, tiny_model
from tests.art_trainer.waiting import until

IDS = {"return_token_ids": True}
WAYS: list[dict[str, Any]] = [{}, {"temperature": 0}, {"temperature": 0.6, "top_p": 0.8}, {"max_tokens": 7}]


def chat(client: openai.OpenAI, words: str = "hello", **options: Any) -> Any:
    body = {"model": "tiny", "messages": [user(words)], "logprobs": True, "extra_body": IDS}
    return client.chat.completions.create(**body | options)


def content(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def logprobs(answer: Any) -> list[float]:
    return [entry.logprob for entry in answer.choices[0].logprobs.content]


def own_logprobs(model: torch.nn.Module, answer: Any) -> np.ndarray:
    """The log-probs that a model has for the tokens of an answer."""
    dumped = answer.model_dump()
    token_ids = dumped["choices"][0]["token_ids"]
    return full_logprobs(model, (*dumped["prompt_token_ids"], *token_ids))[-len(token_ids) :]


def change(model: torch.nn.Module) -> None:
    """Another version of the weights, which says other things."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.mul_(1.5)


def test_many_clients_share_a_batch_and_get_what_each_gets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = counted_steps(monkeypatch)
    start = SlotDecoder.start
    hold = threading.Event()

    def held(self: SlotDecoder, sequences: Any) -> None:
        hold.wait(60)
        start(self, sequences)

    with served_client(tiny_policy(max_new_tokens=20)) as (served, client):

        def ask(who: int) -> Any:
            return chat(client, f"I am {who}", seed=who, **WAYS[who % 4])

        alone = [ask(who) for who in range(16)]
        alone_steps = len(steps)
        steps.clear()
        monkeypatch.setattr(SlotDecoder, "start", held)
        with ThreadPoolExecutor(17) as pool:
            first = pool.submit(ask, 0)
            until(lambda: served._newest.sampler._busy)
            asked = [pool.submit(ask, who) for who in range(16)]
            until(lambda: served._newest.sampler.waiting == 16)
            hold.set()
            together = [future.result() for future in asked]
        assert content(first.result()) == content(alone[0])
    for left, right in zip(alone, together, strict=True):
        assert content(left) == content(right)
        assert np.allclose(logprobs(left), logprobs(right), atol=1e-5)
    assert alone_steps > 200
    assert len(steps) <= 20
    assert max(steps) >= 16


def test_replies_beyond_the_batch_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = counted_steps(monkeypatch)
    with served_client(max_batch=3) as (_, client):
        many = chat(client, seed=2, n=7)
        one = chat(client, seed=2)
    assert len({choice.message.content for choice in many.choices}) == 7
    assert content(many) == content(one)
    assert max(steps) == 3


def test_models_whose_cache_is_not_kept_are_sampled_in_as_many_ways() -> None:
    policy = TransformersPolicy(
        tiny_model("mistral-sliding"),
        byte_tokenizer(CHATML),
        sampling=SamplingParams(max_new_tokens=9),
        name="tiny",
    )
    with served_client(policy) as (served, client), ThreadPoolExecutor(4) as pool:
        alone = [chat(client, seed=who, **WAYS[who]) for who in range(4)]
        together = list(pool.map(lambda who: chat(client, seed=who, **WAYS[who]), range(4)))
        assert isinstance(served._newest.sampler._decoder, RecomputeDecoder)
    assert [content(answer) for answer in together] == [content(answer) for answer in alone]
    for answer in (alone[0], alone[1]):
        assert np.allclose(logprobs(answer), own_logprobs(policy.model, answer), atol=1e-4)


def test_a_conversation_that_goes_on_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    start = SlotDecoder.start

    def counting(self: SlotDecoder, sequences: Any) -> None:
        read.extend(len(s.tokens) - s.cached for s in sequences)
        start(self, sequences)

    monkeypatch.setattr(SlotDecoder, "start", counting)
    messages = [user("a long question, " * 8)]
    with served_client() as (served, client):
        words = []
        for turn in range(3):
            words.append(content(chat(client, messages=messages, seed=turn)))
            messages += [{"role": "assistant", "content": "as you say"}, user("and then?")]
        chat(client, "something else altogether", seed=0)
        before = read.copy()
        served.update(0)  # what is kept belongs to the old weights, whatever their number
        again = [content(chat(client, messages=messages[: 1 + 2 * turn], seed=turn)) for turn in range(3)]
    assert words == again
    assert before[0] > 140
    assert max(before[1:3]) < 60
    assert read[len(before)] == before[0]


def test_new_weights_answer_from_the_update_on_and_the_name_says_so() -> None:
    policy = tiny_policy()
    with served_client(policy) as (served, client):
        old = chat(client, seed=1)
        change(policy.model)
        still = chat(client, seed=1)
        served.update(1)
        new = chat(client, seed=1)
        assert [model.id for model in client.models.list()] == ["tiny", "tiny@1"]
        assert client.models.retrieve("tiny@1").id == "tiny@1"
        assert content(chat(client, seed=1, model="tiny@1")) == content(new)
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError, match="version 0 is not loaded: 1 is") as gone:
                chat(client, model="tiny@0", stream=stream)
            assert gone.value.code == "model_not_found"
    assert (old.model, still.model, new.model) == ("tiny@0", "tiny@0", "tiny@1")
    assert content(old) == content(still) != content(new)
    assert np.allclose(logprobs(new), own_logprobs(policy.model, new), atol=1e-4)


def test_a_request_ends_with_the_weights_it_began_with_and_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five replies of one request, two at a time, while the weights change."""
    policy = tiny_policy(max_new_tokens=60)
    sampled, go_on = threading.Event(), threading.Event()
    step = SlotDecoder.step

    def stopping(self: SlotDecoder, sequences: Any) -> None:
        step(self, sequences)
        if len(sequences[0].logprobs) == 10:
            sampled.set()
            go_on.wait(60)

    with served_client(policy, max_batch=2) as (served, client), ThreadPoolExecutor(3) as pool:
        before = [choice.message.content for choice in chat(client, seed=1, n=5).choices]
        monkeypatch.setattr(SlotDecoder, "step", stopping)
        first = pool.submit(chat, client, seed=1, n=5)
        assert sampled.wait(60)
        change(policy.model)
        updating = pool.submit(served.update, 1)
        until(lambda: served._newest.sampler._holding)
        pinned = pool.submit(chat, client, seed=1, model="tiny@0")
        until(lambda: served._newest.sampler.waiting >= 1)
        assert not updating.done()
        go_on.set()
        late = chat(client, seed=1)
        updating.result()
        assert [choice.message.content for choice in first.result().choices] == before
        with pytest.raises(openai.NotFoundError, match="version 0 is not loaded: 1 is"):
            pinned.result()
    assert first.result().model == "tiny@0"
    assert late.model == "tiny@1"
    assert np.allclose(logprobs(late), own_logprobs(policy.model, late), atol=1e-4)


# Raised between two libraries: PEFT reads a property that Transformers has renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_frozen_weights_are_shared_and_only_adapters_are_copied() -> None:
    base = tiny_policy()
    model = get_peft_model(base.model, LoraConfig(r=2, init_lora_weights=False))
    policy = TransformersPolicy(model, base.tokenizer, sampling=base.sampling, name="tiny")
    with served_client(policy) as (served, client):
        own = dict(served._newest.policy.model.named_parameters())
        for name, weight in model.named_parameters():
            assert (own[name] is weight) == ("lora" not in name)
        old = chat(client, seed=1)
        change(model)
        served.update(3)
        new = chat(client, seed=1)
    assert content(old) != content(new)
    assert new.model == "tiny@3"
    assert np.allclose(logprobs(new), own_logprobs(model.eval(), new), atol=1e-4)


def test_a_closed_policy_says_that_it_shuts_down() -> None:
    served = ServedPolicy(tiny_policy(), name="mine")
    with serving(served) as url, client_of(url) as client:
        assert chat(client, model="mine").model == "mine@0"
        served.close()
        with pytest.raises(openai.InternalServerError, match="shutting down") as closed:
            chat(client, model="mine")
        with pytest.raises(RuntimeError, match="closed"):
            served.update(1)
    assert closed.value.status_code == 503


def test_another_model_cannot_take_the_place_of_the_one_that_is_served() -> None:
    policy = tiny_policy()
    with ServedPolicy(policy) as served:
        policy.model.lm_head = torch.nn.Linear(48, 7, bias=False)
        with pytest.raises(RuntimeError, match="serve it anew"):
            served.update(1)
        assert served.version == 0
