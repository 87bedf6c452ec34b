"""Parse one message, RFC 5322 and MIME or a line of JSON, however malformed, into a :class:`Message`.

The standard library's parser raises on some real mail, recurses as deep as the mail says, and is slow; so
this is a small one of our own. It never raises: what cannot be understood is kept as text. What it reads is
bounded by the limits below, whatever a message holds.

The keys of a JSON object: ``message_id``, ``date`` (ISO 8601), ``from``, ``to``, ``cc``, ``bcc``,
``subject``, ``body``, ``folders``, ``dup_ids`` and, for names beside bare addresses, ``x_from`` and ``x_to``.
All may be missing but one of ``message_id``, ``from``, ``subject`` and ``body``. Example::

    {"message_id": "<1@x.org>", "date": "2024-05-01T09:30:00Z", "from": "Ann <ann@x.org>",
     "to": ["bob@x.org"], "subject": "Lunch", "body": "At noon?", "folders": ["ann/sent"]}
"""

from __future__ import annotations

import email.utils
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from art_gym.envs.mail.importers.charsets import decode
from art_gym.envs.mail.importers.text import decode_header, html_to_text, transfer_decode
from art_gym.envs.mail.message import Address, Message, bare_id, to_utc

MAX_BODY = 1_000_000  # characters of a text that are kept

_MAX_HEADER_BYTES = 512_000  # of a part's whole header
_MAX_HEADERS = 2_000
_MAX_VALUE = 100_000  # characters of one header
_MAX_PEOPLE = 2_000  # addresses taken from one header
_MAX_DEPTH = 20  # parts within parts
_MAX_PARTS = 300  # parts in one message
_MAX_PART = 4 * MAX_BODY  # bytes of one text part that are decoded

_HTML_HEAD = 4_000  # bytes of HTML in which it may name its charset

HEADER_LINE = re.compile(rb"([!-9;-~]+)[ \t]*:(.*)", re.DOTALL)  # its name, its value
_BEFORE_HEADER = re.compile(rb"\A(?:\xef\xbb\xbf)?(?:[ \t]*\r?\n)*")  # a byte order mark, blank lines
_CHARSET = re.compile(rb"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_PARAMETER = re.compile(r';\s*([!-:<-~]+?)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))')
MAIL_HEADERS = frozenset(
    """from to cc subject date message-id received return-path reply-to sender mime-version content-type
    delivered-to in-reply-to references x-mailer x-mozilla-status""".split()
)
_ENCODED = r"=\?[^?\s]+\?[bBqQ]\?[^?]*\?="  # with commas and brackets, against RFC 2047 but common
_ADDRESS_TOKEN = re.compile(
    rf'{_ENCODED}|"(?:[^"\\]|\\.)*"?|<[^<>]*>?|\([^()]*\)?|[,;]|:|(?:(?!{_ENCODED})[^",;:<>()])+|[>)]'
)


class Part(NamedTuple):
    """A part of a message: its headers (names in lower case, the first of a name wins) and raw content."""

    headers: dict[str, str]
    content: bytes

    @property
    def kind(self) -> str:
        """The media type, ``text/plain`` when none is given."""
        kind = self.headers.get("content-type", "").split(";")[0].strip().lower()
        return kind if "/" in kind else "text/plain"

    def parameter(self, header: str, name: str) -> str:
        """A parameter of a header, such as the charset of the Content-Type; empty when absent.

        Parameters in pieces or with a charset (``name*0*=utf-8''…``, RFC 2231) are put together.
        """
        pieces: dict[str, str] = {}
        for key, quoted, plain in _PARAMETER.findall(self.headers.get(header, "")):
            pieces.setdefault(key.lower(), re.sub(r"\\(.)", r"\1", quoted) if quoted else plain)
        if name in pieces:
            return pieces[name]
        value = pieces.get(f"{name}*", "")
        count = 0
        while piece := pieces.get(f"{name}*{count}") or pieces.get(f"{name}*{count}*"):
            value += piece
            count += 1
        charset, _, quoted = value.partition("''")
        return decode(unquote_to_bytes(quoted), charset) if quoted else value


class Parsed(NamedTuple):
    """A message and what had to be done to it (``notes``, for the account of an import)."""

    message: Message
    notes: tuple[str, ...]


class NotMailError(ValueError):
    """The bytes hold no mail; the text says why."""


def parse_message(data: bytes, folder: str = "", mailbox: str = "") -> Parsed:
    """Read one message.

    Args:
        data: The message from its first header on; a leading ``From `` line is passed over.
        folder: The folder it is in.
        mailbox: The mailbox it is in.

    Raises:
        NotMailError: There is no header of a mail in it.
    """
    if not data.strip():
        raise NotMailError("empty")
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    root = split_part(_BEFORE_HEADER.sub(b"", data, count=1))
    if not MAIL_HEADERS & root.headers.keys():
        raise NotMailError("no mail header")
    senders = parse_addresses(root.headers.get("from", "") or root.headers.get("sender", ""))
    message = Message(
        message_id=bare_id("".join(root.headers.get("message-id", "").split())),
        date=_date_of(root.headers),
        sender=senders[0] if senders else Address(),
        to=parse_addresses(root.headers.get("to", "")),
        cc=parse_addresses(root.headers.get("cc", "")),
        bcc=parse_addresses(root.headers.get("bcc", "")),
        subject=decode_header(root.headers.get("subject", ""))[:_MAX_VALUE],
        body=_Reader().text(root),
        folders=(folder,) if folder else (),
        mailboxes=(mailbox.lower(),) if mailbox else (),
    )
    return bounded(message, data)


def bounded(message: Message, data: bytes) -> Parsed:
    """The message with at most `MAX_BODY` characters of text and an id, made of its bytes if it has none.

    Soft hyphens go: a search would take the word for two.
    """
    notes = []
    message_id = message.message_id[:500]
    body = message.body.replace("\r\n", "\n").replace("\r", "\n").replace("\u00ad", "").strip("\n\ufeff")
    if len(body) > MAX_BODY:
        body = f"{body[:MAX_BODY]}\n[… {len(body) - MAX_BODY} more characters left out]"
        notes.append(f"text cut at {MAX_BODY:,} characters")
    if message.date is None:
        notes.append("no usable date")
    if not message_id:
        message_id = f"{hashlib.blake2b(data, digest_size=12).hexdigest()}@no-id"
        notes.append("no Message-ID, a digest taken instead")
    return Parsed(replace(message, message_id=message_id, body=body), tuple(notes))


def split_part(data: bytes) -> Part:
    """Take headers and content apart. The first line that is no header begins the content."""
    if data.startswith((b"From ", b">From ")):
        data = data[data.find(b"\n") + 1 :] if b"\n" in data else b""
    if data.startswith((b"\n", b"\r\n")):
        return Part({}, data)
    blank = _HEADER_END.search(data, 0, _MAX_HEADER_BYTES)
    end = blank.end() if blank else min(len(data), _MAX_HEADER_BYTES)
    headers: dict[str, bytes] = {}
    name, lines, at = "", [b""], 0
    block = data[:end].splitlines(keepends=True)
    for line, following in zip(block, [*block[1:], b""], strict=False):
        match = HEADER_LINE.match(line)
        if not line.strip():
            at += len(line)
            break
        if match:
            _keep(headers, name, lines)
            name, lines = match[1].decode("ascii").lower(), [match[2]]
        elif name and (line[:1] in b" \t" or following[:1] in (b" ", b"\t") or HEADER_LINE.match(following)):
            lines.append(line)  # a folded line, or a stray one in the middle of a header
        else:
            break
        at += len(line)
    _keep(headers, name, lines)
    if b"".join(headers.values()).isascii():
        return Part({name: decode(value, None) for name, value in headers.items()}, data[at:])
    # Letters that are not encoded are in the charset of the text.
    named = _CHARSET.search(headers.get("content-type", b""))
    around = named[1].decode("ascii", "replace") if named else None
    return Part({name: decode(value, None, around) for name, value in headers.items()}, data[at:])


def _keep(headers: dict[str, bytes], name: str, lines: list[bytes]) -> None:
    if name and name not in headers and len(headers) < _MAX_HEADERS:
        headers[name] = b" ".join(line.strip() for line in lines)[:_MAX_VALUE]


class _Reader:
    """Collects the text of one message, within the limits on depth and number of parts."""

    def __init__(self) -> None:
        self._parts = 0

    def text(self, part: Part, depth: int = 0) -> str:
        """The readable text of a part: plain rather than HTML, attachments by name."""
        self._parts += 1
        if depth > _MAX_DEPTH or self._parts > _MAX_PARTS:
            return "[parts nested too deeply or too many, left out]" if self._parts <= _MAX_PARTS + 1 else ""
        kind = part.kind
        name = part.parameter("content-disposition", "filename") or part.parameter("content-type", "name")
        name = decode_header(name)[:200]
        is_attached = part.headers.get("content-disposition", "").strip().lower().startswith("attachment")
        if kind.startswith("multipart/"):
            boundary = part.parameter("content-type", "boundary")
            parts = list(_split_multipart(part.content, boundary)) if boundary else []
            if parts:
                return self._multipart(kind, parts, depth)
            return _text_of(part, "text/plain")
        if is_attached or (name and not kind.startswith("text/")):
            return f"[attachment: {name or kind}]"
        if kind == "message/rfc822":
            return self._forwarded(part, depth)
        if kind.startswith(("text/", "message/")):
            return _text_of(part, kind)
        return f"[attachment: {kind}]"

    def _multipart(self, kind: str, parts: list[Part], depth: int) -> str:
        if kind == "multipart/alternative":
            parts = [_best_alternative(parts)]
        texts = (self.text(part, depth + 1).strip("\r\n") for part in parts)
        return "\n\n".join(text for text in texts if text.strip())

    def _forwarded(self, part: Part, depth: int) -> str:
        inner = split_part(transfer_decode(part.content, part.headers.get("content-transfer-encoding", "")))
        shown = [
            f"{title}: {decode_header(inner.headers[title.lower()])}"
            for title in ("From", "Date", "To", "Subject")
            if title.lower() in inner.headers
        ]
        return "\n".join(["----- Forwarded message -----", *shown, "", self.text(inner, depth + 1)])


def _best_alternative(parts: list[Part]) -> Part:
    """The part of a multipart/alternative to show: plain text that is not blank, else the richest."""
    for part in parts:
        if part.kind == "text/plain" and _text_of(part, part.kind).strip():
            return part
    texts = [part for part in parts if part.kind.startswith(("multipart/", "text/html"))]
    return texts[0] if texts else parts[0]


def _text_of(part: Part, kind: str) -> str:
    data = transfer_decode(part.content[:_MAX_PART], part.headers.get("content-transfer-encoding", ""))
    charset = part.parameter("content-type", "charset")
    if kind == "text/html" and not charset and (named := _CHARSET.search(data, 0, _HTML_HEAD)):
        charset = named[1].decode("ascii", "replace")
    text = decode(data, charset)
    return html_to_text(text) if kind == "text/html" else text


def _split_multipart(content: bytes, boundary: str) -> Iterator[Part]:
    """The parts between boundary lines; an end that is missing is the end of the content."""
    line = re.compile(
        rb"(?:^|\n)--" + re.escape(boundary.encode("utf-8", "replace")) + rb"(--)?[ \t]*(?=\r?\n|$)"
    )
    start = None
    for count, match in enumerate(line.finditer(content)):
        if start is not None:
            yield split_part(content[start : match.start()].removesuffix(b"\r"))
        start = None if match[1] else _line_after(content, match.end())
        if match[1] or count > _MAX_PARTS:
            break
    if start is not None:
        yield split_part(content[start:])


def _line_after(content: bytes, at: int) -> int:
    end = content.find(b"\n", at)
    return len(content) if end < 0 else end + 1


def _date_of(headers: dict[str, str]) -> datetime | None:
    """When a message was sent; if it does not say so, when its last server received it."""
    arrived = headers.get("received", "").rpartition(";")[2]
    values = (headers.get("date", ""), headers.get("delivery-date", ""), arrived)
    return next((date for value in values if value and (date := parse_date(value))), None)


def parse_date(value: str) -> datetime | None:
    """When a Date header, or a date of ISO 8601, says a message was sent, in UTC; ``None`` if that cannot be.

    Years of three digits, also as ``0102``, count from 1900 (RFC 5322, 4.3), and so do ones as ``19102``.
    Dates before 1970-01-02 and on 1980-01-01 are the zeros of clocks, not dates; ones from 2100 on are wrong.
    """
    with suppress(ValueError, OverflowError):
        return usable_date(datetime.fromisoformat(value.strip()))
    try:
        fields = email.utils.parsedate_tz(decode_header(value[:200]))
        if fields is None:
            return None
        zone = timezone(timedelta(seconds=fields[9] or 0)) if abs(fields[9] or 0) < 86_400 else UTC
        year = fields[0] - 19_000 if 19_100 <= fields[0] < 19_200 else fields[0]
        year += 1_900 if 100 <= year < 200 else 0
        return usable_date(datetime(year, *fields[1:6], tzinfo=zone))
    except (ValueError, IndexError, TypeError, OverflowError):
        return None


def usable_date(moment: datetime) -> datetime | None:
    """A date in UTC, or ``None`` for one that no mail was sent at (see :func:`parse_date`)."""
    utc = to_utc(moment)
    if not datetime(1970, 1, 2, tzinfo=UTC) <= utc < datetime(2100, 1, 1, tzinfo=UTC):
        return None
    if (1980, 1, 1) in ((utc.year, utc.month, utc.day), (moment.year, moment.month, moment.day)):
        return None
    return utc.replace(microsecond=0)


@lru_cache(maxsize=10_000)
def parse_addresses(value: str) -> tuple[Address, ...]:
    """The people in an address header, RFC 5322 groups taken apart; odd ones are kept as names."""
    people: list[Address] = []
    words: list[str] = []
    angle = comment = ""
    for token in [*_ADDRESS_TOKEN.findall(value), ","]:
        if token in ",;":
            people.extend(_address(words, angle, comment))
            words, angle, comment = [], "", ""
            if len(people) >= _MAX_PEOPLE:
                break
        elif token == ":":  # what stood before is the name of a group
            words, angle, comment = [], "", ""
        elif token[0] == '"':
            words.append(re.sub(r"\\(.)", r"\1", token.strip('"')))
        elif token[0] == "<":
            angle = angle or "".join(token.strip("<>").split())
        elif token[0] == "(":
            comment = comment or token.strip("()")
        elif token not in ">)":
            words.append(token)
    return tuple(dict.fromkeys(people))


def _address(words: list[str], angle: str, comment: str) -> Iterator[Address]:
    """The person that the tokens between two commas describe, if any."""
    text = decode_header(" ".join(word.strip() for word in words if word.strip()))
    if not angle and "@" in text and " " not in text:
        angle, text = text, decode_header(comment)
    angle = angle.rpartition(":")[2] if angle.startswith("@") else angle  # a route of old
    name = text.strip(" '")
    if angle or name:
        yield Address("" if name.lower() == angle.lower() else name[:500], angle.lower()[:500])


_NEEDED = ("message_id", "from", "subject", "body")
_NAME_BEFORE_ANGLE = re.compile(r"\s*([^<>]*?)\s*<[^<>]*>(?:@\w+)?\s*(?:,|$)")


def parse_json(line: bytes, mailbox: str = "") -> Parsed:
    """Read one line.

    Args:
        line: A JSON object in UTF-8.
        mailbox: The mailbox of a message without ``folders``.

    Raises:
        NotMailError: It is no JSON object, or one without any of the keys a message needs.
    """
    try:
        record: Any = json.loads(line.decode("utf-8-sig", "replace"))
    except RecursionError as error:
        raise NotMailError("JSON nested too deeply") from error
    except ValueError as error:
        raise NotMailError("no JSON") from error
    if not isinstance(record, dict):
        raise NotMailError("no JSON object")
    if not any(record.get(key) for key in _NEEDED):
        raise NotMailError(f"a JSON object without {', '.join(_NEEDED)}")
    folders = _texts(record.get("folders"))
    sender = _people(record.get("from"), _text(record.get("x_from")))
    message = Message(
        message_id=bare_id(_text(record.get("message_id"))),
        date=parse_date(_text(record.get("date"))),
        sender=sender[0] if sender else Address(),
        to=_people(record.get("to"), _text(record.get("x_to"))),
        cc=_people(record.get("cc")),
        bcc=_people(record.get("bcc")),
        subject=" ".join(_text(record.get("subject")).split()),
        body=_text(record.get("body")),
        folders=folders,
        mailboxes=tuple(dict.fromkeys(folder.split("/")[0].lower() for folder in folders)) or (mailbox,),
        duplicate_ids=tuple(bare_id(other) for other in _texts(record.get("dup_ids"))),
    )
    return bounded(message, line)


def _text(value: object) -> str:
    """A field as text: what is no text, number or truth value is none."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) else ""


def _texts(value: object) -> tuple[str, ...]:
    """A field that is a list of texts, or one text."""
    items = value if isinstance(value, list) else [value]
    return tuple(text for item in items if (text := _text(item).strip()))


def _people(value: object, names: str = "") -> tuple[Address, ...]:
    """The addresses in a field; bare ones get the display names of the ``x_`` field when the counts agree."""
    people = [who for text in _texts(value) for who in parse_addresses(text)]
    if names and not any(who.name for who in people):
        found = _NAME_BEFORE_ANGLE.findall(names) if "<" in names else names.split(",")
        found = [names.split("<")[0]] if len(people) == 1 else found
        if len(found) == len(people):
            named = zip(people, found, strict=True)
            people = [Address(_name(name, who.email), who.email) for who, name in named]
    return tuple(dict.fromkeys(people))


def _name(name: str, email: str) -> str:
    """A display name without quotes; none when it only repeats the address."""
    name = " ".join(name.split()).strip(" '\",")
    return "" if name.lower() == email else name[:500]
