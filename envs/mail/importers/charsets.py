"""Decode bytes in a declared charset, or in the one they look like when none is declared or it is wrong."""

from __future__ import annotations

import codecs
import re
from functools import lru_cache

_NOT_CHARSETS = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem"}
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
# Of each guessed East Asian charset: the standard and the lead bytes in which its common characters stand.
_KANA_KANJI = ("euc_jp", (0xA4, 0xA5, *range(0xB0, 0xD0)))
_COMMON_ROWS: dict[str, tuple[str, tuple[int, ...]]] = {
    "cp949": ("euc_kr", tuple(range(0xB0, 0xC9))),
    "gb18030": ("gb2312", tuple(range(0xB0, 0xD8))),
    "cp932": _KANA_KANJI,
    "euc_jp": _KANA_KANJI,
    "big5hkscs": ("big5", tuple(range(0xA4, 0xC7))),
}
_CYRILLIC = "оеаинтсрвлкмдпуяызьбчй"
_COMMON_LETTERS = {"cp1251": _CYRILLIC, "koi8_u": _CYRILLIC, "cp1253": "αοιετσνηυρκπμλςάόέίήύώ"}
_GENERAL = (None, "ascii", "utf-8")  # what unlabelled text is labelled with
_SAMPLE = 10_000  # bytes that a guess looks at
_PAIRS = re.compile(r"[^\x00-\x7f]{2,}")
_WORDS = re.compile(r"[^\W\da-zA-Z_]{4,}")
_MARKS = re.compile("[\u2010-\u203f\u3000-\u301f\u30fc\uff01-\uff20]+")


def decode(data: bytes, charset: str | None, fallback: str | None = None) -> str:
    """Text of bytes in a declared charset; if it is unknown or wrong, UTF-8, else the likeliest other one.

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
    return data.decode(guessed_charset(data), "replace")


def guessed_charset(data: bytes) -> str:
    """The codec that text in no declared charset, and not in UTF-8, is likeliest in; else ``cp1252``.

    A charset is likely when most of what is not ASCII becomes common characters of its language, several in
    a row: accented letters of Latin scripts stand between ASCII ones.
    """
    start = re.search(rb"[\x80-\xff]", data)
    sample = data[start.start() :][:_SAMPLE] if start else b""
    shares = {codec: _share_of_common(sample, codec) for codec in (*_COMMON_ROWS, *_COMMON_LETTERS)}
    best = max(shares, key=shares.__getitem__)
    return best if shares[best] > (0.5 if best in _COMMON_LETTERS else 0.66) else "cp1252"


def _share_of_common(data: bytes, codec: str) -> float:
    """The share of the characters beyond ASCII, punctuation apart, that are common and in a row of such."""
    text = _MARKS.sub("", data.decode(codec, "replace"))
    rows = _WORDS if codec in _COMMON_LETTERS else _PAIRS
    common = _common_characters(codec)
    found = sum(character in common for row in rows.findall(text) for character in row)
    return found / max(1, sum(character > "\x7f" for character in text))


@lru_cache
def _common_characters(codec: str) -> frozenset[str]:
    if codec in _COMMON_LETTERS:
        return frozenset(_COMMON_LETTERS[codec])
    standard, rows = _COMMON_ROWS[codec]
    trails = range(0x40 if standard == "big5" else 0xA1, 0xFF)
    pairs = b"".join(bytes((row, trail)) for row in rows for trail in trails)
    return frozenset(character for character in pairs.decode(standard, "ignore") if character > "\x7f")


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
        info = codecs.lookup(charset.strip("\"' \t").lower().removeprefix("x-"))
    except (LookupError, ValueError):
        return None
    is_text = getattr(info, "_is_text_encoding", True)
    return info.name if is_text and info.name.replace("-", "_") not in _NOT_CHARSETS else None
