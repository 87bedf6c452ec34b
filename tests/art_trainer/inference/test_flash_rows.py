"""Decoding as a GPU does it, the kernels replaced by what they compute."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from art_trainer.inference import slot_decoder
from art_trainer.inference.cache_attention import FlashRows, prompt_runs
from art_trainer.inference.cuda_graphs import StepGraphs, padded_height
from tests.art_trainer.flash_kernels import stand_in
from tests.art_trainer.inference.test_transformers_policy import VOCABULARY, make_policy, played
from tests.art_trainer.tiny_models import largest_error, lora_model, tiny_model


class Replayed:
    """Checks that a step depends on nothing but its numbers: it is computed from a copy, and twice."""

    def __init__(self) -> None:
        self.rows: set[int] = set()

    def run(self, version: int, given: torch.Tensor, compute: Any) -> torch.Tensor:
        self.rows.add(given.shape[1] - 1)
        first = compute(given)
        second = compute(given.clone())
        assert torch.equal(first, second)
        return second


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "lora"])
@pytest.mark.parametrize("share_from", [1, 10**9])
@pytest.mark.parametrize("max_batch", [5, 64])
def test_logprobs_are_those_of_a_plain_forward_pass(family, share_from, max_batch, monkeypatch):
    stand_in(monkeypatch)
    monkeypatch.setattr(slot_decoder, "_SHARE_FROM", share_from)
    sizes = {"vocab_size": VOCABULARY}
    model = lora_model(scale=0.1, **sizes) if family == "lora" else tiny_model(family, **sizes)
    policy = make_policy(model=model, max_batch=max_batch)
    assert policy._decoder._attention is FlashRows
    policy._decoder._graphs = replayed = Replayed()
    assert largest_error(model, played(policy), 1.0) < 1e-5
    assert replayed.rows <= {8, 12, 16, 24}


def test_runs_are_the_rows_that_see_the_same_part_of_a_prompt():
    order, places, shares, starts, prompts, lengths = prompt_runs([(2, 7), None, (0, 9), (2, 4), (2, 7)])
    assert order[:5].tolist() == [0, 4, 2, 3, 1]
    assert order[places[:5]].tolist() == [0, 1, 2, 3, 4]
    assert shares[:5].tolist() == [1, 0, 1, 1, 1]
    assert starts.tolist() == [0, 2, 3, 4, 4, 4]
    assert prompts[:3].tolist() == [2, 0, 2]
    assert lengths.tolist() == [7, 9, 4, 0, 0, 0]


def test_steps_have_few_heights():
    assert [padded_height(rows) for rows in (1, 8, 9, 13, 17, 25, 200)] == [8, 8, 12, 16, 24, 32, 256]
    assert all(rows <= padded_height(rows) <= 1.5 * rows for rows in range(8, 300))


def test_a_step_is_recorded_once_for_its_shape_weights_and_tables(monkeypatch):
    model, recorded = torch.nn.Linear(2, 2), []
    graphs = StepGraphs(model)
    monkeypatch.setattr(graphs, "_record", lambda given, compute: recorded.append(given.shape) or Mock())
    for version, rows in [(1, 2), (1, 2), (1, 3), (2, 2)]:
        graphs.run(version, torch.zeros(rows), torch.exp)
    model.weight.data = model.weight.data.clone()
    graphs.run(2, torch.zeros(2), torch.exp)
    assert recorded == [(2,), (3,), (2,), (2,)]
    monkeypatch.setattr(graphs, "_record", Mock(side_effect=RuntimeError("not while capturing")))
    assert [float(graphs.run(3, torch.zeros(1), torch.exp)) for _ in range(2)] == [1, 1]
    assert graphs._record.call_count == 1
    graphs = StepGraphs(model)
    monkeypatch.setattr(graphs, "_record", Mock(side_effect=torch.OutOfMemoryError()))
    with pytest.raises(torch.OutOfMemoryError):
        graphs.run(1, torch.zeros(1), torch.exp)
