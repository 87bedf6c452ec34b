"""The same episode, whatever it is batched with: measured against the limits the policy's docs state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from art_trainer.episodes import Episode
from art_trainer.rollout import rollout
from art_trainer.sampler import SamplingParams, sampling_logprobs
from art_trainer.starts import Start
from art_trainer.transformers_policy import BATCH_LIMITS, TransformersPolicy
from tests.art_trainer.tiny_models import EchoEnv, byte_tokenizer, tiny_model

TOKENIZER = byte_tokenizer()
TURNS, LONGEST = 3, 12
STARTS = [Start(seed, None, seed, (seed, 9)) for seed in range(6)]
STOPS = tuple(range(0, 256, 16))


def played(
    model: torch.nn.Module, starts: Sequence[Start], max_batch: int, read_tokens: int, **sampling: float
) -> list[Episode]:
    params = SamplingParams(max_new_tokens=LONGEST, stop_token_ids=STOPS, **sampling)  # type: ignore[arg-type]
    policy = TransformersPolicy(
        model, TOKENIZER, sampling=params, max_batch=max_batch, read_tokens=read_tokens
    )
    return rollout(policy, lambda: EchoEnv(TURNS), starts)


def boundary_distance(model: torch.nn.Module, episode: Episode, start: Start, place: int) -> float:
    """How far the random number of the sampled token at ``place`` lies from where another token begins."""
    (history,) = episode.histories
    uniforms, rng = [], np.random.default_rng(start.rng_seed)
    for span in history.spans:
        if span.turn is not None:
            uniforms += rng.random(LONGEST, dtype=np.float32)[: len(span.token_ids)].tolist()
    positions = [index for index, sampled in enumerate(history.action_mask) if sampled]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([history.token_ids[: positions[place]]])).logits[:, -1]
        cumulative = sampling_logprobs(logits, SamplingParams())[0].double().exp().cumsum(-1)
    return float((cumulative / cumulative[-1] - uniforms[place]).abs().min())


def first_difference(left: Episode, right: Episode) -> int | None:
    """The first sampled token in which two episodes differ, or ``None``."""
    ours, theirs = (
        [t for s in e.histories[0].spans if s.turn is not None for t in s.token_ids] for e in (left, right)
    )
    pairs = zip(ours, theirs, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), None)


CASES = [
    ("qwen3", torch.float32),
    ("deepseek-v3", torch.float32),
    ("mistral-sliding", torch.float32),
    ("qwen3", torch.bfloat16),
    ("llama", torch.bfloat16),
]
# Among some 270 tokens any number lies within the limit of bfloat16 to a border: what was measured, 7e-4, is
# held against a limit that says something.
BORDERS = {torch.float32: BATCH_LIMITS[torch.float32], torch.bfloat16: 2e-3}


@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_an_episode_alone_and_among_others_agrees_within_the_stated_limit(
    family: str, dtype: torch.dtype
) -> None:
    model = tiny_model(family, vocab_size=len(TOKENIZER)).to(dtype)
    alone = [played(model, [start], 1, 4096)[0] for start in STARTS]
    compared = 0
    for max_batch, read_tokens in [(len(STARTS), 4096), (3, 150)]:
        together = played(model, STARTS, max_batch, read_tokens)
        for start, one, other in zip(STARTS, alone, together, strict=True):
            place = first_difference(one, other)
            if place is not None:
                assert boundary_distance(model, one, start, place) < BORDERS[dtype]
            ours = np.array(one.histories[0].logprobs[:place])
            theirs = np.array(other.histories[0].logprobs[:place])
            assert np.abs(ours - theirs).max(initial=0) < BATCH_LIMITS[dtype]
            compared += len(ours)
    assert compared > 150


def test_in_float32_these_episodes_are_equal_token_by_token() -> None:
    model = tiny_model("qwen2", vocab_size=len(TOKENIZER))
    alone = [played(model, [start], 1, 4096, repetition_penalty=1.3, top_p=0.9)[0] for start in STARTS]
    together = played(model, STARTS, 6, 4096, repetition_penalty=1.3, top_p=0.9)
    assert [e.histories[0].token_ids for e in alone] == [e.histories[0].token_ids for e in together]
    assert len({e.histories[0].token_ids for e in alone}) == len(STARTS)
