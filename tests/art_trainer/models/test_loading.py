"""Loading tokenizers as they were saved, and the number of CPU threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

from art_trainer.models import art_tiny, cpu, loading
from art_trainer.models.loading import ModelOptions, default_threads, load_model, load_tokenizer
from art_trainer.training.memory_plan import empty_model

TEXT = "Guess 3  LOW\n\n12 higher?"


@pytest.mark.parametrize("config", [Qwen2Config, Qwen3Config, LlamaConfig])
def test_a_saved_tokenizer_makes_the_same_tokens(tmp_path: Path, config: type) -> None:
    saved = AutoTokenizer.from_pretrained(art_tiny.path())
    saved.save_pretrained(tmp_path)
    config().save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path)(TEXT)["input_ids"] == saved(TEXT)["input_ids"]


def test_what_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((OSError, ValueError)):
        load_tokenizer(tmp_path / "nothing")
    monkeypatch.setattr(loading, "is_offline_mode", lambda: False)
    monkeypatch.setattr(loading, "ENDPOINT", "http://127.0.0.1:1")  # where nobody listens
    for load in (load_tokenizer, lambda name: load_model(name, ModelOptions(device="cpu"))):
        with pytest.raises(OSError, match=r"no connection to http://127\.0\.0\.1:1"):
            load("no-one/no-model")


@pytest.mark.parametrize("native", [True, False])
def test_a_cpu_computes_in_bfloat16_if_it_has_the_instructions(
    tmp_path: Path, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=32, num_hidden_layers=1, dtype="bfloat16", **sizes)
    saved = AutoModelForCausalLM.from_config(config)
    saved.save_pretrained(tmp_path)
    monkeypatch.setattr(loading, "multiplies_bfloat16", lambda: native)
    made = load_model(str(tmp_path), ModelOptions(device="cpu"))
    assert made.dtype == (torch.bfloat16 if native else torch.float32)
    assert torch.equal(made.lm_head.weight.bfloat16(), saved.lm_head.weight)
    planned = empty_model(AutoConfig.from_pretrained(tmp_path), ModelOptions(device="cpu"))
    assert planned.dtype == made.dtype
    assert load_model(str(tmp_path), ModelOptions(dtype="bfloat16", device="cpu")).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("weights", "cores", "environment", "threads"),
    [
        (1_000_000, 8, {}, 2),
        (1_000_000, 1, {}, 1),
        (500_000_000, 8, {}, 8),
        (500_000_000, 8, {"OMP_NUM_THREADS": "3"}, 3),
        (500_000_000, 8, {"OMP_NUM_THREADS": "many"}, 8),
        # What torchrun sets.
        (500_000_000, 8, {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}, 4),
        (1_000_000, 2, {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "4"}, 1),
    ],
)
def test_the_number_follows_from_size_cores_and_what_was_said(
    monkeypatch: pytest.MonkeyPatch, weights: int, cores: int, environment: dict[str, str], threads: int
) -> None:
    for name in ("OMP_NUM_THREADS", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    monkeypatch.setattr(cpu, "_QUOTA", Path("no such file"))  # whatever container the tests run in
    assert default_threads(weights) == threads


@pytest.mark.parametrize(("quota", "cores"), [("max", 8), ("250000", 2), ("50000", 1), ("1600000", 8)])
def test_a_container_may_have_fewer_cores_than_its_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
    monkeypatch.setattr(cpu, "_QUOTA", tmp_path / "cpu.max")
    assert cpu.usable_cores() == cores
