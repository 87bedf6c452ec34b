"""Replies as a client sees them: text up to the stop string, and tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from art_gym.parsing.formats import CALL_LIST, CALL_MARKERS, call_from_json, read_json, read_markup
from art_gym.parsing.text_calls import ANY_CALL, Problem, RawCall, read_text_call, skip_space
from art_trainer.inference.sampling import first_stop

Tools = Mapping[str, Sequence[str]]
"""Names of the tools that the model was shown, each with the names of its arguments in their order."""

_END_OF_THOUGHT = "</think>"
_MAX_CALLS = 64
INCOMPLETE = "\ufffd"
"""What a decoder writes for a character whose last bytes are missing."""


@dataclass(frozen=True, slots=True)
class StopConfig:
    """Stop strings.

    Attributes:
        dropped: Those that are removed from the text.
        kept: Those that stay part of it.
    """

    dropped: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def strings(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.dropped, *self.kept)

    def cut(self, text: str) -> str:
        """The text up to the stop string that is complete first."""
        return _cut(_cut(text, self.dropped), self.kept, keep=True)

    def dropped_from(self, text: str) -> str | None:
        """The removed stop string that is complete first; ``None`` if there is none."""
        found = first_stop(text, self.dropped)
        return None if found is None else text[found[1] : found[0]]


def _cut(text: str, stops: Sequence[str], *, keep: bool = False) -> str:
    found = first_stop(text, stops)
    return text if found is None else text[: found[0] if keep else found[1]]


def split_reply(text: str, tools: Tools) -> tuple[str, list[tuple[str, str]]]:
    """Separate the words of a reply from its tool calls.

    A call in a model family's markup counts whatever its name, so that the agent can answer it. Bare JSON
    and a call as in Python, ``search("budget")``, count if they name a tool and are the whole reply. What
    cannot be read as a call stays text.

    Args:
        text: The reply.
        tools: The tools; if there are none, all is text.

    Returns:
        The text before the first call, and the calls' names and arguments, as JSON.
    """
    if not tools:
        return text, []
    begin = _end_of_thought(text)
    calls: list[RawCall] = []
    at = begin
    while len(calls) < _MAX_CALLS and (found := _next_calls(text, at)):
        calls += found
        at = found[-1].end
    calls = calls or _bare_json(text, begin, tools) or _text_call(text, begin, tools)
    if not calls:
        return text, []
    written = [(call.name, json.dumps(call.keywords, ensure_ascii=False)) for call in calls]
    return text[: calls[0].start].rstrip(), written


def stream_safe_length(text: str, tools: Tools, stops: Sequence[str]) -> int:
    """How many characters of an unfinished reply are certainly content, so that they may be streamed.

    Args:
        text: The reply so far.
        tools: As in :func:`split_reply`.
        stops: Stop strings that are removed from the text.
    """
    text = text.rstrip(INCOMPLETE)
    marks, end = [*stops], len(text)
    if tools:
        marks += CALL_MARKERS
        begin = _end_of_thought(text)
        head = text[begin:].lstrip()
        if not head or head[0] in "{[" or any(_begins(head, name) for name in tools):
            end = begin
    end = min([end, *(place for mark in marks if (place := text.find(mark)) >= 0)])
    longest = max(map(len, marks), default=1)
    for start in range(max(0, end - longest + 1), end):
        if any(mark.startswith(text[start:end]) for mark in marks):
            end = start
            break
    return len(text[:end].rstrip()) if tools else end  # space before a call is not content


def _end_of_thought(text: str) -> int:
    """Where a reply's answer begins, behind its last thought."""
    return text.rfind(_END_OF_THOUGHT) + len(_END_OF_THOUGHT) if _END_OF_THOUGHT in text else 0


def _next_calls(text: str, at: int) -> list[RawCall]:
    """The next call in markup, or all calls of a list in markup; none if nothing can be read."""
    rest = text[at:]
    opening = CALL_LIST.search(rest)
    decoded = None if opening is None else read_json(rest, opening.end())
    if opening is not None and isinstance(decoded, tuple) and isinstance(decoded[0], list):
        calls = [call_from_json(value) for value in decoded[0]]
        listed = [call for call in calls if isinstance(call, RawCall)]
        if listed and len(listed) == len(calls):
            for call in listed:
                call.start, call.end = at + opening.start(), at + decoded[1]
            return listed
    single = read_markup(rest, ANY_CALL)
    if not isinstance(single, RawCall) or single.positional or single.end <= 0:
        return []
    single.start, single.end = single.start + at, single.end + at
    return [single]


def _begins(head: str, name: str) -> bool:
    """Whether a text begins a call of a tool, or may still become one."""
    return head.startswith(f"{name}(") or f"{name}(".startswith(head)


def _text_call(text: str, begin: int, tools: Tools) -> list[RawCall]:
    start = skip_space(text, begin)
    name = text[start:].partition("(")[0]
    call = read_text_call(text, ANY_CALL, start) if name in tools else None
    if not isinstance(call, RawCall) or call.start != start or text[call.end :].strip():
        return []
    placed = dict(zip(tools[name], call.positional, strict=False))
    if call.bare or len(placed) < len(call.positional) or placed.keys() & call.keywords.keys():
        return []
    call.keywords, call.start = placed | call.keywords, begin
    return [call]


def _bare_json(text: str, begin: int, tools: Tools) -> list[RawCall]:
    start = skip_space(text, begin)
    decoded = read_json(text, start) if text.startswith("{", start) else None
    if decoded is None or isinstance(decoded, Problem) or text[decoded[1] :].strip():
        return []
    call = call_from_json(decoded[0])
    if not isinstance(call, RawCall) or call.name not in tools:
        return []
    call.start = begin
    return [call]
