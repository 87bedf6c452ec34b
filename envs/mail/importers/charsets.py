"""Decode bytes in a declared charset; in UTF-8 or Windows-1252 when none is declared or it is wrong."""

from __future__ import annotations

import codecs
from functools import lru_cache

_NOT_CHARSETS = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem"}
_OTHER_NAMES = {  # that mail uses and Python does not know
    "iso-8859-8-i": "iso-8859-8",
    "windows-31j": "cp932",
    "windows-874": "cp874",
    "windows-949": "cp949",
}
# What mail means by a name is often the vendor's larger charset (https://encoding.spec.whatwg.org, 4.2).
_LARGER = {
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "shift_jis": "cp932",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "euc_kr": "cp949",
}
_GENERAL = (None, "ascii", "utf-8")  # what unlabelled text is labelled with
_WESTERN = "cp1252"


def decode(data: bytes, charset: str | None, fallback: str | None = None) -> str:
    """Text of bytes in a declared charset; if it is unknown or wrong, UTF-8, else Windows-1252.

    What holds at least as many letters in UTF-8 as bytes that break it is UTF-8, damaged or cut.

    Args:
        data: Any bytes.
        charset: The declared charset, if there is one.
        fallback: The charset of the text around, for bytes that are neither in ``charset`` nor in UTF-8.
    """
    declared = _codec(charset or "")
    if declared in _GENERAL and b"\x1b$" in data:
        declared = "iso2022_jp_2"  # a charset of seven bits
    for codec in (declared, "utf-8"):
        text = None if codec is None else _decoded(data, codec, "strict")
        if text is not None:
            return text
    text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    if sum(character > "\x7f" for character in text) >= 2 * broken:
        return text
    for codec in (declared, _codec(fallback or "")):
        if codec not in _GENERAL and (text := _decoded(data, str(codec), "replace")) is not None:
            return text
    return data.decode(_WESTERN, "replace")


def _decoded(data: bytes, codec: str, errors: str) -> str | None:
    """The text, or None for bytes that are not in the codec, or a codec without this kind of error."""
    try:
        return data.decode(_LARGER.get(codec, codec), errors)
    except UnicodeError:
        return None


@lru_cache(maxsize=512)
def _codec(charset: str) -> str | None:
    """Python's name of a text charset, or None."""
    try:
        name = charset.strip("\"' \t").lower().removeprefix("x-")
        info = codecs.lookup(_OTHER_NAMES.get(name, name))
    except (LookupError, ValueError):
        return None
    is_text = getattr(info, "_is_text_encoding", True)
    return info.name if is_text and info.name.replace("-", "_") not in _NOT_CHARSETS else None
