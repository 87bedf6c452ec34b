"""Clients of a served policy that are used as they are: an engine policy of a worker, and LiteLLM."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from art_trainer.inference.engine_policy import EnginePolicy
from art_trainer.inference.engines.clients import VLLMEngine
from art_trainer.inference.policy import Conversation
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.serving.dialects import ServedPolicy
from art_trainer.types import Episode, EpisodeSpec
from tests.art_trainer.serving.helpers import CALL, TOKEN, WEATHER, scripted_client, serving
from tests.art_trainer.tiny_models import CHATML, EchoEnv, byte_tokenizer, tiny_model

STARTS = [EpisodeSpec(seed, group=seed // 2, rng_seed=seed) for seed in range(4)]


class Seeded(TransformersPolicy):
    """Draws a seed for each reply, as an engine's policy does, and the reply's randomness from that."""

    def submit(self, conversation: Conversation) -> None:
        own = conversation.rng
        conversation.rng = np.random.default_rng(int(own.integers(2**31)))
        super().submit(conversation)
        conversation.rng = own


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    served = ServedPolicy(TransformersPolicy(tiny_model(), byte_tokenizer(CHATML), name="tiny"))
    with serving(served) as url:
        yield url


def played(policy: TransformersPolicy | EnginePolicy) -> list[Episode]:
    return rollout_episodes(policy, lambda: EchoEnv(turns=3), STARTS)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_new_tokens=9),
        SamplingParams(temperature=0.6, top_p=0.9, top_k=40, min_p=0.01, max_new_tokens=9),
        SamplingParams(repetition_penalty=1.3, max_new_tokens=20, stop_strings=("e", "a", "o", "u", "i")),
        SamplingParams(temperature=0, max_new_tokens=9),
    ],
    ids=["plain", "filtered", "penalty and stop strings", "greedy"],
)
def test_the_same_episodes_as_the_policys_own(sampling: SamplingParams, url: str) -> None:
    model, tokenizer = tiny_model(), byte_tokenizer(CHATML)
    own = played(Seeded(model, tokenizer, sampling=sampling))
    with EnginePolicy(VLLMEngine(url, api_key=TOKEN), None, tokenizer, sampling=sampling) as policy:
        assert policy.max_context == 1024
        remote = played(policy)
    for left, right in zip(own, remote, strict=True):
        assert left.error is right.error is None
        assert [turn.reply for turn in left.turns] == [turn.reply for turn in right.turns]
        for mine, theirs in zip(left.histories, right.histories, strict=True):
            assert mine.token_ids == theirs.token_ids
            if not sampling.greedy:  # of which the policy has no log-probs but 0
                assert np.allclose(mine.logprobs, theirs.logprobs, rtol=0, atol=1e-5)
    assert len({turn.reply for episode in own for turn in episode.turns}) > 3


# In a process of its own: importing it takes seconds, warns, and looks for prices on the network.
_LITELLM = """
import json, os, sys
import litellm

litellm.num_retries = 0
url, tool = sys.argv[1], json.loads(sys.argv[2])
common = {
    "api_base": url + "/v1",
    "api_key": os.environ["SERVED_TOKEN"],
    "messages": [{"role": "user", "content": "rain?"}],
}
seen = {}
for provider in ("openai", "hosted_vllm"):
    answer = litellm.completion(model=provider + "/tiny", logprobs=True, **common)
    seen[provider] = [answer.choices[0].message.content, answer.usage.completion_tokens]
called = litellm.completion(model="openai/tiny", tools=[tool], **common).choices[0]
seen["call"] = [called.finish_reason, called.message.tool_calls[0].function.arguments]
chunks = litellm.completion(model="openai/tiny", stream=True, **common)
seen["stream"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
try:
    litellm.completion(model="openai/tinny", **common)
except litellm.exceptions.NotFoundError as fault:
    seen["unknown"] = str(fault)
try:
    litellm.completion(model="openai/tiny", max_tokens=5000, **common)
except litellm.exceptions.ContextWindowExceededError as fault:
    seen["full"] = str(fault)
print("SEEN" + json.dumps(seen))
"""


@pytest.mark.e2e
@pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is not installed")
def test_litellm_unchanged() -> None:
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "SERVED_TOKEN": TOKEN}
    with scripted_client("yes", "yes", CALL, "of course") as (_, url, _):
        run = [sys.executable, "-c", _LITELLM, url, json.dumps(WEATHER)]
        done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.partition("SEEN")[2])
    assert seen["openai"] == seen["hosted_vllm"] == ["yes", 4]
    assert seen["call"] == ["tool_calls", '{"town": "Bonn"}']
    assert seen["stream"] == "of course"
    assert "did you mean" in seen["unknown"]
    assert "1024 tokens" in seen["full"]
