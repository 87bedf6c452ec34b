"""Parse tool calls written as text: ``search("budget", sender="ann")`` and ``<move>left</move>``.

Readers return a :class:`RawCall`, whose arguments are not checked yet, or a :class:`Problem` if something is
meant as a call but cannot be read. Nothing here raises for a reply or evaluates it, and every scan is linear
in the text: the number of failed candidates is limited.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeGuard

_MOST_EXTRA = 1000  # further calls that are counted
_MAX_DIGITS = 300
_MAX_DEPTH = 30
_SPACE = re.compile(r"\s*+")


class ErrorKind(enum.StrEnum):
    """What was wrong with a reply that holds no valid call."""

    EMPTY = "empty"
    """Nothing but white space and special tokens."""
    NO_CALL = "no_call"
    """Text, but nothing in it looks like a call."""
    ONLY_THINKING = "only_thinking"
    """All of it, or the only call in it, is inside a think block."""
    UNKNOWN_TOOL = "unknown_tool"
    MISSING_ARGUMENT = "missing_argument"
    UNEXPECTED_ARGUMENT = "unexpected_argument"
    WRONG_TYPE = "wrong_type"
    """An argument cannot be converted to its type."""
    BROKEN_JSON = "broken_json"
    """A call in a JSON format that is not JSON, or is not shaped as a call."""
    BROKEN_CALL = "broken_call"
    """A call in text or markup whose arguments cannot be read."""
    INCOMPLETE = "incomplete"
    """A call that is cut off at the end of the reply."""


class Bare(str):
    """A word without quotes in place of a value."""

    __slots__ = ()


@dataclass(slots=True)
class RawCall:
    """A call as it was written, before its arguments are checked against the tool.

    Attributes:
        name: The tool's name as written.
        keywords: Arguments by name.
        positional: Arguments by position.
        start: Where the call begins in the text.
        end: Where it ends.
        extra: How many calls came with it in the same structure or after it, counted up to a limit.
        strip: Whether white space around text arguments belongs to the writing, not to the value.
    """

    name: str
    keywords: dict[str, Any]
    positional: list[Any] = field(default_factory=list)
    start: int = 0
    end: int = 0
    extra: int = 0
    strip: bool = False

    @property
    def bare(self) -> bool:
        """Whether an argument is a word without quotes, as when prose mentions ``search(query)``."""
        return any(type(value) is Bare for value in (*self.positional, *self.keywords.values()))


@dataclass(slots=True)
class Problem:
    """Something that was meant as a call and cannot be read.

    Attributes:
        kind: What sort of fault it is.
        message: What is wrong, and where.
        end: How far the text was looked at.
        start: Where the attempt begins.
        tool: The tool that was meant, if known.
    """

    kind: ErrorKind
    message: str
    end: int = 0
    start: int = 0
    tool: str = ""


class InvalidNumberError(ValueError):
    """A number that is too long or too large."""


class _ArgumentSyntaxError(Exception):
    """The arguments stop making sense at a character; ``cut`` if that is the end of the text."""

    def __init__(self, at: int, cut: bool) -> None:
        super().__init__(at)
        self.at = at
        self.cut = cut


def shown(text: str, limit: int = 40) -> str:
    """Text as a message quotes it: short, on one line, without unprintable characters."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut if cut.isprintable() else repr(cut)[1:-1]


def skip_space(text: str, position: int) -> int:
    """Where the white space at ``position`` ends."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def whole(digits: str) -> int:
    """A whole number of a sane length; raises ``InvalidNumberError`` for a longer one."""
    if len(digits) > _MAX_DIGITS:
        raise InvalidNumberError(f"a number of {len(digits)} digits is too long")
    return int(digits)


def real(digits: str) -> float:
    """A finite number; raises ``InvalidNumberError`` for one that is too large for a float."""
    number = float(digits)
    if math.isinf(number):
        raise InvalidNumberError(f"the number {shown(digits)} is too large")
    return number


# --- name(arguments) ------------------------------------------------------------------------------------


def call_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """What begins a call in text to one of ``names``; group 1 is the name, group 2 the space before ``(``."""
    known = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) or "(?!)"
    return re.compile(rf"(?<![\w.])(?:(?:functions|tools|default_api)\.)?({known})(?:\.call)?([ \t]*+)\(")


ANY_CALL = re.compile(r"(?<![\w.])([^\W\d]\w*+)()\(")
"""What begins a call in text to any name; groups as in :func:`call_pattern`."""


def read_text_call(text: str, calls: re.Pattern[str], position: int = 0) -> RawCall | Problem | None:
    """The first call in text whose arguments are all literals.

    Without one, the first that has words without quotes, or the first that cannot be read, whichever stands
    first: so prose about ``search(query)`` does not hide the call that follows it.

    Args:
        text: The reply.
        calls: From :func:`call_pattern`.
        position: Where to begin looking.
    """
    second_best: RawCall | Problem | None = None
    for found in _candidates(text, calls, position):
        if _is_readable(found):
            found.extra = count_calls(_candidates(text, calls, found.end))
            return found
        second_best = second_best or found
    return second_best


def _candidates(text: str, calls: re.Pattern[str], position: int) -> Iterator[RawCall | Problem | None]:
    """What begins like a call, one after the other, while those that failed have not cost too much."""
    budget = 4 * len(text) + 4096
    while budget > 0 and (match := calls.search(text, position)):
        found = _read_at(text, match)
        if _is_readable(found):
            position = found.end
        else:
            position = match.end()
            # The text looked at, and no less than a candidate's own cost.
            budget -= max(256, found.end - match.start()) if found else 256
        yield found


def _is_readable(found: object) -> TypeGuard[RawCall]:
    """Whether this is a call whose arguments are all values."""
    return isinstance(found, RawCall) and not found.bare


def count_calls(found: Iterable[object]) -> int:
    """How many readable calls there are; counted up to a limit."""
    return sum(1 for _ in islice(filter(_is_readable, found), _MOST_EXTRA))


def _read_at(text: str, match: re.Match[str]) -> RawCall | Problem | None:
    """The call that begins with ``match``, what is wrong with it, or ``None`` if it is only prose."""
    name, start, opened = match.group(1), match.start(), match.end()
    spaced = match.start(2) < match.end(2)
    if spaced and text[opened : opened + 1] not in _AFTER_SPACED and not _stands_alone(text, start):
        return None
    try:
        positional, keywords, end = _read_arguments(text, opened)
    except _ArgumentSyntaxError as error:
        if error.cut:
            message = f"the call `{shown(text[start:], 60)}` is cut off: close its quotes and brackets"
            return Problem(ErrorKind.INCOMPLETE, message, len(text), tool=name)
        if spaced:
            return None
        near = shown(text[error.at : error.at + 20], 21)
        message = (
            f"the arguments of `{name}` cannot be read at character {error.at - start + 1} of the call, "
            f"near `{near}`: write values as in Python, text in quotes, commas between"
        )
        return Problem(ErrorKind.BROKEN_CALL, message, error.at, tool=name)
    except InvalidNumberError as error:
        message = f"an argument of `{name}` cannot be used: {error}"
        return Problem(ErrorKind.WRONG_TYPE, message, opened, tool=name)
    return RawCall(name, keywords, positional, start, end, strip=spaced)


# With a space before its bracket, a word is a call only if it stands alone or is written as tokens apart:
# `search ( "x" )` and not `I will search (the tool)`.
_AFTER_SPACED = frozenset(" \t\n\"'“)")


def _stands_alone(text: str, start: int) -> bool:
    return start == 0 or text[start - 1] in "\n`"


_KEYWORD = re.compile(r"\s*+([^\W\d]\w*+)\s*+[=:](?!=)")
_SEPARATOR = re.compile(r"\s*+([,)\]}:])\s*+")
_VALUE = re.compile(
    r'''\s*+(?:"""(?P<d3>(?:[^"\\]++|\\.|"(?!""))*+)"""'''
    r"""|\'\'\'(?P<s3>(?:[^'\\]++|\\.|'(?!''))*+)\'\'\'"""
    r"""|"(?P<d1>(?:[^"\\]++|\\.)*+)"|'(?P<s1>(?:[^'\\]++|\\.)*+)'|“(?P<curly>[^”]*+)”"""
    r"""|(?P<real>[-+]?(?:\d++\.\d*+|\.\d++|\d++(?=[eE]))(?:[eE][-+]?\d++)?+)(?![\w.@/-])"""
    r"""|(?P<whole>[-+]?\d++)(?![\w.@/-])"""
    r"""|(?P<open>[\[({])"""
    r"""|(?P<word>\w[\w.@/+-]*+))""",
    re.DOTALL,
)
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_CLOSING = {"[": "]", "(": ")"}


def _read_arguments(text: str, at: int) -> tuple[list[Any], dict[str, Any], int]:
    """The arguments after an opening bracket, and if the call ends."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    at = skip_space(text, at)
    while not text.startswith(")", at):
        key = _KEYWORD.match(text, at)
        value, end = _read_value(text, key.end() if key else at, 0)
        if key is None:
            if keywords:
                raise _ArgumentSyntaxError(at, False)
            positional.append(value)
        elif key.group(1) in keywords:
            raise _ArgumentSyntaxError(at, False)
        else:
            keywords[key.group(1)] = value
        mark, at = _read_separator(text, end, ",)")
        if mark == ")":
            return positional, keywords, at
    return positional, keywords, at + 1


def _read_separator(text: str, at: int, wanted: str) -> tuple[str, int]:
    """One of the ``wanted`` marks, and if what follows it begins."""
    match = _SEPARATOR.match(text, at)
    if match is None or match.group(1) not in wanted:
        at = skip_space(text, at)
        raise _ArgumentSyntaxError(at, at >= len(text))
    # A call ends with its bracket, not with the white space after it.
    return match.group(1), match.end() if match.group(1) != ")" else match.end(1)


def _read_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """One literal, and if it ends."""
    match = _VALUE.match(text, at)
    if match is None:
        at = skip_space(text, at)
        # A quote that does not match has no partner in the rest of the text.
        raise _ArgumentSyntaxError(at, at >= len(text) or text[at] in "\"'“")
    kind, end = match.lastgroup, match.end()
    if kind in ("d1", "s1", "d3", "s3"):
        raw = match.group(kind)
        if not raw and text.startswith(text[end - 1], end):
            raise _ArgumentSyntaxError(end, True)  # three quotes that are never closed
        return (_unescape(raw) if "\\" in raw else raw), end
    if kind == "open":
        return _read_container(text, end, match.group(kind), depth + 1)
    written = match.group(kind or 0)
    if kind == "whole":
        return whole(written), end
    if kind == "real":
        return real(written), end
    if kind == "word":
        return (_WORDS[written] if written in _WORDS else Bare(written)), end
    return written, end


def _read_container(text: str, at: int, opening: str, depth: int) -> tuple[Any, int]:
    """The inside of a list, tuple or dict after its opening bracket."""
    if depth > _MAX_DEPTH:
        raise _ArgumentSyntaxError(at, False)
    at = skip_space(text, at)
    items: list[Any] = []
    table: dict[str, Any] = {}
    closing = _CLOSING.get(opening, "}")
    while not text.startswith(closing, at):
        value, at = _read_value(text, at, depth)
        if opening == "{":
            _, at = _read_separator(text, at, ":")
            table[str(value)], at = _read_value(text, at, depth)
        else:
            items.append(str(value) if type(value) is Bare else value)
        mark, at = _read_separator(text, at, "," + closing)
        if mark == closing:
            break
    else:
        at += 1
    return (table if opening == "{" else items), at


_ESCAPE = re.compile(
    r"\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # JSON's way to write an emoji
    r"|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)",
    re.DOTALL,
)
_ESCAPES = {
    **dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)),
    **{mark: mark for mark in "\\'\"/"},
    "\n": "",
}


def _unescape(raw: str) -> str:
    """Resolve a string's escapes as Python does; unknown ones stay as they are."""
    return _ESCAPE.sub(_escaped, raw)


def _escaped(match: re.Match[str]) -> str:
    code = match.group(1)
    if code in _ESCAPES:
        return _ESCAPES[code]
    if len(code) == 11:
        return bytes.fromhex(code[1:5] + code[7:]).decode("utf-16-be")
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number <= 0x10FFFF else match.group()
    return chr(int(code, 8)) if code[0] in "01234567" else match.group()


# --- <name>value</name> ---------------------------------------------------------------------------------

_CHILD = re.compile(r"\s*+<([^\W\d]\w*+)>")


def tag_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """What opens an XML form of one of ``names``."""
    known = "|".join(re.escape(name) for name in names) or "(?!)"
    return re.compile(rf"<({known})(/?)>")


def read_tag_call(text: str, tags: re.Pattern[str]) -> RawCall | Problem | None:
    """The first ``<name>value</name>``, ``<name><argument>value</argument>…</name>`` or ``<name/>``."""
    match = tags.search(text)
    if match is None:
        return None
    name, start = match.group(1), match.end()
    if match.group(2):
        return RawCall(name, {}, start=match.start(), end=start)
    stop = text.find(f"</{name}>", start)
    if stop < 0:
        message = f"`<{name}>` is not closed: end it with `</{name}>`"
        return Problem(ErrorKind.INCOMPLETE, message, len(text), tool=name)
    inner = text[start:stop]
    end = stop + len(name) + 3
    call = RawCall(name, _children(inner), start=match.start(), end=end, strip=True)
    if not call.keywords and inner.strip():
        call.positional.append(inner)
    call.extra = sum(1 for _ in tags.finditer(text, end))
    return call


def _children(inner: str) -> dict[str, str]:
    """``<argument>value</argument>`` elements; empty if the text is anything else."""
    found: dict[str, str] = {}
    at = 0
    while match := _CHILD.match(inner, at):
        stop = inner.find(f"</{match.group(1)}>", match.end())
        if stop < 0:
            return {}
        found[match.group(1)] = inner[match.end() : stop]
        at = stop + len(match.group(1)) + 3
    return {} if inner[at:].strip() else found
