from typing import Any

import pytest
import torch

from art_trainer.errors import ConfigError
from art_trainer.models.chat_template import ChatFormat
from art_trainer.training.scratch_model import ScratchSize, sample_texts, scratch_model, scratch_tokenizer
from tests.art_trainer.guess import GuessEnv
from tests.art_trainer.updates import weights_of

TEXTS = ["the board\n   2    .  16\n   4    4   .", 'say move("left") or left', "left", "16 left 4 the"] * 3


def ids(tokenizer: Any, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return found


def test_words_of_the_texts_are_one_token_each_however_wide_the_columns() -> None:
    tokenizer = scratch_tokenizer(TEXTS, vocabulary_size=400)
    assert ids(tokenizer, "2 . 16\n4") == ids(tokenizer, "2    .  16\n4")
    assert (len(ids(tokenizer, "2 . 16\n4")), len(ids(tokenizer, "left"))) == (5, 1)


@pytest.mark.parametrize(
    "text", ['move("left")', "naïve 日本語 \U0001f600\n\ttab", "unseen wörds_and 12345", ""]
)
def test_nothing_is_unknown_and_decoding_gives_the_text_back(text: str) -> None:
    tokenizer = scratch_tokenizer(TEXTS, vocabulary_size=300)
    assert tokenizer.decode(ids(tokenizer, text), clean_up_tokenization_spaces=False) == text


def test_the_chat_format_leaves_standing_instructions_out() -> None:
    chat = ChatFormat(scratch_tokenizer(TEXTS, vocabulary_size=300))
    user = {"role": "user", "content": "left"}
    assert chat.prompt([{"role": "system", "content": "Rules."}, user]) == chat.prompt([user])


def test_the_same_seed_and_texts_give_the_same_model_and_another_seed_another() -> None:
    size = ScratchSize(layers=1, hidden_size=16, heads=2, vocabulary_size=300, max_context=64)
    (one, words), (same, again), (other, _) = (scratch_model(TEXTS, size=size, seed=s) for s in (1, 1, 2))
    assert words.get_vocab() == again.get_vocab()
    assert torch.equal(weights_of(one), weights_of(same))
    assert not torch.equal(weights_of(one), weights_of(other))


def test_sample_texts_are_what_all_players_saw_and_said() -> None:
    texts = sample_texts(GuessEnv, ["bisect", "oracle"], split=None, seed=0, episodes=3)
    assert texts.count("GUESS") == 6
    assert "RIGHT" in texts
    assert any(text.isdecimal() for text in texts)


def test_sizes_out_of_range_are_refused() -> None:
    for size in ({"layers": 0}, {"hidden_size": 100, "heads": 8}):
        with pytest.raises(ConfigError, match=f"{next(iter(size))} is"):
            ScratchSize(**size)
    with pytest.raises(ConfigError, match="vocabulary_size is 10: set at least 260"):
        scratch_tokenizer(TEXTS, vocabulary_size=10)
