import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from art_trainer.chat import ChatFormat
from art_trainer.errors import ConfigError
from art_trainer.rollout import rollout
from art_trainer.sampler import SamplingParams
from art_trainer.scratch import ScratchSize, sample_texts, scratch_model, scratch_tokenizer
from art_trainer.starts import Start
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_trainer.guess import GuessEnv

TEXTS = ["the board\n   2    .  16\n   4    4   .", 'say move("left") or left', "left", "16 left 4 the"] * 3
SMALL = ScratchSize(layers=1, hidden_size=16, heads=2, vocabulary_size=300, max_context=64)


def test_words_of_the_texts_are_one_token_each_however_wide_the_columns() -> None:
    tokenizer = scratch_tokenizer(TEXTS, vocabulary_size=400)
    narrow, wide = (
        tokenizer.encode(text, add_special_tokens=False) for text in ("2 . 16\n4", "2    .  16\n4")
    )
    assert narrow == wide
    assert len(narrow) == 5
    assert len(tokenizer.encode("left", add_special_tokens=False)) == 1


@pytest.mark.parametrize(
    "text", ['move("left")', "naïve 日本語 \U0001f600\n\ttab", "unseen wörds_and 12345", ""]
)
def test_nothing_is_unknown_and_decoding_gives_the_text_back(text: str) -> None:
    tokenizer = scratch_tokenizer(TEXTS, vocabulary_size=300)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(token_ids, clean_up_tokenization_spaces=False) == text


def test_the_chat_format_leaves_standing_instructions_out() -> None:
    chat = ChatFormat(scratch_tokenizer(TEXTS, vocabulary_size=300))
    user = {"role": "user", "content": "left"}
    assert chat.prompt([{"role": "system", "content": "Rules."}, user]) == chat.prompt([user])


def test_the_same_seed_and_texts_give_the_same_model_and_another_seed_another() -> None:
    (one, words), (same, again), (other, _) = (scratch_model(TEXTS, size=SMALL, seed=s) for s in (1, 1, 2))
    assert words.get_vocab() == again.get_vocab()
    weights = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_it_is_an_ordinary_folder_that_remembers_its_window(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = scratch_model(TEXTS, size=SMALL)
    chat = ChatFormat(tokenizer, history_window=2)
    assert ChatFormat(tokenizer).history_window is None  # the caller's own is left as it was
    model.save_pretrained(tmp_path)
    chat.tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.encode("the board 2") == tokenizer.encode("the board 2")
    assert ChatFormat(loaded).history_window == 2
    assert AutoModelForCausalLM.from_pretrained(tmp_path).num_parameters() == model.num_parameters()


def test_sample_texts_are_all_that_was_said_by_all_players() -> None:
    texts = sample_texts(GuessEnv, ["bisect", "oracle"], split=None, seed=0, episodes=3)
    assert texts.count("GUESS") == 6
    assert "RIGHT" in texts
    assert any(text.isdecimal() for text in texts)


def test_it_plays() -> None:
    texts = sample_texts(GuessEnv, ["bisect", "random"], split=None, seed=0)
    model, tokenizer = scratch_model(texts, size=SMALL)
    policy = TransformersPolicy(model, tokenizer, sampling=SamplingParams(max_new_tokens=4))
    episodes = rollout(policy, GuessEnv, [Start(seed, rng_seed=seed) for seed in range(5)])
    assert all(episode.turns and not episode.failed for episode in episodes)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ({"layers": 0}, "layers is 0: set at least 1"),
        ({"hidden_size": 100, "heads": 8}, "hidden_size is 100: set a multiple of 16"),
    ],
)
def test_sizes_that_cannot_be_are_refused(size: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ScratchSize(**size)


def test_a_vocabulary_too_small_for_the_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="vocabulary_size is 10: set at least 260"):
        scratch_tokenizer(TEXTS, vocabulary_size=10)
