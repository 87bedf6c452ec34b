"""A tokenizer comes back as it was saved, whatever model it lies beside."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer, LlamaConfig, Qwen2Config, Qwen3Config

from art_trainer import art_tiny
from art_trainer.tokenizer_loading import load_tokenizer
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_trainer.guess import guess_policy

TEXT = "Guess 3  LOW\n\n12 higher?"


@pytest.mark.parametrize("config", [Qwen2Config, Qwen3Config, LlamaConfig])
def test_a_saved_tokenizer_makes_the_same_tokens(tmp_path: Path, config: type) -> None:
    saved = AutoTokenizer.from_pretrained(art_tiny.path())
    saved.save_pretrained(tmp_path)
    config().save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path)(TEXT)["input_ids"] == saved(TEXT)["input_ids"]


def test_a_saved_policy_reads_as_it_did(tmp_path: Path) -> None:
    policy = guess_policy(0)
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    loaded = TransformersPolicy.from_pretrained(str(tmp_path))
    assert loaded.tokenizer(TEXT)["input_ids"] == policy.tokenizer(TEXT)["input_ids"]


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError)):
        load_tokenizer(tmp_path / "nothing")
