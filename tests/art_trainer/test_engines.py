"""The wire: what is sent to vLLM and SGLang, what is made of their answers, and of their faults."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import torch
from peft import get_peft_model

from art_trainer.engines.background import BackgroundLoop
from art_trainer.engines.engine import Completion, CompletionRequest
from art_trainer.engines.sglang import SGLangEngine
from art_trainer.engines.vllm import VLLMEngine
from art_trainer.engines.weights import remove_weights, save_weights
from art_trainer.errors import ConfigError, EngineError, EngineRequestError
from art_trainer.loading import with_adapter
from art_trainer.sampler import SamplingParams
from tests.art_trainer.engine_server import HANG, EngineServer
from tests.art_trainer.tiny_models import full_logprobs, tiny_model

# Raised between two libraries: PEFT reads a property that Transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")

ENGINES = [VLLMEngine, SGLangEngine]
PATHS = {VLLMEngine: "/v1/completions", SGLangEngine: "/generate"}
REQUEST = CompletionRequest((5, 6, 7, 8), SamplingParams(max_new_tokens=6), (3, 4), seed=11)


@pytest.fixture(scope="module")
def base():
    return tiny_model()


@pytest.fixture
def serve(base):
    servers = []

    def start(**options):
        servers.append(EngineServer(base, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(params=ENGINES)
def kind(request):
    return request.param


def asked(engine, *requests):
    """What becomes of requests, one after the other."""

    async def run():
        try:
            return [await engine.complete(request) for request in requests]
        finally:
            await engine.aclose()

    return asyncio.run(run())


def ask(engine, request=REQUEST):
    return asked(engine, request)[0]


def run(engine, work):
    async def both():
        try:
            return await work
        finally:
            await engine.aclose()

    return asyncio.run(both())


def adapter(scale=0.1, seed=0):
    model = with_adapter(tiny_model(), 2)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def test_ids_go_in_and_ids_with_their_log_probs_come_out(serve, base, kind):
    server = serve()
    found = ask(kind(server.url))
    assert 1 <= len(found.token_ids) <= 6
    wanted = full_logprobs(base, (5, 6, 7, 8, *found.token_ids))[3:]
    assert found.logprobs == pytest.approx(wanted.tolist(), abs=1e-4)
    assert (found.finish == "stop") == (found.token_ids[-1] in (3, 4))


def test_the_same_seed_is_the_same_completion_and_another_another(serve, kind):
    other = CompletionRequest(REQUEST.prompt_ids, REQUEST.sampling, REQUEST.stop_token_ids, seed=12)
    first, second, third = asked(kind(serve().url), REQUEST, REQUEST, other)
    assert first == second
    assert first.token_ids != third.token_ids


def test_a_stop_token_is_kept_as_the_last_one(serve, kind):
    free = CompletionRequest((5, 6, 7, 8), SamplingParams(max_new_tokens=6), (), seed=11)
    everything, stopped = asked(
        kind(serve().url),
        free,
        CompletionRequest((5, 6, 7, 8), SamplingParams(max_new_tokens=6), tuple(range(300)), seed=11),
    )
    assert (len(everything.token_ids), everything.finish) == (6, "length")
    assert (stopped.token_ids, stopped.finish) == (everything.token_ids[:1], "stop")


def test_vllm_is_sent_every_number_that_changes_the_distribution(serve):
    server = serve()
    sampling = SamplingParams(
        0.7, 0.9, 5, 0.01, repetition_penalty=1.1, max_new_tokens=3, stop_strings=("\n",)
    )
    ask(VLLMEngine(server.url + "/v1/"), CompletionRequest((1, 2), sampling, (4,), seed=None))
    assert server.paths("/v1/completions") == [
        {
            "model": "tiny",
            "prompt": [1, 2],
            "max_tokens": 3,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 5,
            "min_p": 0.01,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": [4],
            "stop": ["\n"],
            "include_stop_str_in_output": True,
            "logprobs": 0,
            "return_token_ids": True,
        }
    ]


def test_sglang_is_sent_every_number_that_changes_the_distribution(serve):
    server = serve()
    sampling = SamplingParams(
        0.7, 0.9, 0, 0.01, repetition_penalty=1.1, max_new_tokens=3, stop_strings=("\n",)
    )
    ask(SGLangEngine(server.url), CompletionRequest((1, 2), sampling, (4,), seed=9))
    assert server.paths("/generate") == [
        {
            "input_ids": [1, 2],
            "sampling_params": {
                "max_new_tokens": 3,
                "temperature": 0.7,
                "top_p": 0.9,
                "top_k": -1,
                "min_p": 0.01,
                "repetition_penalty": 1.1,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "stop_token_ids": [4],
                "stop": ["\n"],
                "no_stop_trim": True,
                "skip_special_tokens": False,
                "sampling_seed": 9,
            },
            "return_logprob": True,
        }
    ]


def test_a_key_is_sent_as_a_bearer_token(serve, kind):
    server = serve()
    ask(kind(server.url, api_key="a-key"))
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer a-key"}


def test_what_is_served_is_found_out(serve, kind):
    found = run(engine := kind(serve(root="/models/a", limit=99).url), engine.served())
    assert (found.name, found.path, found.context_limit) == ("tiny", "/models/a", 99)


def test_a_model_that_is_not_served_is_named_with_those_that_are(serve, kind):
    engine = kind(serve().url, "tinny")
    with pytest.raises(EngineError, match="no model 'tinny'; did you mean `tiny`"):
        run(engine, engine.served())


# Faults of the moment: asked again, a bounded number of times.


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_is_busy_or_broken_is_asked_again(serve, kind, status):
    server = serve()
    server.faults[PATHS[kind]] = [(status, {}, {"error": {"message": "not now"}})] * 2
    assert ask(kind(server.url, backoff=0.001)).token_ids
    assert len(server.paths(PATHS[kind])) == 3


def test_retry_after_is_waited_for_in_seconds_or_until_a_date(serve, kind):
    server = serve()
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=-5), usegmt=True)
    server.faults[PATHS[kind]] = [
        (429, {"Retry-After": "0.15"}, "wait"),
        (503, {"Retry-After": soon}, "wait"),
    ]
    began = time.monotonic()
    ask(kind(server.url, backoff=600.0))
    assert 0.15 <= time.monotonic() - began < 60


def test_a_retry_after_that_says_nothing_is_not_waited_for(serve, kind):
    server = serve()
    server.faults[PATHS[kind]] = [(429, {"Retry-After": "soon"}, "wait")]
    assert ask(kind(server.url, backoff=0.001)).token_ids


def test_patience_ends(serve, kind):
    server = serve()
    server.faults[PATHS[kind]] = [(500, {}, {"error": {"message": "out of memory"}})] * 9
    with pytest.raises(EngineRequestError, match="answered 500: out of memory") as caught:
        ask(kind(server.url, backoff=0.001, max_retries=2))
    assert caught.value.status == 500
    assert len(server.paths(PATHS[kind])) == 3


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_not_asked_again(serve, kind, status):
    server = serve()
    server.faults[PATHS[kind]] = [(status, {}, {"message": "no such luck"})]
    with pytest.raises(EngineRequestError, match=f"answered {status}: no such luck"):
        ask(kind(server.url))
    assert len(server.paths(PATHS[kind])) == 1


def test_nobody_there_is_said_in_words(serve, kind):
    server = serve()
    server.close()
    with pytest.raises(EngineRequestError, match="no answer from http://127"):
        ask(kind(server.url, max_retries=1, backoff=0.001))


def test_a_server_that_hangs_runs_into_the_timeout(serve, kind):
    server = serve()
    server.faults[PATHS[kind]] = [HANG, HANG]
    with pytest.raises(EngineRequestError, match="Timeout"):
        ask(kind(server.url, timeout=0.1, max_retries=1, backoff=0.001))


@pytest.mark.parametrize("body", ["{broken", "[]", "null", '"text"', b"\xff{}"])
def test_an_answer_that_is_no_json_object_is_said_in_words(serve, kind, body):
    server = serve()
    server.faults[PATHS[kind]] = [(200, {}, body)]
    with pytest.raises(EngineRequestError, match="answered with"):
        ask(kind(server.url))


# Answers without what training needs.


def edited(server, path, change):
    def edit(where, answer):
        if where == path:
            change(answer["choices"][0] if path == "/v1/completions" else answer["meta_info"])
        return answer

    server.edit = edit


VLLM_FAULTS = {
    "no token ids": (lambda c: c.pop("token_ids"), "return_token_ids needs vLLM 0.10.2"),
    "null token ids": (lambda c: c.update(token_ids=None), "return_token_ids needs vLLM 0.10.2"),
    "no log-probs": (lambda c: c.update(logprobs=None), "answered without log-probs"),
    "a log-prob too few": (lambda c: c["logprobs"]["token_logprobs"].pop(), "6 token ids with 5 log-probs"),
    "a log-prob that is none": (
        lambda c: c["logprobs"]["token_logprobs"].__setitem__(2, None),
        "None as the log-prob",
    ),
    "nothing": (lambda c: (c.update(token_ids=[]), c["logprobs"].update(token_logprobs=[])), "sent 0 tokens"),
    "text for ids": (lambda c: c.update(token_ids=["a"] * 6), "no ids"),
    "another prompt": (lambda c: c.update(prompt_token_ids=[1, 5, 6, 7, 8]), "read another prompt"),
    "an abort": (lambda c: c.update(finish_reason="abort"), "because of 'abort'"),
}
SGLANG_FAULTS = {
    "no log-probs": (lambda m: m.pop("output_token_logprobs"), "without output_token_logprobs"),
    "pairs cut": (lambda m: m.update(output_token_logprobs=[[-1.0]] * 6), "without output_token_logprobs"),
    "a token too few": (lambda m: m["output_token_logprobs"].pop(), "sampled 6 tokens, but sent 5"),
    "not a number": (
        lambda m: m["output_token_logprobs"][0].__setitem__(0, float("nan")),
        "nan as the log-prob",
    ),
    "another prompt": (lambda m: m.update(prompt_tokens=5), "read another prompt"),
    "an abort": (lambda m: m.update(finish_reason={"type": "abort"}), "because of 'abort'"),
}
LONG = CompletionRequest((5, 6, 7, 8), SamplingParams(max_new_tokens=6), (), seed=11)


FAULTS = [(VLLMEngine, *fault) for fault in VLLM_FAULTS.items()]
FAULTS += [(SGLangEngine, *fault) for fault in SGLANG_FAULTS.items()]


@pytest.mark.parametrize(
    ("engine", "change", "words"),
    [(engine, *fault) for engine, _, fault in FAULTS],
    ids=[f"{engine.kind}-{name}" for engine, name, _ in FAULTS],
)
def test_a_server_without_what_training_needs_is_told_what_to_set(serve, engine, change, words):
    server = serve()
    edited(server, PATHS[engine], change)
    with pytest.raises(EngineError, match=words):
        ask(engine(server.url), LONG)


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"meta_info": 3}, {"choices": [{}], "meta_info": {}}])
def test_another_kind_of_server_is_found_out(serve, kind, body):
    server = serve()
    server.faults[PATHS[kind]] = [(200, {}, body)]
    with pytest.raises(EngineError, match="is this server"):
        ask(kind(server.url))


# Weights.


def loaded(engine, *weights, request=LONG):
    async def work():
        found = []
        for each in weights:
            await engine.load(each)
            found.append(await engine.complete(request))
        return found

    return run(engine, work())


def test_each_adapter_that_is_loaded_samples_from_then_on(serve, kind, tmp_path):
    server = serve()
    models = [adapter(seed=seed) for seed in range(3)]
    saved = [save_weights(model, tmp_path, version) for version, model in enumerate(models)]
    found = loaded(kind(server.url), *saved)
    for model, completion in zip(models, found, strict=True):
        wanted = full_logprobs(model, (5, 6, 7, 8, *completion.token_ids))[3:]
        assert completion.logprobs == pytest.approx(wanted.tolist(), abs=1e-4)
    assert [completion.weights for completion in found] == [each.name for each in saved]
    assert list(server.adapters) == [saved[-1].name]


def test_an_adapter_that_is_there_already_is_not_refused(serve, kind, tmp_path):
    server = serve()
    saved = save_weights(adapter(), tmp_path, 0)
    first = loaded(kind(server.url), saved)
    again = loaded(kind(server.url), saved, saved)
    assert first[0] == again[0] == again[1]
    assert list(server.adapters) == [saved.name]


def test_a_lost_adapter_before_does_not_matter(serve, kind, tmp_path):
    server = serve()
    saved = [save_weights(adapter(seed=seed), tmp_path, seed) for seed in range(2)]
    engine = kind(server.url)

    async def work():
        await engine.load(saved[0])
        server.adapters.clear()
        await engine.load(saved[1])

    run(engine, work())
    assert list(server.adapters) == [saved[1].name]


def test_a_refused_adapter_names_folder_reason_and_remedy(serve, kind, tmp_path):
    server = serve()
    path = "/v1/load_lora_adapter" if kind is VLLMEngine else "/load_lora_adapter"
    server.faults[path] = [(400, {}, {"error_message": "LoRA rank 2 is greater than max_lora_rank"})]
    saved = save_weights(adapter(), tmp_path, 7)
    with pytest.raises(EngineError) as caught:
        loaded(kind(server.url), saved)
    words = str(caught.value)
    assert all(part in words for part in (str(saved.folder), "max_lora_rank", "--enable-lora"))


def test_whole_models_go_to_sglang_and_not_to_vllm(serve, base, tmp_path):
    server = serve()
    saved = save_weights(tiny_model(seed=3), tmp_path, 1)
    (found,) = loaded(SGLangEngine(server.url), saved)
    wanted = full_logprobs(tiny_model(seed=3), (5, 6, 7, 8, *found.token_ids))[3:]
    assert found.logprobs == pytest.approx(wanted.tolist(), abs=1e-4)
    assert (found.weights, server.weight_version) == (saved.name, saved.name)
    with pytest.raises(EngineError, match="LoRA adapters"):
        loaded(VLLMEngine(server.url), saved)


def test_sglang_that_goes_back_to_other_weights_is_found_out(serve, tmp_path):
    server = serve()
    engine = SGLangEngine(server.url)

    async def work():
        await engine.load(save_weights(tiny_model(seed=3), tmp_path, 1))
        server.weight_version = "default"
        await engine.complete(LONG)

    with pytest.raises(EngineError, match="sampled with weights 'default', not 'art-v1-"):
        run(engine, work())


def test_a_failed_update_of_whole_weights_says_why(serve, tmp_path):
    server = serve()
    server.faults["/update_weights_from_disk"] = [(200, {}, {"success": False, "message": "other shapes"})]
    with pytest.raises(EngineError, match="other shapes"):
        loaded(SGLangEngine(server.url), save_weights(tiny_model(seed=3), tmp_path, 1))


def test_equal_weights_have_equal_names_and_others_do_not(tmp_path):
    first, same = save_weights(adapter(), tmp_path, 1), save_weights(adapter(), tmp_path / "b", 1)
    other = save_weights(adapter(seed=1), tmp_path, 1)
    assert first.name == same.name != other.name
    assert first.adapter
    assert {file.name for file in first.folder.iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert not list(tmp_path.glob(".*"))


def test_an_adapter_with_a_name_of_its_own_is_saved_as_any_other(tmp_path):
    named = tiny_model()
    model = adapter()
    named = get_peft_model(named, model.peft_config["default"], adapter_name="mine")
    saved = save_weights(named, tmp_path, 1)
    assert (saved.folder / "adapter_model.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == [saved.name]


def test_old_weights_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "notes").mkdir()
    second = [save_weights(adapter(seed=seed), tmp_path, seed) for seed in range(2)][1]
    remove_weights(tmp_path, keep=second.name)
    assert {path.name for path in tmp_path.iterdir()} == {"notes", second.name}


# Which log-probs a server reports.


def check(engine, sampling, **options):
    run(engine, engine.check(sampling, (5, 6, 7, 8)))


def test_raw_log_probs_are_found_out_where_they_matter(serve, kind):
    server = serve(raw_logprobs=True)
    words = "--logprobs-mode processed_logprobs" if kind is VLLMEngine else "SGLANG_RETURN_ORIGINAL_LOGPROB"
    with pytest.raises(EngineError, match=words):
        check(kind(server.url), SamplingParams(temperature=0.5))
    check(kind(server.url), SamplingParams())
    check(kind(server.url), SamplingParams(temperature=0))


def test_tempered_log_probs_pass_and_are_tried_once(serve, kind):
    server = serve()
    engine = kind(server.url)

    async def work():
        for temperature in (0.5, 2.0):
            await engine.check(SamplingParams(temperature=temperature), (5, 6))

    run(engine, work())
    assert len(server.paths(PATHS[kind])) == (1 if kind is VLLMEngine else 2)


# Parts.


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("localhost:8000", {}, "is no server's address"),
        ("http://a", {"max_concurrency": 0}, "max_concurrency"),
        ("http://a", {"max_retries": -1}, "max_retries"),
    ],
)
def test_wrong_arguments_are_refused_in_words(kind, url, options, words):
    with pytest.raises(ConfigError, match=words):
        kind(url, **options)


def test_requests_run_at_one_time_within_the_limit(serve, kind):
    server = serve()
    engine = kind(server.url, "tiny", max_concurrency=3)

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
