"""Text from models, environments and mail, made safe to print in a terminal."""

from __future__ import annotations

_SHOWN = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_SHOWN[0x7F] = 0x2421
_SHOWN.update(dict.fromkeys(range(0x80, 0xA0), 0xFFFD))
# Marks that turn the reading direction can make a line say something else than it holds.
_SHOWN.update(dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD))
_SHOWN.update(dict.fromkeys(range(0xD800, 0xE000), 0xFFFD))


def visible(text: str) -> str:
    """Text from a model or an environment with nothing in it that a terminal or browser would obey.

    Control characters become their pictures (␛ for escape), lone surrogates and direction marks become �.
    """
    return text.replace("\r\n", "\n").translate(_SHOWN)


def exchange(reply: str, observation: str) -> str:
    """A reply and the observation that follows it, as :func:`visible` text; the start has no reply."""
    return visible(f"> {reply}\n{observation}" if reply else observation)
