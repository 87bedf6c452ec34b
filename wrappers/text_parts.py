"""Where the words are: texts as spaces, and inside the dictionaries of others' environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import Space, spaces

_USUAL = ("text", "observation", "action", "message", "messages")
"""Names of the part that holds the words, where a dictionary has several texts."""


def is_text(space: object) -> bool:
    """Whether a space's members are ``str``: Gymnasium's ``Text``, ours, and other libraries' own."""
    dtype = space.dtype if isinstance(space, Space) else None
    return dtype is not None and dtype.kind == "U"


def text_key(space: Space[Any]) -> str | None:
    """The part of a dictionary that holds the words; ``None`` where that is none or not clear."""
    if not isinstance(space, spaces.Dict):
        return None
    texts = [name for name, part in space.spaces.items() if is_text(part)]
    if len(texts) > 1:
        texts = [name for name in _USUAL if name in texts][:1]
    return texts[0] if texts else None


def reader_of(space: Space[Any]) -> Callable[[Any], str] | None:
    """What finds the words in an observation of this space, ``None`` where it has none."""
    if is_text(space):
        return _itself
    key = text_key(space)
    return None if key is None else _Part(key)


def writer_of(space: Space[Any]) -> Callable[[str], Any] | None:
    """What makes an action of this space from words, ``None`` where it takes more or other than words."""
    if is_text(space):
        return _itself
    key = text_key(space)
    if key is None or not isinstance(space, spaces.Dict) or len(space.spaces) > 1:
        return None
    return _Whole(key)


def _itself(text: str) -> str:
    return text


class _Part:
    """Takes the words out of a dictionary. A class, not a closure, so that it pickles."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, observation: Mapping[str, Any]) -> str:
        text: str = observation[self.key]
        return text


class _Whole:
    """Puts words into a dictionary."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, text: str) -> dict[str, str]:
        return {self.key: text}
