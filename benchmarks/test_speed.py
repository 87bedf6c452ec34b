"""How long the small things take: parser, reset, step, search, sampling.

Run with ``pytest benchmarks --benchmark-only``. To compare commits, add ``--benchmark-autosave`` on the first
and ``--benchmark-compare`` on the second.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import art_gym
from art_gym.envs.mail.env import EmailEnv
from art_trainer.inference.sampling import SamplingParams, sample

REPLIES = {
    "bare call": 'search("falcon budget", sender="ann")',
    "hermes": '<tool_call>\n{"name": "search", "arguments": {"query": "falcon budget"}}\n</tool_call>',
    "thinking, then a call": "<think>" + "Let me see. " * 200 + '</think>\nsearch("falcon budget")',
    "prose without a call": "I would rather look at the mailbox first, if that is all right. " * 10,
}


@pytest.fixture(scope="module")
def email() -> EmailEnv:
    env = gym.make("art/Email-v0").unwrapped
    assert isinstance(env, EmailEnv)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize("name", REPLIES)
def test_parse(benchmark: Any, email: EmailEnv, name: str) -> None:
    read = benchmark(art_gym.parse, REPLIES[name], email.tools)
    assert isinstance(read, art_gym.ParseError if name == "prose without a call" else art_gym.Call)


def test_reset(benchmark: Any, email: EmailEnv) -> None:
    _, info = benchmark(email.reset, seed=1)
    assert info["turn"] == 0


def test_step_refused(benchmark: Any, email: EmailEnv) -> None:
    def step() -> Any:
        email.turn = 0
        return email.step("nonsense")

    email.reset(seed=1)
    assert "error" in benchmark(step)[4]


def test_step_search(benchmark: Any, email: EmailEnv) -> None:
    def step() -> Any:
        email.turn = 0
        return email.step('search("budget friday meeting")')

    email.reset(seed=1)
    assert "call" in benchmark(step)[4]


@pytest.mark.parametrize("words", [1, 3, 12])
def test_search(benchmark: Any, email: EmailEnv, words: int) -> None:
    query = " ".join("budget friday meeting the invoice for please falcon and we need it".split()[:words])
    assert len(benchmark(email.store.search, query)) == 5


def test_snapshot_and_restore(benchmark: Any, email: EmailEnv) -> None:
    email.reset(seed=1)
    email.step('search("budget")')
    benchmark(lambda: email.restore(email.snapshot()))
    assert email.turn == 1


@pytest.mark.parametrize("vocabulary", [4_000, 151_936])
def test_sampling(benchmark: Any, vocabulary: int) -> None:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.standard_normal((64, vocabulary), dtype=np.float32))
    uniforms = torch.from_numpy(rng.random(64, dtype=np.float32))
    tokens, _ = benchmark(sample, logits, uniforms, SamplingParams())
    assert tokens.shape == (64,)
