"""Where a reply ends because of what it says, and not because of a token.

A stop string may end inside a token and span many. The reply keeps the tokens as they were sampled, the last
one being that which completes the string; its text is cut behind the string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_UNFINISHED = "\ufffd"
"""What a tokenizer decodes bytes to that are no whole character yet."""
_CONTEXT = 4
"""Tokens decoded before those that a stop string can span: a character may begin there, or a space that a
tokenizer drops at the start of a text."""


class StopStrings:
    """Finds the first of some strings in text that grows token by token.

    A token that cannot complete any string costs one look into a dict. Others cost the decoding of the last
    tokens, as many as the longest string has bytes and a few more; the whole reply is decoded only where a
    string is found in those.

    Args:
        strings: The stop strings, at least one, none empty.
        decode: Tokens to text.
    """

    def __init__(self, strings: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        self._strings = tuple(strings)
        self._decode = decode
        # Every token says at least one byte, so no string spans more tokens than it has bytes.
        self._window = max(len(string.encode()) for string in strings) + _CONTEXT
        self._last_characters = {string[-1] for string in strings}
        self._may_complete: dict[int, bool] = {}

    def ends(self, sampled: Sequence[int], count: int) -> bool:
        """Whether the newest token completes a stop string.

        Args:
            sampled: Tokens that end with the reply so far.
            count: How many of them are the reply's.
        """
        newest = sampled[-1]
        possible = self._may_complete.get(newest)
        if possible is None:
            possible = self._may_complete[newest] = self._can_complete(newest)
        if not possible or self._found(sampled[-min(count, self._window) :]) is None:
            return False
        return self._found(sampled[-count:]) is not None

    def cut(self, text: str) -> str:
        """The text up to and including the stop string that is complete first, or all of it."""
        end = self._end(text)
        return text if end is None else text[:end]

    def _found(self, tokens: Sequence[int]) -> int | None:
        return self._end(self._decode(tokens))

    def _end(self, text: str) -> int | None:
        places = [(text.find(string), len(string)) for string in self._strings]
        return min((place + length for place, length in places if place >= 0), default=None)

    def _can_complete(self, token: int) -> bool:
        # Twice, since a tokenizer may drop a space at the start of a text.
        text = self._decode([token, token])
        return _UNFINISHED in text or not self._last_characters.isdisjoint(text)
