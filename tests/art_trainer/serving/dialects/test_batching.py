"""Many clients share a batch, and new weights come between requests, never within one."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
import torch
from peft import LoraConfig, get_peft_model

from art_trainer.inference.generation import RecomputeDecoder
from art_trainer.inference.sampling import SamplingParams, StopStrings
from art_trainer.inference.slot_decoder import SlotDecoder
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.serving.dialects import ServedPolicy
from art_trainer.serving.dialects.batch_scheduler import BatchScheduler, GenerationJob
from tests.art_trainer.serving import helpers
from tests.art_trainer.serving.helpers import (
    before_steps,
    content,
    count_steps,
    hold_decoder,
    served_client,
    tiny_policy,
    user,
)
from tests.art_trainer.tiny_models import CHATML, byte_tokenizer, full_logprobs, tiny_model
from tests.art_trainer.waiting import until

IDS = {"return_token_ids": True}
WAYS: list[dict[str, Any]] = [{}, {"temperature": 0}, {"temperature": 0.6, "top_p": 0.8}, {"max_tokens": 7}]


def chat(client: openai.OpenAI, messages: Any = "hello", **options: Any) -> Any:
    return helpers.chat(client, messages, **{"logprobs": True, "extra_body": IDS, **options})


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


def pausing(monkeypatch: pytest.MonkeyPatch, tokens: int) -> tuple[threading.Event, threading.Event]:
    """Let the decoder set one event after a number of tokens of a reply, and wait for the other."""
    reached, go_on = threading.Event(), threading.Event()

    def pause(sequences: Any) -> None:
        if len(sequences[0].logprobs) == tokens:
            reached.set()
            go_on.wait(300)

    before_steps(monkeypatch, pause)
    return reached, go_on


def test_many_clients_share_a_batch_and_get_what_each_gets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count_steps(monkeypatch)
    with served_client(tiny_policy(max_new_tokens=20)) as (served, client), ThreadPoolExecutor(17) as pool:

        def ask(who: int) -> Any:
            return chat(client, f"I am {who}", seed=who, **WAYS[who % 4])

        alone = [ask(who) for who in range(16)]
        alone_steps = len(steps)
        go_on = hold_decoder(monkeypatch)
        first = pool.submit(ask, 0)
        until(lambda: served.scheduler._busy)
        asked = [pool.submit(ask, who) for who in range(16)]
        until(lambda: served.scheduler.waiting == 16)
        go_on.set()
        together = [future.result() for future in asked]
        assert content(first.result()) == content(alone[0])
    for left, right in zip(alone, together, strict=True):
        assert content(left) == content(right)
        assert np.allclose(logprobs(left), logprobs(right), atol=1e-5)
    assert alone_steps > 200
    assert len(steps) - alone_steps <= 21
    assert max(steps) >= 16


def test_replies_beyond_the_batch_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count_steps(monkeypatch)
    with served_client(tiny_policy(max_batch=3)) as (_, client):
        many = chat(client, seed=2, n=7)
        one = chat(client, seed=2)
    assert len({choice.message.content for choice in many.choices}) == 7
    assert content(many) == content(one)
    assert max(steps) == 3


def test_a_step_that_fails_ends_also_what_was_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [GenerationJob([5, 6], np.zeros(9, np.float32), StopStrings((), str)) for _ in range(2)]
    late, scheduler = jobs[1:], BatchScheduler(tiny_policy())
    before_steps(monkeypatch, lambda _: scheduler.submit([late.pop()]))
    scheduler.submit(jobs[:1])
    assert all("pop from empty list" in str(job.result.exception(60)) for job in jobs)
    scheduler.close()


def test_models_whose_cache_is_not_kept_are_sampled_in_as_many_ways() -> None:
    model, sampling = tiny_model("lfm2"), SamplingParams(max_new_tokens=9)
    policy = TransformersPolicy(model, byte_tokenizer(CHATML), sampling=sampling, name="tiny")
    with served_client(policy) as (served, client), ThreadPoolExecutor(4) as pool:
        alone = [chat(client, seed=who, **WAYS[who]) for who in range(4)]
        together = list(pool.map(lambda who: chat(client, seed=who, **WAYS[who]), range(4)))
        assert isinstance(served.scheduler._decoder, RecomputeDecoder)
    assert [content(answer) for answer in together] == [content(answer) for answer in alone]
    assert np.allclose(logprobs(alone[0]), own_logprobs(model, alone[0]), atol=1e-4)


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
            words.append(content(chat(client, messages, seed=turn)))
            messages += [{"role": "assistant", "content": "as you say"}, user("and then?")]
        chat(client, "something else altogether", seed=0)
        before = read.copy()
        served.update(0)  # what is kept belongs to the old weights, whatever their number
        again = [content(chat(client, messages[: 1 + 2 * turn], seed=turn)) for turn in range(3)]
    assert words == again
    assert before[0] > 140
    assert max(before[1:3]) < 60
    assert read[len(before)] == before[0]


@pytest.mark.parametrize("past", [0, 1])
def test_versions_are_served_by_name_until_newer_ones_replace_them(past: int) -> None:
    policy = tiny_policy()
    with served_client(policy, past_versions=past) as (served, client):
        replies = {0: content(chat(client, seed=1))}
        for version in (1, 2):
            change(policy.model)
            assert content(chat(client, seed=1)) == replies[version - 1], "not before the update"
            served.update(version)
            newest = chat(client, seed=1)
            replies[version] = content(newest)
            assert newest.model == f"tiny@{version}"
            assert np.allclose(logprobs(newest), own_logprobs(policy.model, newest), atol=1e-4)
            names = [f"tiny@{one}" for one in range(version, version - past - 1, -1)]
            assert [model.id for model in client.models.list()] == ["tiny", *names]
            for name in names:
                answer = chat(client, seed=1, model=name)
                assert (answer.model, content(answer)) == (name, replies[int(name[-1])])
        assert len(set(replies.values())) == 3
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError, match="version 0 is not loaded") as gone:
                chat(client, model="tiny@0", stream=stream)
            assert gone.value.code == "model_not_found"
        change(policy.model)
        served.update(2)  # other weights with the same number replace the old ones
        assert served.versions == [2, 1][: past + 1]
        assert content(chat(client, seed=1)) != replies[2]


def test_a_request_finishes_with_its_weights_and_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five replies of one request, two at a time, while the weights change."""
    policy = tiny_policy(max_new_tokens=60, max_batch=2)
    with served_client(policy) as (served, client), ThreadPoolExecutor(3) as pool:
        before = [choice.message.content for choice in chat(client, seed=1, n=5).choices]
        reached, go_on = pausing(monkeypatch, tokens=10)
        first = pool.submit(chat, client, seed=1, n=5)
        assert reached.wait(300)
        change(policy.model)
        updating = pool.submit(served.update, 1)
        until(lambda: served.scheduler._paused)
        pinned = pool.submit(chat, client, seed=1, model="tiny@0")
        until(lambda: served.scheduler.waiting >= 1)
        assert not updating.done()
        go_on.set()
        late = chat(client, seed=1)
        updating.result()
        assert [choice.message.content for choice in first.result().choices] == before
        with pytest.raises(openai.NotFoundError, match="version 0 is not loaded"):
            pinned.result()
    assert (first.result().model, late.model) == ("tiny@0", "tiny@1")
    assert np.allclose(logprobs(late), own_logprobs(policy.model, late), atol=1e-4)


def test_with_past_versions_an_update_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy()
    with served_client(policy, past_versions=1) as (served, client), ThreadPoolExecutor(1) as pool:
        alone = content(chat(client, seed=1))
        reached, go_on = pausing(monkeypatch, tokens=3)
        started = pool.submit(chat, client, seed=1)
        assert reached.wait(300)
        change(policy.model)
        served.update(1)
        assert not started.done()
        go_on.set()
        new = chat(client, seed=1)
        assert (started.result().model, content(started.result())) == ("tiny@0", alone)
        assert (new.model, content(new) == alone) == ("tiny@1", False)


# PEFT reads a property that Transformers has renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_frozen_weights_are_shared_and_only_adapters_are_copied() -> None:
    base = tiny_policy()
    model = get_peft_model(base.model, LoraConfig(r=2, init_lora_weights=False))
    policy = TransformersPolicy(model, base.tokenizer, sampling=base.sampling, name="tiny")
    with served_client(policy, past_versions=2) as (served, client):
        copies = [dict(one.policy.model.named_parameters()) for one in served._schedulers]
        for name, weight in model.named_parameters():
            assert all((own[name] is weight) == ("lora" not in name) for own in copies)
        old = chat(client, seed=1)
        change(model)
        served.update(3)
        new = chat(client, seed=1)
    assert content(old) != content(new)
    assert new.model == "tiny@3"
    assert np.allclose(logprobs(new), own_logprobs(model.eval(), new), atol=1e-4)


def test_a_closed_policy_says_that_it_shuts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = hold_decoder(monkeypatch)
    with served_client(tiny_policy(max_batch=1)) as (served, client), ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(chat, client) for _ in range(2)]
        until(lambda: served.scheduler.waiting == 1)
        closing = pool.submit(served.close)
        until(lambda: served.scheduler._closing)
        with pytest.raises(openai.InternalServerError):
            chat(client, timeout=60)  # while the first is sampled yet
        go_on.set()
        closing.result()
        for one in (*asked, pool.submit(chat, client)):
            with pytest.raises(openai.InternalServerError) as closed:
                one.result()
            assert (closed.value.status_code, closed.value.code) == (503, "shutting_down")
        with pytest.raises(RuntimeError, match="closed"):
            served.update(1)


def test_another_model_cannot_take_the_place_of_the_one_that_is_served() -> None:
    policy = tiny_policy()
    with ServedPolicy(policy) as served:
        policy.model.lm_head = torch.nn.Linear(48, 7, bias=False)
        with pytest.raises(RuntimeError, match="serve it anew"):
            served.update(1)
        assert served.versions == [0]
