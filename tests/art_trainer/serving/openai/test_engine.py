"""A worker's engine policy over the served policy is the policy itself, token by token."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from art_trainer.inference.engine_policy import EnginePolicy
from art_trainer.inference.engines.clients import CompletionRequest, VLLMEngine
from art_trainer.inference.policy import Conversation
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.serving.openai import ServedPolicy
from art_trainer.types import Episode, EpisodeSpec
from tests.art_trainer.serving.helpers import TOKEN, serving
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


@pytest.mark.parametrize("model", [None, "tiny", "tiny@0"])
def test_an_engine_learns_which_version_answers(model: str | None, url: str) -> None:
    async def weights() -> str:
        engine = VLLMEngine(url, model, api_key=TOKEN, max_retries=0)
        try:
            return (
                await engine.complete(CompletionRequest((1, 2), SamplingParams(max_new_tokens=2)))
            ).weights
        finally:
            await engine.aclose()

    assert asyncio.run(weights()) == "tiny@0"
