"""Find the messages of an mbox file (mboxo, mboxrd), whatever its ``From `` lines look like."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO

from art_gym.envs.mail.importers.parse import HEADER_LINE, MAIL_HEADERS

MAX_MESSAGE = 32_000_000  # bytes of one message that are read; the rest is passed over
CHUNK = 65_536  # bytes of a line that are read at once

_DATED = re.compile(
    rb"From (?=.*\d\d?:\d\d).*\d{4}|From \S+ +(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d"
)
_QUOTED_FROM = re.compile(rb">+From ")
_UNWRITTEN = MAIL_HEADERS - frozenset(("from", "to", "cc", "subject", "date", "sender", "reply-to"))
_LOOKAHEAD = 100  # lines of a header that are searched for a name that mail has


class _Lines:
    """The lines of a file, with those that follow in view."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._ahead: deque[bytes] = deque()

    def next(self) -> bytes:
        """The next line, up to `CHUNK` bytes of it; empty at the end."""
        return self._ahead.popleft() if self._ahead else self._file.readline(CHUNK)

    def peek(self, at: int) -> bytes:
        """The line after ``at`` others, which is not taken yet."""
        while len(self._ahead) <= at:
            self._ahead.append(self._file.readline(CHUNK))
        return self._ahead[at]


def mbox_lines(file: BinaryIO) -> Iterator[tuple[bool, bytes]]:
    """Each line with whether it separates messages; what exceeds a message's limit is passed over."""
    lines = _Lines(file)
    size, was_blank, is_first = 0, True, True
    line = lines.next().removeprefix(b"\xef\xbb\xbf")
    while line:
        separates = line.startswith(b"From ") and (is_first or _separates(line, was_blank, lines))
        size = 0 if separates else size + len(line)
        if separates or size <= MAX_MESSAGE:
            yield separates, line[1:] if _QUOTED_FROM.match(line) else line
        was_blank = not line.strip()
        is_first = is_first and was_blank
        line = lines.next()


def _separates(line: bytes, was_blank: bool, lines: _Lines) -> bool:
    """Whether a ``From `` line inside a file separates messages; text quotes such lines less than it should.

    One with a date does if a header follows or, between blank lines, an empty message. One without
    (Thunderbird writes ``From `` alone, others ``From - ``) does if a mail's header follows, and ahead of an
    empty message; if more than a word is on it and no line is blank before it, only ahead of a header that
    people do not write.
    """
    following = lines.peek(0)
    if _DATED.match(line):
        is_header = HEADER_LINE.match(following) or following.startswith((b"From ", b">From "))
        return bool(is_header) or (was_blank and not following.strip())
    is_short = len(line.split()) <= 2
    if is_short and was_blank and not following.strip():
        return not lines.peek(1) or lines.peek(1).startswith(b"From ")
    return _is_mail_next(lines, MAIL_HEADERS if is_short or was_blank else _UNWRITTEN)


def _is_mail_next(lines: _Lines, names: frozenset[str]) -> bool:
    for at in range(_LOOKAHEAD):
        match = HEADER_LINE.match(lines.peek(at))
        if match is None and (at == 0 or lines.peek(at)[:1] not in (b" ", b"\t")):
            return False
        if match and match[1].decode("ascii").lower() in names:
            return True
    return False
