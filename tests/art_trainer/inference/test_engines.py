"""The wire: what is sent to vLLM, what is made of its answers, and of its faults."""

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from art_trainer.errors import ConfigError, EngineError, EngineRequestError
from art_trainer.inference.engines.clients import Completion, CompletionRequest, VLLMEngine
from art_trainer.inference.engines.http import BackgroundLoop
from art_trainer.inference.sampling import SamplingParams
from art_trainer.models.weights_io import save_weights
from tests.art_trainer.engine_server import HANG
from tests.art_trainer.tiny_models import lora_model, tiny_model
from tests.wrappers.judging.judge_server import Reply

# PEFT reads a property that Transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")

PATH = "/v1/completions"
REQUEST = CompletionRequest((5, 6, 7, 8), SamplingParams(max_new_tokens=6), (3, 4), seed=11)
LONG = dataclasses.replace(REQUEST, stop_token_ids=())


def run(engine, work):
    async def both():
        try:
            return await work
        finally:
            await engine.aclose()

    return asyncio.run(both())


def ask(engine, request=REQUEST):
    return run(engine, engine.complete(request))


def test_a_stop_token_is_kept_as_the_last_one(serve):
    server = serve()
    everything = ask(VLLMEngine(server.url), LONG)
    stopped = ask(VLLMEngine(server.url), dataclasses.replace(LONG, stop_token_ids=tuple(range(300))))
    assert (len(everything.token_ids), everything.finish) == (6, "length")
    assert (stopped.token_ids, stopped.finish) == (everything.token_ids[:1], "stop")


SHARED_FIELDS = {
    "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop_token_ids": [4], "stop": ["\n"],
}  # fmt: skip


def test_every_number_that_changes_the_distribution_is_sent(serve):
    server = serve()
    sampling = SamplingParams(0.7, 0.9, 5, 0.01, 1.1, max_new_tokens=3, stop_strings=("\n",))
    ask(VLLMEngine(server.url + "/v1/", api_key="a-key"), CompletionRequest((1, 2), sampling, (4,), seed=9))
    wanted = {
        **SHARED_FIELDS, "model": "tiny", "prompt": [1, 2], "max_tokens": 3, "seed": 9, "logprobs": 0,
        "include_stop_str_in_output": True, "return_token_ids": True,
    }  # fmt: skip
    assert server.bodies(PATH) == [wanted]
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer a-key"}


# Faults of the moment: asked again, a bounded number of times.


def test_retry_after_is_waited_for_in_seconds_or_until_a_date(serve, monkeypatch):
    server = serve()
    past = format_datetime(datetime.now(UTC) + timedelta(seconds=-5), usegmt=True)
    answers = ((429, "0.15"), (503, past))
    server.failures[PATH] = [Reply(b"wait", status, {"Retry-After": at}) for status, at in answers]
    sleep, pauses = asyncio.sleep, []
    monkeypatch.setattr("asyncio.sleep", lambda seconds: pauses.append(seconds) or sleep(0))
    ask(VLLMEngine(server.url, backoff=600.0))
    assert pauses == [0.15, 0.0]


@pytest.mark.parametrize(("status", "tries"), [(429, 3), (500, 3), (503, 3), (400, 1), (401, 1), (404, 1)])
def test_what_may_pass_is_retried_within_the_limit_and_a_refusal_is_not(serve, status, tries):
    server = serve()
    server.failures[PATH] = [Reply({"error": {"message": "no luck"}}, status, {"Retry-After": "soon"})] * 9
    with pytest.raises(EngineRequestError, match=f"answered {status}: no luck") as caught:
        ask(VLLMEngine(server.url, backoff=0.001, max_retries=2))
    assert caught.value.status == status
    assert len(server.bodies(PATH)) == tries
    server.failures[PATH] = [Reply({"message": "not now"}, 503)] * 2
    assert ask(VLLMEngine(server.url, backoff=0.001, max_retries=2)).token_ids


NO_JSON = [b"{broken", b"[]", b"null", b'"text"', b"\xff{}", b"[" * 100_000]
ANSWERS = [
    (HANG, EngineRequestError, "Timeout"),
    (Reply({}, headers={"Content-Encoding": "gzip"}), EngineRequestError, "no answer"),
    *((Reply(body), EngineRequestError, "answered with") for body in NO_JSON),
    *((Reply(body), EngineError, "is this server vLLM") for body in ({}, {"choices": []}, {"choices": [{}]})),
]


@pytest.mark.parametrize(("answer", "error", "words"), ANSWERS)
def test_no_answer_or_one_that_is_no_completion_is_said_in_words(serve, answer, error, words):
    server = serve()
    server.failures[PATH] = [answer]
    with pytest.raises(error, match=words):
        ask(VLLMEngine(server.url, timeout=0.1 if answer is HANG else 60, max_retries=0))


# Answers without what training needs.


def put(**values):
    return lambda part: part.update(values)


FAULTS = [
    (lambda c: c.pop("token_ids"), "return_token_ids needs vLLM 0.10.2"),
    (put(token_ids=None), "return_token_ids needs vLLM 0.10.2"),
    (put(logprobs=None), "answered without log-probs"),
    (lambda c: c["logprobs"]["token_logprobs"].pop(), "6 token ids with 5 log-probs"),
    *((put(logprobs={"token_logprobs": [v] * 6}), "the log-prob of token 0") for v in (None, 10**400)),
    (put(token_ids=[], logprobs={"token_logprobs": []}), "sent 0 tokens"),
    *((put(token_ids=[token] * 6), "invalid token ids") for token in ("a", 10**30)),
    (put(prompt_token_ids=[1, 5, 6, 7, 8]), "read another prompt"),
    (put(finish_reason="abort"), "because of 'abort'"),
]


@pytest.mark.parametrize(("change", "words"), FAULTS)
def test_an_answer_without_what_training_needs_is_an_error_with_what_to_set(serve, change, words):
    def edit(path, answer):
        if path == PATH:
            change(answer["choices"][0])
        return answer

    server = serve()
    server.edit = edit
    with pytest.raises(EngineError, match=words):
        ask(VLLMEngine(server.url), LONG)


# Weights.


def loaded(engine, weights):
    async def work():
        await engine.load(weights)
        return await engine.complete(LONG)

    return run(engine, work())


def test_an_adapter_that_is_loaded_already_or_lost_does_not_matter(serve, tmp_path):
    server = serve()
    saved, other = (save_weights(lora_model(seed, scale=0.1), tmp_path, seed) for seed in range(2))
    first = loaded(VLLMEngine(server.url), saved)
    engine = VLLMEngine(server.url)

    async def work():
        await engine.load(saved)
        await engine.load(saved)
        assert await engine.complete(LONG) == first
        server.adapters.clear()
        await engine.load(other)

    run(engine, work())
    assert list(server.adapters) == [other.name]


def test_whole_models_are_refused(serve, tmp_path):
    with pytest.raises(EngineError, match="LoRA adapters"):
        loaded(VLLMEngine(serve().url), save_weights(tiny_model(seed=3), tmp_path, 1))


# Parts.


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("localhost:8000", {}, "is not a server's address"),
        ("http://a", {"max_concurrency": 0}, "max_concurrency"),
        ("http://a", {"max_retries": -1}, "max_retries"),
    ],
)
def test_wrong_arguments_are_refused_in_words(url, options, words):
    with pytest.raises(ConfigError, match=words):
        VLLMEngine(url, **options)


def test_requests_run_at_one_time_within_the_limit(serve):
    server = serve()
    engine = VLLMEngine(server.url, "tiny", max_concurrency=3)

    async def work():
        return await asyncio.gather(*(engine.complete(REQUEST) for _ in range(9)))

    found = run(engine, work())
    assert all(isinstance(each, Completion) and each == found[0] for each in found)
    assert 2 <= server.most_busy <= 3


def test_a_background_loop_ends_what_it_began():
    loop = BackgroundLoop("test")
    ended = []

    async def endless():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    async def answer():
        return 42

    future = loop.start(endless())
    assert loop.run(answer()) == 42
    loop.close()
    loop.close()
    assert ended == ["cancelled"]
    assert future.cancelled()
