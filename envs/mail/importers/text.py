"""Decode mail to text: transfer encodings, encoded headers, HTML. Nothing here raises.

Written for mail as it is found: base64 cut short, markup that never ends. Every function takes time linear in
its input.
"""

from __future__ import annotations

import binascii
import html
import re

from art_gym.envs.mail.importers.charsets import decode

_ENCODED_WORD = re.compile(r"=\?([^?\s]{1,60})\?([bBqQ])\?([^?]*)\?=")
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NOT_BASE64 = bytes(set(range(256)) - set(_BASE64))
_TAG_NAME = re.compile(r"/?[a-zA-Z][a-zA-Z0-9]*")
_LINE_TAGS = {"br", "div", "tr", "table", "ul", "ol", "hr", "dt", "dd", "form", "section", "article", "pre"}
_BLOCK_TAGS = {"p", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "title"}
_HIDDEN_TAGS = {
    "script": re.compile("</script", re.IGNORECASE),
    "style": re.compile("</style", re.IGNORECASE),
    "head": re.compile("</head|<body", re.IGNORECASE),
}


def transfer_decode(data: bytes, encoding: str) -> bytes:
    """Undo a Content-Transfer-Encoding; one that is unknown is taken to be none."""
    encoding = encoding.strip().lower()
    if encoding == "base64":
        return unbase64(data)
    if encoding == "quoted-printable":
        return binascii.a2b_qp(data)
    return data


def unbase64(data: bytes) -> bytes:
    """Decode base64 whatever its padding; what does not belong is dropped, and so is a tail too short."""
    data = data.translate(None, _NOT_BASE64)
    if len(data) % 4 == 1:
        data = data[:-1]
    return binascii.a2b_base64(data + b"=" * (-len(data) % 4))


def decode_header(value: str) -> str:
    """A header's text on one line, with its encoded words (RFC 2047) decoded."""
    if "=?" not in value:
        return " ".join(value.split())
    pieces: list[str] = []
    pending: list[bytes] = []  # neighbours in one charset may share a character between them
    charset, at = "", 0
    for match in _ENCODED_WORD.finditer(value):
        between = value[at : match.start()]
        name = match[1].split("*")[0]
        if pending and (between.strip() or name.lower() != charset.lower()):
            pieces.append(decode(b"".join(pending), charset))
            pending = []
        if between.strip() or at == 0:
            pieces.append(between)
        charset, at = name, match.end()
        data = match[3].encode("utf-8", "replace")
        pending.append(unbase64(data) if match[2] in "bB" else binascii.a2b_qp(data, header=True))
    if pending:
        pieces.append(decode(b"".join(pending), charset))
    pieces.append(value[at:])
    return " ".join("".join(pieces).split())


def html_to_text(markup: str) -> str:
    """The readable text of HTML: blocks on lines of their own, no scripts, styles or comments."""
    pieces: list[str] = []
    unclosed: set[str] = set()
    at = 0
    while (start := markup.find("<", at)) >= 0:
        pieces.append(_unescape(markup[at:start]))
        at = _after_markup(markup, start, pieces, unclosed)
    pieces.append(_unescape(markup[at:]))
    lines = (" ".join(line.split()) for line in "".join(pieces).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _after_markup(markup: str, start: int, pieces: list[str], unclosed: set[str]) -> int:
    """The end of the tag or comment at ``start``; what it means for the layout goes to ``pieces``.

    ``unclosed`` keeps the hidden tags that have no end further on, so that it is searched for only once.
    """
    if markup.startswith("<!--", start):
        end = markup.find("-->", start + 4)
        return len(markup) if end < 0 else end + 3
    name = _TAG_NAME.match(markup, start + 1)
    if name is None and not markup.startswith(("!", "?"), start + 1):
        pieces.append("<")
        return start + 1
    end = markup.find(">", start)
    end = len(markup) if end < 0 else end + 1
    tag = name[0].lower() if name else ""
    if tag in _HIDDEN_TAGS and tag not in unclosed:
        close = _HIDDEN_TAGS[tag].search(markup, end)
        if close is not None:
            return close.start()
        unclosed.add(tag)
    bare = tag.removeprefix("/")
    if bare in _BLOCK_TAGS:
        pieces.append("\n\n")
    elif bare in _LINE_TAGS:
        pieces.append("\n")
    elif tag == "li":
        pieces.append("\n- ")
    elif tag in ("td", "th"):
        pieces.append(" ")
    return end


def _unescape(text: str) -> str:
    """Text with HTML's entities resolved and its line ends turned to spaces."""
    text = text.replace("\n", " ")
    if "&" not in text:
        return text
    try:
        return html.unescape(text)
    except ValueError:  # a number of thousands of digits
        return text
