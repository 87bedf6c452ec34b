"""The texts of sampled tokens, by the tokenizer that a run left in its newest checkpoint.

Records hold tokens as numbers. A checkpoint's ``tokenizer.json`` is a file of data; reading it runs no code
of the model's author. Where a run has no checkpoint, tokens have no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_LARGEST = 64 << 20
"""Bytes of a tokenizer that is read."""
MAX_TOKENS = 20_000
"""Tokens of a reply that are given texts."""


def find_tokenizer(run: Path) -> Path | None:
    """The newest tokenizer among a run's checkpoints; ``None`` where there is none."""
    found = sorted((run / "checkpoints").glob("*/model/tokenizer.json"))
    return found[-1] if found and found[-1].stat().st_size <= _LARGEST else None


def token_texts(run: Path, replies: Sequence[tuple[Sequence[int], str]]) -> list[list[str] | None]:
    """Return for each reply the texts of its tokens, which put together are the reply, or what it was cut to.

    Args:
        run: The run's folder.
        replies: Tokens and text of each.

    Returns:
        ``None`` for a reply whose tokens have no text. A token whose characters end in the next one has an
        empty text.
    """
    file = find_tokenizer(run)
    tokenizer = None if file is None else _load(str(file), file.stat().st_mtime_ns)
    if tokenizer is None:
        return [None] * len(replies)
    return [_texts(tokenizer, tokens, text) for tokens, text in replies]


@lru_cache(maxsize=2)
def _load(file: str, changed: int) -> Tokenizer | None:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(file)
    except Exception:  # what the library raises for a file it does not understand is nothing finer
        return None


def _texts(tokenizer: Tokenizer, tokens: Sequence[int], text: str) -> list[str] | None:
    from tokenizers.decoders import DecodeStream

    if not tokens or len(tokens) > MAX_TOKENS or max(tokens) >= tokenizer.get_vocab_size():
        return None
    stream = DecodeStream(skip_special_tokens=False)
    pieces = [stream.step(tokenizer, token) or "" for token in tokens]
    return fitted(pieces, text)


def fitted(pieces: Sequence[str], text: str) -> list[str]:
    """Cut a text where the tokens' pieces meet, whatever spaces a decoder adds or takes away between them.

    Pieces behind the end of the text, such as the token that ends a reply, stay what they are. Where the
    pieces are not the text, all do.
    """
    cuts, place = [], 0
    for number, piece in enumerate(pieces):
        core = piece.strip()
        if not core and not piece:
            cuts.append("")
            continue
        start = place
        while start < len(text) and text[start].isspace() and not text.startswith(piece, start):
            start += 1
        word = piece if text.startswith(piece, start) else core
        if not text.startswith(word, start) or start == len(text):
            ended = not text[place:].strip()
            return [*cuts, *pieces[number:]] if ended else list(pieces)
        end = start + len(word)
        cuts.append(text[place:end])
        place = end
    return cuts
