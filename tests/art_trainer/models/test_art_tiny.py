from __future__ import annotations

import functools
import json
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models import art_tiny
from art_trainer.rollout.evaluate import evaluate
from benchmarks.pretrain_art_tiny import Recipe, build_tokenizer, encode, play_demonstrations, pretrain

TEXTS = [
    'search("budget falcon") 5 mails:\n2024-03-12 | Anna Berg | Falcon budget | … | 3/3 | m1',
    "answer select",
]
SMALL = Recipe(
    world_seeds=(1001,),
    episodes=40,
    copying_steps=2,
    steps=4,
    whole_tokens=1_500,
    opening_tokens=200,
    exercises=2,
    hidden_size=32,
)


@pytest.mark.parametrize(
    "text", ['search("budget falcon", sender="anna")', 'answer("1,400.50", sources=["m1"])', "Zoé's ÉCLAIR"]
)
def test_calls_survive_the_trip_through_tokens(text: str) -> None:
    tokenizer = build_tokenizer(TEXTS, vocabulary_size=800)
    wanted = "zoe ' s eclair" if text.startswith("Zoé") else text
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == wanted


def test_words_months_and_ids_are_one_token_and_nothing_in_ascii_is_unknown() -> None:
    tokenizer = build_tokenizer(TEXTS, vocabulary_size=800)
    assert tokenizer.tokenize("Falcon 2024-03-12 m7 9210") == [
        "falcon",
        "2024-03",
        "##-12",
        "m7",
        "92",
        "##10",
    ]
    with pytest.raises(ValueError, match="vocabulary_size must be at least"):
        build_tokenizer(TEXTS, vocabulary_size=50)
    everything = "".join(map(chr, range(32, 127))) + " unheardof 98,765.4"
    assert tokenizer.unk_token not in tokenizer.tokenize(everything)


def test_only_the_agents_words_are_said() -> None:
    (transcript, *_) = play_demonstrations(SMALL)
    tokenizer = build_tokenizer([*transcript.observations, *transcript.replies], vocabulary_size=1000)
    ids, said = encode(tokenizer, transcript)
    words = tokenizer.decode([token for token, own in zip(ids, said, strict=True) if own])
    assert words.count("<|end|>") == len(transcript.replies)
    assert words.startswith("search")
    assert "mails" not in words


def test_the_script_makes_a_model_that_loads_and_the_same_one_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        pretrain(SMALL, tmp_path / name)
    one, two = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("one", "two"))
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(first, second)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert tokenizer.tokenize("Search") == ["search"]
    assert json.loads((tmp_path / "one" / "made_by.json").read_text())["recipe"]["episodes"] == 40


def test_the_committed_base_is_small_and_says_how_it_was_made() -> None:
    files = list(art_tiny.path().iterdir())
    assert sum(file.stat().st_size for file in files) <= 8_000_000
    made = json.loads((art_tiny.path() / "made_by.json").read_text())
    # Worlds that are evaluated have small seeds.
    assert min(made["recipe"]["world_seeds"]) > 1000
    assert made["cpu_minutes"] > 0


def test_the_committed_base_knows_the_tools_and_little_more() -> None:
    policy = TransformersPolicy.from_pretrained(art_tiny.NAME, sampling=SamplingParams(max_new_tokens=24))
    make = functools.partial(gym.make, "art_gym:art/Email-v0", difficulty=1)
    found = evaluate(policy, make, split="test", episodes=100, seed=0)
    assert 0.05 < found.success.value < 0.6
    assert found.invalid_rate < 0.2
