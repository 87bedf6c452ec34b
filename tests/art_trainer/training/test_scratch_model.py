from typing import Any

import pytest
import torch

from art_trainer.errors import ConfigError
from art_trainer.models.chat_template import ChatFormat
from art_trainer.training.scratch_model import ScratchSize, scratch_model, scratch_tokenizer
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


def test_what_is_copied_is_alike_with_and_without_a_blank_and_near_numbers_are_alike() -> None:
    texts = ["price of bread? 12 13 14 90 11\n", 'look("bread") 12\n', "bread 12\n", "12\n13\n14\n90\n11"] * 9
    model, tokenizer = scratch_model(texts)
    weight = model.model.embed_tokens.weight.detach()

    def alike(one: str, other: str) -> float:
        (first,), (second,) = ids(tokenizer, one), ids(tokenizer, other)
        return float(torch.cosine_similarity(weight[first], weight[second], dim=0))

    assert alike(" bread", "bread") > 0.9
    assert alike(" 12", "12") > 0.9
    assert abs(alike("bread", "price")) < 0.5
    assert alike("12", "13") > 0.3
    assert alike("12", "13") > alike("12", "90")


def test_frequent_numbers_are_one_token_and_others_are_read_digit_by_digit() -> None:
    tokenizer = scratch_tokenizer(["12 " * 9 + "1234 345\n" * 3], vocabulary_size=400)
    assert [tokenizer.decode(token) for token in ids(tokenizer, "12\n1234")] == [
        "12",
        "\n",
        "1",
        "2",
        "3",
        "4",
    ]


def test_sizes_out_of_range_are_refused() -> None:
    for size in ({"layers": 0}, {"hidden_size": 100, "heads": 8}):
        with pytest.raises(ConfigError, match=f"{next(iter(size))} is"):
            ScratchSize(**size)
    with pytest.raises(ConfigError, match="vocabulary_size is 10: set at least 260"):
        scratch_tokenizer(TEXTS, vocabulary_size=10)
