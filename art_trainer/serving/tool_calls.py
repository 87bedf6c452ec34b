"""What of a reply is said and what is a tool call, also while the reply is still growing."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from art_gym.parser_formats import call_from_json, read_json, read_markup
from art_gym.parser_text import ANY_CALL, Problem, RawCall, skip_space

_OPENINGS = (
    "<tool_call>", "<tool_calls>", "<function_call>", "<function=", "<invoke name=", "<|tool_call|>",
    "<|python_tag|>", "<|tool_call_begin|>", "<|tool_calls_section_begin|>", "<｜tool▁call▁begin｜>",
    "<｜tool▁calls▁begin｜>", "[TOOL_CALLS]",
)  # fmt: skip
"""With what the model families begin a call; the readers are in :mod:`art_gym.parser_formats`."""
_LIST_OPENING = re.compile(r"(?:<tool_calls?>|<\|tool_call\|>|<\|python_tag\|>|\[TOOL_CALLS\])\s*+(?=\[)")
_THOUGHT = "</think>"
_MOST_CALLS = 64
_UNFINISHED = "\ufffd"


@dataclass(frozen=True, slots=True)
class SplitReply:
    """A reply as a client sees it."""

    content: str
    """The words before the first call; all of them where there is none."""
    calls: tuple[tuple[str, str], ...] = ()
    """Names and arguments, these as JSON."""


def split_reply(text: str, tools: Collection[str]) -> SplitReply:
    """Read the calls in a reply.

    A call in a family's markup is one whatever its name, so that the agent can answer it; bare JSON is one
    where it names a tool and is all that is said. What cannot be read as a call stays words.

    Args:
        text: The reply.
        tools: Names of the tools that the model was shown; without any, all is words.
    """
    if not tools:
        return SplitReply(text)
    begin = text.rfind(_THOUGHT) + len(_THOUGHT) if _THOUGHT in text else 0
    calls: list[RawCall] = []
    at = begin
    while len(calls) < _MOST_CALLS:
        found = _calls_from(text, at)
        if not found:
            break
        calls += found
        at = found[-1].end
    if not calls:
        calls = _bare_json(text, begin, tools)
    if not calls:
        return SplitReply(text)
    written = tuple((call.name, json.dumps(call.keywords, ensure_ascii=False)) for call in calls)
    return SplitReply(text[: calls[0].start].rstrip(), written)


def speakable(text: str, tools: Collection[str], stops: Sequence[str]) -> int:
    """How much of a reply that still grows is content for certain.

    Args:
        text: The reply so far.
        tools: As in :func:`split_reply`.
        stops: Texts that end the reply and are cut from it.
    """
    text = text.rstrip(_UNFINISHED)
    marks = [*stops]
    if tools:
        marks += _OPENINGS
        if not text.strip() or text.lstrip()[0] in "{[":
            return 0
    ends = [place for mark in marks if (place := text.find(mark)) >= 0]
    end = min(ends, default=len(text))
    longest = max(map(len, marks), default=1)
    for start in range(max(0, end - longest + 1), end):
        if any(mark.startswith(text[start:end]) for mark in marks):
            end = start
            break
    # Space before a call is no content.
    return len(text[:end].rstrip()) if tools else end


def _calls_from(text: str, at: int) -> list[RawCall]:
    """The next call in markup, or all calls of a list in markup; none where there is none to be read."""
    rest = text[at:]
    listed = _LIST_OPENING.search(rest)
    if listed is not None:
        decoded = read_json(rest, listed.end())
        if not isinstance(decoded, Problem) and isinstance(decoded[0], list):
            calls = [call_from_json(value) for value in decoded[0]]
            found = [call for call in calls if isinstance(call, RawCall)]
            if found and len(found) == len(calls):
                for call in found:
                    call.start, call.end = at + listed.start(), at + decoded[1]
                return found
    single = read_markup(rest, ANY_CALL)
    if not isinstance(single, RawCall) or single.positional or single.end <= 0:
        return []
    single.start, single.end = single.start + at, single.end + at
    return [single]


def _bare_json(text: str, begin: int, tools: Collection[str]) -> list[RawCall]:
    start = skip_space(text, begin)
    if not text.startswith("{", start):
        return []
    decoded = read_json(text, start)
    if isinstance(decoded, Problem) or text[decoded[1] :].strip():
        return []
    call = call_from_json(decoded[0])
    if not isinstance(call, RawCall) or call.name not in tools:
        return []
    call.start = begin
    return [call]
