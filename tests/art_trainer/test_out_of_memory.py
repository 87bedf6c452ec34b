"""Memory that runs out: batches are halved and the work goes on; tables are freed after a rollout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from art_trainer.config import GRPOConfig
from art_trainer.errors import DeviceMemoryError
from art_trainer.inference.generation import SamplingModel
from art_trainer.models import memory
from art_trainer.models.logprobs import Scorer
from art_trainer.models.memory import free_memory
from art_trainer.models.packing import Batch
from art_trainer.training.learner import Learner
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer.guess import SETTINGS, GuessEnv, guess_policy
from tests.art_trainer.inference.test_transformers_policy import make_policy, played
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.tiny_models import tiny_model
from tests.art_trainer.updates import config, gradients_of

CPU = torch.device("cpu")


def full_beyond(rows: int, monkeypatch: pytest.MonkeyPatch, *, after: int = 0) -> None:
    """From a number of forward passes on, let memory run out where more rows than these are sampled for."""
    call, calls = SamplingModel.__call__, []

    def limited(self: SamplingModel, **inputs: Any) -> Any:
        calls.append(inputs)
        result = call(self, **inputs)  # keys and values are written before it fails
        if len(calls) > after and inputs["input_ids"].shape[0] > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return result

    monkeypatch.setattr(SamplingModel, "__call__", limited)


def said(policy: Any) -> list[tuple[int, ...]]:
    return [tuple(h.token_ids) for e in played(policy, turns=3) for h in e.histories]


@pytest.mark.parametrize("after", [0, 2, 9, 12])
def test_a_rollout_goes_on_with_half_of_the_conversations(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = said(make_policy(max_batch=20))
    full_beyond(6, monkeypatch, after=after)
    policy = make_policy(max_batch=20)
    assert said(policy) == wanted
    assert policy.max_batch <= 10
    assert policy.halved
    assert "20 conversations under way: max_batch is 10 from now on" in policy.halved[0]


def test_without_room_for_one_conversation_the_error_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full_beyond(0, monkeypatch)
    with pytest.raises(DeviceMemoryError, match="one conversation: set a smaller max_completion_length"):
        played(make_policy(), seeds=2)


def test_tables_that_are_not_small_are_freed_with_the_last_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = make_policy()
    cache = policy._decoder._cache
    assert played(policy, seeds=2)
    assert cache.capacity.rows > 0
    monkeypatch.setattr(cache, "_small", 0)
    for _ in range(2):
        assert played(policy, seeds=2)
        assert cache.capacity.rows == cache.shared_capacity.positions == 0
        assert all(table.states == () for layer in cache.slots for table in (layer.own, layer.shared))


def full_beyond_tokens(tokens: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let memory run out in the backward pass of micro-batches of more tokens; return their sizes."""
    score, sizes = Scorer.score, []

    def limited(self: Scorer, batch: Batch, **options: Any) -> Any:
        logprobs, entropies = score(self, batch, **options)
        sizes.append(batch.ids_BQ.numel())
        if sizes[-1] > tokens and logprobs.requires_grad:
            logprobs.register_hook(refuse)
        return logprobs, entropies

    def refuse(gradient: torch.Tensor) -> None:
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes"
        )

    monkeypatch.setattr(Scorer, "score", limited)
    return sizes


def test_an_update_goes_on_with_half_of_a_micro_batch_to_the_same_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model()
    groups = made_groups(model, groups=4)
    settings = config(learning_rate=0.0, tokens_per_microbatch=400, drop_zero_variance_groups=False)
    (wanted,), _ = gradients_of(Learner(tiny_model(), settings), groups)
    sizes = full_beyond_tokens(150, monkeypatch)
    learner = Learner(model, settings)
    (found,), metrics = gradients_of(learner, groups)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)
    assert learner.microbatches.tokens == 100
    assert ["tokens_per_microbatch is 200" in x for x in learner.microbatches.halved] == [True, False]
    assert metrics["num_tokens"] > 0
    assert max(sizes) > 150 >= sizes[-1]


@pytest.mark.e2e
def test_one_context_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    full_beyond_tokens(0, monkeypatch)
    learner = Learner(tiny_model(), config())
    with pytest.raises(
        DeviceMemoryError, match=r"one context of \d+ tokens in an update: set gradient_check"
    ):
        learner.update(made_groups(learner.model))


def test_the_runs_events_say_that_memory_ran_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = GRPOConfig(**{**SETTINGS, "groups_per_step": 2, "max_steps": 2, "output_dir": str(tmp_path)})
    trainer = GRPOTrainer(guess_policy(hidden=16), GuessEnv, settings)
    full_beyond(4, monkeypatch)
    trainer.train()
    trainer.close()
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    found = [event for event in events if event["name"] == "out_of_memory"]
    assert {event["step"] for event in found} == {1}
    assert "max_batch is" in found[0]["message"]


def test_the_limit_of_a_container_bounds_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert free_memory(CPU) > 2**26
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\ninactive_file 150000\n")
    assert free_memory(CPU) == 450_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(CPU) > 2**26
