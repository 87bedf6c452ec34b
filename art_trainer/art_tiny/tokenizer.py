"""The tokenizer of ``art-tiny``: one token a word, so that copying a word is copying one token.

A two-layer model copies tokens long before it spells. So every word of the training text is a token, a date
is a token, and so are an id such as ``m3`` and a count such as ``2/3``: what belongs together must lie within
reach of a head that looks back a token or two. Only words outside the vocabulary are spelt, with WordPiece's
``##`` continuation, and nothing in lower-case ASCII is ever unknown. Spaces are not tokens: decoding puts
them back, in the one way that reads well.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from art_trainer.small_chat import ASSISTANT, END, PAD, TEMPLATE, USER

UNKNOWN = "<|unknown|>"
_SPECIAL = (PAD, UNKNOWN, USER, ASSISTANT, END)
_MOST_LISTED = 60  # ids m1 … m60 are one token each
_PIECES = r"\d{4}-\d{2}-\d{2}|\b\d/\d\b|\bm\d{1,2}\b|[a-z]+|\d+(?:[.,:]\d+)*|\n|[^\s\w]|\w"
# What may be a token as it is: words, dates, counts of matched words ("2/3"), marks.
_WHOLE = re.compile(r"[a-z]+|\d{4}-\d{2}-\d{2}|\d/\d|[^\w\s]")
# How decoded text is closed up: (spaced as the decoder leaves it, as people write it).
_CLOSE_UP = (
    (r' ?\( " ?', '("'),
    (r' ?" \)', '")'),
    (r' ?" , ', '", '),
    (r' = " ?', '="'),
    (r" = ", "="),
    (r" ?\( ?", "("),
    (r" \)", ")"),
    (r' ?\[ " ?', '["'),
    (r' ?" \]', '"]'),
)


def build_tokenizer(texts: Iterable[str], *, vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Make the tokenizer from sample texts.

    Args:
        texts: What the model will read and write.
        vocabulary_size: The most tokens; rarer words are spelt.

    Raises:
        ValueError: Where ``vocabulary_size`` does not even hold the letters.
    """
    counts: Counter[str] = Counter()
    splitter, normalizer = _splitter(), _normalizer()
    for text in texts:
        counts.update(piece for piece, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    symbols = list(string.ascii_lowercase + string.digits + string.punctuation + "\n")
    fixed = [
        *_SPECIAL,
        *symbols,
        *(f"##{symbol}" for symbol in string.ascii_lowercase + string.digits + "-.,:"),
    ]
    fixed += [f"m{number}" for number in range(1, _MOST_LISTED + 1)]
    fixed += [f"{matched}/{words}" for words in range(1, 10) for matched in range(words + 1)]
    if vocabulary_size < len(fixed):
        raise ValueError(f"vocabulary_size must be at least {len(fixed)}, not {vocabulary_size}")
    # Other numbers are spelt: each would be a token of its own, and there is no end of them.
    words = {word for word in counts if _WHOLE.fullmatch(word)}.difference(fixed)
    words_by_count = sorted(words, key=lambda word: (-counts[word], word))
    vocabulary = {token: index for index, token in enumerate([*fixed, *words_by_count][:vocabulary_size])}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=64))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    close_up = [decoders.Replace(Regex(spaced), written) for spaced, written in _CLOSE_UP]
    tokenizer.decoder = decoders.Sequence([decoders.WordPiece(cleanup=False), decoders.Fuse(), *close_up])
    tokenizer.add_special_tokens(list(_SPECIAL))
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        omit_system=True,  # instructions are beyond a model of this size; it knows the tools by heart
    )


def _normalizer() -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(_PIECES), behavior="removed", invert=True)
