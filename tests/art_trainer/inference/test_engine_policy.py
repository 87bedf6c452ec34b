"""Playing and training through an engine: a real server on loopback, with a tiny model behind it."""

import gc
import itertools
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from art_trainer.cli.main import app
from art_trainer.cli.policies import load_policy, served_policy
from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError, EngineError
from art_trainer.inference.engine_policy import EnginePolicy
from art_trainer.inference.engines.clients import VLLMEngine
from art_trainer.inference.policy import Conversation
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.chat_template import context_limit
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.training.run_settings import Layer, merge_settings
from art_trainer.training.run_setup import with_engine
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Ending, EpisodeSpec
from tests.art_trainer.engine_server import HANG
from tests.art_trainer.tiny_models import EchoEnv, byte_tokenizer, largest_error, tiny_model
from tests.art_trainer.tiny_models import lora_model as lora
from tests.art_trainer.updates import weights_of
from tests.art_trainer.waiting import interrupted, until
from tests.wrappers.judging.judge_server import Reply

# PEFT reads a property that Transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")

ENV = "tests.art_trainer.toy_envs:toy/Echo-v0"
SAMPLING = SamplingParams(max_new_tokens=5)
# The end-of-turn token is unlikely with random weights, so that some more letters end a turn too.
STOPS = SamplingParams(max_new_tokens=6, stop_token_ids=tuple(range(60)))
STARTS = [EpisodeSpec(seed, group=seed, rng_seed=seed) for seed in range(4)]


def policy_on(server, model=None, *, sampling=SAMPLING, **options):
    engine = VLLMEngine(server.url, max_retries=2, backoff=0.001)
    return EnginePolicy(engine, model, byte_tokenizer(), sampling=sampling, **options)


# Tokens.


def test_the_tokens_of_an_episode_are_those_of_the_model_in_this_process(serve):
    """Greedy, so that both sample alike: contexts, glue, stops and texts must be the same."""
    sampling = SamplingParams(temperature=0, max_new_tokens=8, stop_token_ids=STOPS.stop_token_ids)
    local = TransformersPolicy(tiny_model(), byte_tokenizer(), sampling=sampling)
    wanted = rollout_episodes(local, EchoEnv, STARTS)
    with policy_on(serve(), sampling=sampling) as policy:
        found = rollout_episodes(policy, EchoEnv, STARTS)
    for ours, theirs in zip(found, wanted, strict=True):
        assert [h.token_ids for h in ours.histories] == [h.token_ids for h in theirs.histories]
        assert [h.action_mask for h in ours.histories] == [h.action_mask for h in theirs.histories]
        assert ours.turns == theirs.turns


def test_the_same_seeds_are_the_same_episodes_whatever_order_replies_come_in(serve):
    server = serve()
    with policy_on(server) as policy:
        alone = [rollout_episodes(policy, EchoEnv, [start])[0] for start in STARTS]
        together = rollout_episodes(policy, EchoEnv, STARTS)
    assert alone == together
    assert server.most_busy > 1


def test_a_context_that_is_full_ends_the_episode_before_the_engine_refuses(serve):
    with policy_on(serve(limit=90)) as policy:
        assert policy.max_context == 90
        episodes = rollout_episodes(policy, lambda: EchoEnv(30), STARTS)
    assert {episode.ending for episode in episodes} == {Ending.CONTEXT_FULL}
    assert all(episode.turns for episode in episodes)
    # The limit is the smaller of the engine's and the model's.
    with policy_on(serve(limit=4096), lora()) as trained, policy_on(serve(limit=None)) as unknown:
        assert trained.max_context == context_limit(tiny_model()) == 1024
        assert unknown.max_context is None


# Weights.


def test_log_probs_are_the_learners_after_each_of_three_reloads(serve):
    server, model = serve(), lora()
    with policy_on(server, model, sampling=STOPS) as policy:
        names = []
        for version in range(4):
            episodes = rollout_episodes(policy, lambda: EchoEnv(2), STARTS[:2])
            assert largest_error(model, episodes) < 1e-4
            assert {s.policy_version for e in episodes for h in e.histories for s in h.spans} == {version}
            names += list(server.adapters)
            model.load_state_dict(lora(version, scale=0.1).state_dict())
            policy.version += 1
    assert len(names) == len(set(names)) == 4  # and the adapter before is unloaded


def test_a_push_that_fails_for_good_ends_the_rollout_and_can_be_done_again(serve):
    server, model = serve(), lora()
    server.failures["/v1/load_lora_adapter"] = [Reply({"message": "rank too high"}, 400)]
    with policy_on(server, model) as policy:
        with pytest.raises(EngineError, match=r"rank too high.*--enable-lora"):
            rollout_episodes(policy, EchoEnv, STARTS)
        assert largest_error(model, rollout_episodes(policy, EchoEnv, STARTS)) < 1e-4


def test_weights_that_the_engine_cannot_take_are_refused_at_once(serve):
    server = serve()
    with pytest.raises(EngineError, match="takes LoRA adapters only"):
        policy_on(server, tiny_model())
    with pytest.raises(EngineError, match=r"change beyond 192.*--max-model-len"):
        policy_on(server, lora(family="phi3-longrope"))
    with policy_on(server) as policy, pytest.raises(EngineError, match="plays only"):
        _ = policy.model


@pytest.mark.parametrize("temperature", [0.7, 0.97])
def test_raw_log_probs_stop_training_but_not_play(serve, temperature):
    server = serve(raw_logprobs=True)
    words = "--logprobs-mode processed_logprobs"
    warm = SamplingParams(temperature=temperature, max_new_tokens=8)
    with policy_on(server, sampling=warm) as policy:
        assert rollout_episodes(policy, EchoEnv, STARTS[:1])[0].error is None
    with policy_on(server, lora(), sampling=warm) as policy:
        with pytest.raises(EngineError, match=f"before temperature and filters: .*{words}"):
            rollout_episodes(policy, EchoEnv, STARTS[:1])
        policy.sampling = SAMPLING
        assert rollout_episodes(policy, EchoEnv, STARTS[:1])[0].error is None


def test_filters_whose_log_probs_the_engine_cannot_report_stop_training(serve):
    filters, refused = SamplingParams(top_p=0.9, min_p=0.1), pytest.raises(EngineError, match="set only one")
    with policy_on(serve(), lora(), sampling=filters) as policy, refused:
        rollout_episodes(policy, EchoEnv, STARTS[:1])


WRONG = [
    "the adapter is ignored", "stale weights", "a stale prefix cache", "a wrong template", "before filters",
    "before temperature and filters", "filters of its own", "another dtype", "other weights",
]  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_an_engine_that_goes_wrong_is_stopped_at_the_next_push_with_the_cause(serve, fault):
    server, model = serve(), lora(scale=0.3)
    sampling = SamplingParams(temperature=0.8, top_p=0.9, max_new_tokens=8)
    with policy_on(server, model, sampling=sampling) as policy:
        rollout_episodes(policy, EchoEnv, STARTS[:2])
        server.fault, server.raw = fault, fault == "before temperature and filters"
        model.load_state_dict(lora(1, scale=0.3).state_dict())
        policy.version += 1
        asked = len(server.bodies("/v1/completions"))
        with pytest.raises(EngineError, match=f"not sample from the model that is trained.*{fault}"):
            rollout_episodes(policy, EchoEnv, STARTS[:2])
        prompts = [body["prompt"] for body in server.bodies("/v1/completions")[asked:]]
        assert len(prompts) <= 12, "only what is asked to find out"
        server.fault, server.raw = "", False
        policy.version += 1
        assert rollout_episodes(policy, EchoEnv, STARTS[:1])[0].error is None


# Training.


def settings(folder, **more):
    more |= {"groups_per_step": 2, "num_generations": 3, "max_completion_length": 5, "max_steps": 3}
    return GRPOConfig(output_dir=str(folder), learning_rate=5e-3, eval_episodes=2, **more)


@pytest.mark.parametrize(
    "more", [{}, {"importance_sampling_correction": True, "top_p": 0.9, "repetition_penalty": 1.2}]
)
def test_training_over_an_engine_is_training_in_this_process(serve, tmp_path, more):
    """The same episodes give the same losses and the same weights, update after update."""
    ours, theirs = lora(), lora()
    here = TransformersPolicy(theirs, byte_tokenizer())
    with policy_on(serve(), ours) as policy:
        remote = GRPOTrainer(policy, lambda: EchoEnv(2), settings(tmp_path / "a", **more))
        local = GRPOTrainer(here, lambda: EchoEnv(2), settings(tmp_path / "b", **more))
        for step in range(3):
            groups = remote.collect_episodes()
            episodes = [e for group in groups for e in group.episodes]
            assert "top_p" in more or largest_error(ours, episodes) < 1e-4
            found, wanted = remote.update_policy(groups), local.update_policy(groups)
            assert found["policy_loss"] == pytest.approx(wanted["policy_loss"], abs=1e-7)
            assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-6)
            assert policy.version == step + 1
        remote.close()
        local.close()
    assert found["grad_norm"] > 0
    assert torch.equal(weights_of(ours), weights_of(theirs))


def test_a_vllm_that_can_sleep_does_so_while_nobody_plays(serve, caplog):
    server, model = serve(), lora()
    with policy_on(server, model) as policy:
        rollout_episodes(policy, EchoEnv, STARTS[:2])
        assert server.paths.count("/sleep?level=1") == 1  # a server that cannot is asked once
    server.asleep = False
    with policy_on(server, model) as policy:
        for _ in range(2):
            assert largest_error(model, rollout_episodes(policy, EchoEnv, STARTS[:2])) < 1e-4
            assert server.asleep
            policy.version += 1
    assert server.asleep is False
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


# Faults.


def test_an_engine_that_is_not_there_is_an_error_at_once(serve):
    server = serve()
    server.close()
    with pytest.raises(EngineError, match=r"cannot reach .*: no answer from http://127\.0\.0\.1"):
        policy_on(server)


def test_an_engine_started_anew_gets_its_weights_with_the_next_version(serve):
    server, model = serve(), lora()
    with policy_on(server, model) as policy:
        rollout_episodes(policy, EchoEnv, STARTS[:1])
        server.adapters.clear()
        (lost,) = rollout_episodes(policy, EchoEnv, STARTS[:1])
        assert lost.ending is Ending.POLICY_ERROR
        assert "does not exist" in lost.error
        policy.version += 1
        assert largest_error(model, rollout_episodes(policy, EchoEnv, STARTS[:1])) < 1e-4


def test_ctrl_c_cancels_slow_replies_also_in_the_engine(serve):
    server = serve()
    server.failures["/v1/completions"] = [HANG] * len(STARTS)
    with policy_on(server) as policy:
        with pytest.raises(KeyboardInterrupt), interrupted(lambda: not server.failures["/v1/completions"]):
            rollout_episodes(policy, EchoEnv, STARTS)
        until(lambda: server.dropped == len(STARTS))
        assert policy.collect() == []
        assert rollout_episodes(policy, EchoEnv, STARTS[:1])[0].error is None


def test_a_policy_that_nobody_holds_leaves_no_thread_and_no_folder(serve, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    policy = policy_on(serve(), lora(), name="forgotten")
    rollout_episodes(policy, EchoEnv, STARTS[:1])
    assert "forgotten" in {thread.name for thread in threading.enumerate()}
    assert len(list(tmp_path.glob("art-engine-*/art-v0-*"))) == 1
    del policy
    gc.collect()
    assert "forgotten" not in {thread.name for thread in threading.enumerate()}
    assert list(tmp_path.iterdir()) == []


def test_a_released_conversation_gets_no_reply(serve):
    gone, kept = (
        Conversation(EchoEnv(), [{"role": "user", "content": "hello"}], [], np.random.default_rng(0), 0)
        for _ in range(2)
    )
    with policy_on(serve()) as policy:
        policy.submit(gone)
        policy.submit(kept)
        assert policy.release(gone) == ()
        assert [conversation for conversation, _ in policy.collect()] == [kept]
        assert policy.collect() == []


# Command line.


@pytest.mark.parametrize("words", ["vllm:tiny@{url}", "vllm:{url}/v1"])
def test_a_served_model_plays_by_its_name_and_address(serve, model, words):
    server = serve(root=model)
    words = words.format(url=server.url)
    policy = load_policy(words, lambda: gym.make(ENV), temperature=1.0, max_tokens=3)
    assert isinstance(policy, EnginePolicy)
    with policy:
        assert policy.name == words
        assert rollout_episodes(policy, EchoEnv, STARTS[:1])[0].error is None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("vllm:tiny", "write vllm:MODEL@URL"),
        ("vllm:tinny@{url}", "did you mean `tiny`"),
        ("vllm:tiny@{url}", "cannot load its tokenizer"),
    ],
)
def test_wrong_words_for_an_engine_are_explained(serve, tmp_path, words, reason):
    server = serve(root=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=reason):
        served_policy(words.format(url=server.url), SAMPLING)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"engine": "vlm@http://a"}, "write vllm@URL"),
        ({"engine": "vllm@{url}"}, "takes LoRA adapters only"),
        ({"engine": "vllm@{url}", "model": "scratch"}, "no engine serves a scratch model"),
    ],
)
def test_wrong_settings_for_an_engine_are_explained(serve, values, reason):
    server = serve()
    values = {key: value.format(url=server.url) for key, value in values.items()}
    run = merge_settings([Layer("test", {"model": "some/model", **values})]).run
    local = TransformersPolicy(tiny_model(), byte_tokenizer())
    with pytest.raises(ConfigError, match=reason):
        with_engine(local, run)
    assert with_engine(local, merge_settings([]).run) is local


def test_art_trainer_train_trains_over_an_engine_and_evaluates_alike_before_and_after(
    serve, model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    server = serve(root=model)
    settings = {
        "env": ENV, "model": model, "lora": 2, "max_steps": 1, "groups_per_step": 2, "num_generations": 2,
        "eval_episodes": 2, "engine": f"vllm@{server.url}", "engine_weights_dir": "weights",
        "max_completion_length": 4, "importance_sampling_correction": True, "output_dir": "out",
        "temperature": 0.7, "eval_temperature": 0.3,
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    result = CliRunner().invoke(app, ["train", "--config", "run.yaml"])
    assert result.exit_code == 0, result.output
    loads = server.bodies("/v1/load_lora_adapter")
    assert [load["lora_name"].split("-")[1] for load in loads] == ["v0", "v1"]
    assert [str(path) for path in (tmp_path / "weights").iterdir()] == [loads[-1]["lora_path"]]
    temperatures = [request["temperature"] for request in server.bodies("/v1/completions")]
    phases = [0.3, 2.0, 0.3, 0.7, 2.0, 0.7, 0.3, 2.0, 0.3]  # each is compared with the learner first
    assert [each for each, _ in itertools.groupby(temperatures)] == phases
    assert RunFolder(tmp_path / "out").evaluation("after") is not None
