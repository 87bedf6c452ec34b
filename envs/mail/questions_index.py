"""Which messages hold which words, as bit sets: the exact counts that make a question hard but fair."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from art_gym.envs.mail.message import Message

_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> list[str]:
    """The lower-case words and numbers of a text, in order."""
    return _WORD.findall(text.lower())


class WordIndex:
    """The messages that hold a word in subject, people or body, as a set; bit ``i`` is message ``i``."""

    def __init__(self, messages: Sequence[Message]) -> None:
        size = len(messages) // 8 + 1
        rows: dict[str, bytearray] = {}
        for i, message in enumerate(messages):
            people = " ".join(f"{person.name} {person.email}" for person in message.people)
            for word in set(words_of(f"{message.subject}\n{people}\n{message.body}")):
                row = rows.get(word)
                if row is None:
                    row = rows[word] = bytearray(size)
                row[i >> 3] |= 1 << (i & 7)
        self._sets = {word: int.from_bytes(row, "little") for word, row in rows.items()}

    def holding(self, word: str) -> int:
        """The messages that hold the (lower-case) word."""
        return self._sets.get(word, 0)

    def holding_all(self, words: Iterable[str], visible: int) -> int:
        """The messages of ``visible`` that hold every word."""
        for word in words:
            visible &= self._sets.get(word, 0)
        return visible
