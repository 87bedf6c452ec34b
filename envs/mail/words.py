"""Tokenize text as the full-text index does, and make snippets of search results.

The index is SQLite's FTS5 with ``unicode61 remove_diacritics 2``: a word is a run of letters and digits of
any script, without regard to case and accents. See https://www.sqlite.org/fts5.html, section 4.3.1.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_SNIPPET_SCAN = 200_000  # characters of a body looked at for a snippet
_SNIPPET_SPOTS = 2_000  # matches weighed for a snippet


class _Fold(dict[int, str | None]):
    """A table for ``str.translate`` that fills itself: letter → base letter, the rest → space.

    ``keep_length`` replaces combining accents by a space instead of dropping them, so that positions in the
    folded text are positions in the text.
    """

    def __init__(self, keep_length: bool) -> None:
        super().__init__()
        self._keep_length = keep_length

    def __missing__(self, code: int) -> str | None:
        value = self._fold(code)
        self[code] = value
        return value

    def _fold(self, code: int) -> str | None:
        if 0x300 <= code <= 0x331:  # the combining accents that unicode61 takes as part of a word
            return " " if self._keep_length else None
        char = chr(code)
        category = unicodedata.category(char)
        if category[0] not in "LN" and category != "Co":
            return " "
        decomposed = unicodedata.normalize("NFD", char)
        if decomposed[0].isascii():  # FTS5 takes the accents off Latin letters only
            char = decomposed[0]
        folded = char.casefold()
        return folded if len(folded) == 1 else char.lower()[:1]


_FOLD = _Fold(keep_length=False)
_FOLD_IN_PLACE = _Fold(keep_length=True)


def split_words(text: str) -> list[str]:
    """Every word of a text in order, in lower case and without accents, repeats included."""
    return text.translate(_FOLD).split()


def query_words(text: str) -> list[str]:
    """The distinct words of a query, in the order of first appearance, as the index knows them."""
    return list(dict.fromkeys(split_words(text)))


def snippet(text: str, words: Iterable[str], width: int = 60) -> str:
    """One line of about ``width`` characters around the best cluster of ``words`` in a text.

    The best window holds the most distinct words; the earliest of equals wins. Without any match it is the
    beginning of the text. Cut ends are marked by an ellipsis.

    Args:
        text: The text; only its first 200,000 characters are looked at.
        words: Words as :func:`query_words` gives them.
        width: The length wanted, in characters, ellipses not counted.
    """
    text = text[:_SNIPPET_SCAN]
    start, end = _best_window(text, words, width)
    while start > 0 and not text[start - 1].isspace() and end - start < width + 12:
        start -= 1
    cut = text.find(" ", end)
    end = cut if 0 <= cut < end + 12 else end
    line = " ".join(text[start:end].split())
    before = "…" if text[:start].strip() else ""
    after = "…" if text[end:].strip() else ""
    return f"{before}{line}{after}"


def _best_window(text: str, words: Iterable[str], width: int) -> tuple[int, int]:
    """Start and end of the window of ``width`` characters that holds the most distinct words."""
    wanted = "|".join(re.escape(word) for word in dict.fromkeys(words))
    spots: list[tuple[int, int, str]] = []
    if wanted:
        for match in re.finditer(rf"(?<!\S)(?:{wanted})(?!\S)", text.translate(_FOLD_IN_PLACE)):
            spots.append((match.start(), match.end(), match.group()))
            if len(spots) == _SNIPPET_SPOTS:
                break
    if not spots:
        begin = len(text) - len(text.lstrip())
        return begin, begin + width
    best, best_count, first = (0, 0), 0, 0
    inside: dict[str, int] = {}
    for last, (_, end, word) in enumerate(spots):
        inside[word] = inside.get(word, 0) + 1
        while first < last and end - spots[first][0] > width:
            gone = spots[first][2]
            inside[gone] -= 1
            if not inside[gone]:
                del inside[gone]
            first += 1
        if len(inside) > best_count:
            best, best_count = (first, last), len(inside)
    begin, end = spots[best[0]][0], spots[best[1]][1]
    lead = min(begin, max(0, width - (end - begin)) // 3)
    return begin - lead, max(end, begin - lead + width)
