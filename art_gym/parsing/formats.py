"""Parse tool calls in JSON and in the markup of model families.

Each reader looks for the first call in one family of formats and returns a
:class:`~art_gym.parsing.text_calls.RawCall`, a :class:`~art_gym.parsing.text_calls.Problem` if something was
meant as a call but cannot be read, or ``None``. :mod:`art_gym.parsing.parser` decides which family wins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from art_gym.parsing.text_calls import (
    ErrorKind,
    InvalidNumberError,
    Problem,
    RawCall,
    count_calls,
    read_text_call,
    real,
    shown,
    skip_space,
    whole,
)

_MAX_FAILURES = 16


# --- JSON -----------------------------------------------------------------------------------------------


def _constant(name: str) -> NoReturn:
    raise InvalidNumberError(f"{name} is not a number that can be used; write an ordinary number")


# strict=False: models write line breaks inside strings. Of duplicate keys the last counts, as everywhere.
_DECODER = json.JSONDecoder(strict=False, parse_int=whole, parse_float=real, parse_constant=_constant)
_TAIL = re.compile(r"[-+\w.\\]{0,12}\s*+\Z")


def read_json(text: str, start: int) -> tuple[Any, int] | Problem:
    """Decode the JSON value at ``start``; returns it and where it ends."""
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        at = error.pos
        if error.msg.startswith("Unterminated string") or _TAIL.match(text, at):
            message = "the JSON is cut off at the end of the reply: close its quotes and braces"
            return Problem(ErrorKind.INCOMPLETE, message, len(text), tool=_meant(text, start))
        near = shown(text[max(start, at - 12) : at + 12], 30)
        message = f"the JSON is broken at character {at - start + 1}, near `{near}`: {error.msg}"
        return Problem(ErrorKind.BROKEN_JSON, message, at, tool=_meant(text, start))
    except InvalidNumberError as error:
        return Problem(ErrorKind.WRONG_TYPE, str(error), len(text), tool=_meant(text, start))
    except RecursionError:
        return Problem(ErrorKind.BROKEN_JSON, "the JSON is nested too deeply", len(text))


_MEANT = re.compile(r'"name"\s*+:\s*+"([^"\\]{1,100})"')


def _meant(text: str, start: int) -> str:
    """The tool that JSON which cannot be read seems to call."""
    match = _MEANT.search(text, start, start + 300)
    return match.group(1).strip() if match else ""


_NAME_KEYS = ("name", "function", "tool", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_BESIDE_ARGUMENTS = {*_NAME_KEYS, *_ARGUMENT_KEYS, "id", "type", "index"}


def call_from_json(value: Any) -> RawCall | Problem | None:
    """Read a call from a decoded JSON value; ``None`` if the value is not shaped as a call.

    Understands ``{"name", "arguments"}`` (Hermes, Qwen), ``{"name", "parameters"}`` (Llama), OpenAI's
    ``{"type": "function", "function": {…}}``, a message with ``tool_calls``, and lists of these. Arguments
    may be an object or JSON in a string.
    """
    extra = 0
    for _ in range(4):  # a message holds a list, which holds a wrapper, which holds the call
        if isinstance(value, list) and value:
            extra += len(value) - 1
            value = value[0]
        elif isinstance(value, dict) and value.get("tool_calls"):
            value = value["tool_calls"]
        elif isinstance(value, dict):
            inner = value.get("function") or value.get("function_call")
            if not isinstance(inner, dict):
                break
            value = inner
    if not isinstance(value, dict):
        return None
    name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), None)
    if name is None:
        return None
    arguments = next((value[key] for key in _ARGUMENT_KEYS if key in value), None)
    if arguments is None and not value.keys() <= _BESIDE_ARGUMENTS:
        return None  # some other record that has a name
    if isinstance(arguments, str) and arguments.strip():
        decoded = read_json(arguments, skip_space(arguments, 0))
        if isinstance(decoded, Problem):
            return Problem(decoded.kind, f"in the text of the arguments, {decoded.message}")
        arguments = decoded[0]
    if not arguments and arguments is not False:
        arguments = {}
    if not isinstance(arguments, dict):
        message = f"the arguments must be a JSON object, not {shown(json.dumps(arguments))}"
        return Problem(ErrorKind.WRONG_TYPE, message)
    return RawCall(name.strip(), arguments, extra=extra)


_CALL_OBJECT = re.compile(
    r'\{\s*+"(?:name|function|tool|tool_name|tool_calls|function_call|type|id|role|content|arguments|'
    r'parameters)"\s*+:|\A\{(?:\s*+["\'])?'
)


def read_json_call(text: str) -> RawCall | Problem | None:
    """The first call written as bare JSON: the whole reply, in a fenced block, or inside prose."""
    problem: Problem | None = None
    for match, decoded in _objects(text, 0):
        if isinstance(decoded, Problem):
            decoded.start = match.start()
            if match.end() > match.start() + 1:  # a brace alone may be anything
                problem = problem or decoded
                if decoded.kind is ErrorKind.INCOMPLETE:
                    break  # all that follows is inside it
            continue
        call = call_from_json(decoded[0])
        if isinstance(call, RawCall):
            call.start, call.end = match.start(), decoded[1]
            others = (other for _, other in _objects(text, call.end) if not isinstance(other, Problem))
            call.extra += count_calls(call_from_json(value) for value, _ in others)
            return call
        problem = problem or call
    return problem


def _objects(text: str, position: int) -> Iterator[tuple[re.Match[str], tuple[Any, int] | Problem]]:
    """What begins like a call in JSON, and what it is, one after the other; a few may fail."""
    failures = 0
    while failures < _MAX_FAILURES and (match := _CALL_OBJECT.search(text, position)):
        decoded = read_json(text, match.start())
        failures += isinstance(decoded, Problem)
        position = match.end() if isinstance(decoded, Problem) else decoded[1]
        yield match, decoded


def write_call(name: str, arguments: Mapping[str, Any] | str) -> str:
    """Write a call in the Hermes format; the parser reads it back exactly, whatever the arguments hold.

    Args:
        name: The tool.
        arguments: By name, or as JSON text; text that is no JSON stays, for the parser to report.
    """
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
    # An argument that contains "</tool_call>" or "<think>" would be read as markup.
    written = f'{{"name": {json.dumps(name)}, "arguments": {text or "{}"}}}'.replace("<", "\\u003c")
    return f"<tool_call>\n{written}\n</tool_call>"


# --- native markup --------------------------------------------------------------------------------------

_MARKERS = {
    "payload": (
        "<tool_call>", "<tool_calls>", "<function_call>", "<|tool_call|>", "<|python_tag|>", "[TOOL_CALLS]"
    ),
    "tagged": ("<function=", "<invoke name="),
    "token": ("<|tool_call_begin|>", "<｜tool▁call▁begin｜>"),
    "section": ("<|tool_calls_section_begin|>", "<｜tool▁calls▁begin｜>"),
}  # fmt: skip
"""The markers with which model families begin a tool call, by how what follows is read."""
CALL_MARKERS = tuple(marker for markers in _MARKERS.values() for marker in markers)
"""Every marker that begins a tool call."""


def _any_of(markers: Iterable[str]) -> str:
    return "|".join(map(re.escape, markers))


_OPENING = re.compile("|".join(f"(?P<{kind}>{_any_of(markers)})" for kind, markers in _MARKERS.items()))
CALL_LIST = re.compile(rf"(?:{_any_of(_MARKERS['payload'])})\s*+(?=\[)")
"""A marker that is followed by a JSON list of calls."""
_OUTER = ("payload", "section")
_NAME_BEFORE_JSON = re.compile(r"([\w.-]{1,200})\s*+(?:\[ARGS\])?\s*+(?=\{)")
_FENCE_OPEN = re.compile(r"\s*+(?:```[\w-]*\s*+)?")
_TAG_NAME = re.compile(r'"?([^\s"<>=]{1,200})"?\s*+>\s*+')
_TAG_PARAMETER = re.compile(r'\s*+<parameter(?:=| name=)"?([^\s"<>=]{1,200})"?\s*+>')
_TAG_VALUE_END = re.compile(r"</parameter>|(?=<parameter[ =]|</function>|</invoke>)")
_TAG_CLOSINGS = ("</function>", "</invoke>", "</tool_call>")
_TOKEN_NAME = re.compile(
    r"\s*+(?:function<｜tool▁sep｜>)?\s*+(?:functions\.)?([^\s<:]{1,200})(?::\d{1,9})?\s*+"
    r"(?:<\|tool_call_argument_begin\|>|<｜tool▁sep｜>)?"
)


def read_markup(text: str, calls: re.Pattern[str]) -> RawCall | Problem | None:
    """The first call in a model family's own markup or special tokens.

    Args:
        text: The reply.
        calls: What begins a call in text, from :func:`call_pattern`; some families write one in a tag.
    """
    match = _OPENING.search(text)
    if match is None:
        return None
    while match.lastgroup in _OUTER and (inner := _OPENING.match(text, skip_space(text, match.end()))):
        match = inner  # the marks of sections and of single calls stand side by side
    kind = match.lastgroup
    if kind == "tagged":
        call = _read_tagged(text, match.end())
    elif kind == "token":
        call = _read_token_call(text, match.end(), match.group())
    else:
        call = _read_payload(text, match.end(), match.group(), calls)
    if isinstance(call, RawCall):
        call.start = match.start()
        call.extra += sum(more.lastgroup == kind for more in _OPENING.finditer(text, call.end))
    return call


def _read_payload(text: str, start: int, opening: str, calls: re.Pattern[str]) -> RawCall | Problem:
    """A call after an opening tag or token: JSON, a name with JSON or tags, or a call in text."""
    fence = _FENCE_OPEN.match(text, start)
    at = fence.end() if fence else start
    if at >= len(text):
        return Problem(ErrorKind.INCOMPLETE, f"the reply ends after `{opening}`")
    closing = _closing(text, at, opening)
    if text[at] == "{":
        return _read_payload_json(text, at, opening, closing)
    named = _NAME_BEFORE_JSON.match(text, at)
    if named:
        return _read_named_json(text, named.group(1), named.end())
    if text.startswith("<arg_key>", _name_end(text, at)):
        return _read_glm(text, at, closing)
    call = read_text_call(text[:closing], calls, at)
    if call is not None:
        return call
    if text[at] == "[":
        return _read_payload_json(text, at, opening, closing)
    message = f"after `{opening}` stands no call but `{shown(text[at : at + 40])}`"
    return Problem(ErrorKind.BROKEN_CALL, message)


def _read_payload_json(text: str, at: int, opening: str, closing: int) -> RawCall | Problem:
    """A call in JSON, or a list of them, at ``at``."""
    decoded = read_json(text, at)
    if isinstance(decoded, Problem):
        # With its closing tag it is not cut off: something is missing inside.
        if decoded.kind is not ErrorKind.WRONG_TYPE and closing < len(text) and decoded.end >= closing:
            message = f"the JSON after `{opening}` is broken: a quote or a brace is not closed"
            return Problem(ErrorKind.BROKEN_JSON, message, tool=decoded.tool)
        return decoded
    call = call_from_json(decoded[0])
    if isinstance(call, RawCall):
        call.end = decoded[1]
    message = f'the JSON after `{opening}` is not a call: it needs a "name" and "arguments"'
    return call or Problem(ErrorKind.BROKEN_JSON, message)


def _closing(text: str, start: int, opening: str) -> int:
    """Where the closing tag of ``opening`` begins, or the end of the text."""
    if opening.startswith("<|") or opening.startswith("["):
        return len(text)
    found = text.find("</" + opening[1:], start)
    return found if found >= 0 else len(text)


def _read_tagged(text: str, start: int) -> RawCall | Problem:
    """``<function=name>`` with ``<parameter=x>value</parameter>`` (Qwen3-Coder) or with JSON (Llama 3.1)."""
    match = _TAG_NAME.match(text, start)
    if match is None:
        kind = ErrorKind.INCOMPLETE if ">" not in text[start : start + 300] else ErrorKind.BROKEN_CALL
        return Problem(kind, "after `<function=` must stand a tool's name and `>`")
    name, at = match.group(1), match.end()
    if text.startswith("{", at):
        return _read_named_json(text, name, at)
    keywords: dict[str, Any] = {}
    while parameter := _TAG_PARAMETER.match(text, at):
        stop = _TAG_VALUE_END.search(text, parameter.end())
        if stop is None:
            message = f"the value of `{shown(parameter.group(1))}` is cut off: close it with `</parameter>`"
            return Problem(ErrorKind.INCOMPLETE, message, tool=name)
        # The format sets each value between two line breaks that are not part of it.
        value = text[parameter.end() : stop.start()].removeprefix("\n").removesuffix("\n")
        keywords[parameter.group(1)] = value
        at = stop.end()
    at = skip_space(text, at)
    if text.startswith(_TAG_CLOSINGS, at):
        return RawCall(name, keywords, end=at)
    if _is_cut(text, at):
        message = f"the call of `{shown(name)}` is cut off: close it with `</function>`"
        return Problem(ErrorKind.INCOMPLETE, message, tool=name)
    message = f"in the call of `{shown(name)}` stands `{shown(text[at : at + 40])}`, which is no parameter"
    return Problem(ErrorKind.BROKEN_CALL, message, tool=name)


def _is_cut(text: str, at: int) -> bool:
    """Whether at ``at`` the text ends, or a tag begins that its end cuts off."""
    return at >= len(text) or (text[at] == "<" and len(text) - at < 40 and ">" not in text[at:])


def _read_token_call(text: str, start: int, opening: str) -> RawCall | Problem:
    """Kimi K2's and DeepSeek's calls: special tokens around a name and a JSON object."""
    match = _TOKEN_NAME.match(text, start)
    fence = _FENCE_OPEN.match(text, match.end()) if match else None
    if match is None or fence is None or _is_cut(text, fence.end()):
        return Problem(ErrorKind.INCOMPLETE, f"the reply ends within the call after `{opening}`")
    if text[fence.end()] != "{":
        if text.startswith(("<|tool_call_end|>", "<｜tool▁call▁end｜>"), fence.end()):
            return RawCall(match.group(1), {}, end=fence.end())
        message = f"the arguments of `{shown(match.group(1))}` must be a JSON object"
        return Problem(ErrorKind.BROKEN_JSON, message, tool=match.group(1))
    return _read_named_json(text, match.group(1), fence.end())


def _read_named_json(text: str, name: str, at: int) -> RawCall | Problem:
    """The arguments at ``at`` of a call whose name stood before them."""
    decoded = read_json(text, at)
    if isinstance(decoded, Problem):
        decoded.tool = name
        return decoded
    return RawCall(name, decoded[0], end=decoded[1])


_GLM_NAME = re.compile(r"[^\s<]{1,200}\s*+")
_GLM_PAIR = re.compile(r"\s*+<arg_key>([^<]{1,200})</arg_key>\s*+<arg_value>")


def _name_end(text: str, at: int) -> int:
    match = _GLM_NAME.match(text, at)
    return match.end() if match else at


def _read_glm(text: str, at: int, closing: int) -> RawCall | Problem:
    """GLM's ``name<arg_key>x</arg_key><arg_value>value</arg_value>`` within a ``<tool_call>``."""
    name_end = _name_end(text, at)
    call = RawCall(text[at:name_end].strip(), {}, end=name_end)
    while pair := _GLM_PAIR.match(text, call.end):
        stop = text.find("</arg_value>", pair.end())
        if stop < 0:
            message = f"the value of `{shown(pair.group(1))}` is cut off: close it with `</arg_value>`"
            return Problem(ErrorKind.INCOMPLETE, message, tool=call.name)
        call.keywords[pair.group(1).strip()] = text[pair.end() : stop]
        call.end = stop + len("</arg_value>")
    if closing == len(text):
        return Problem(
            ErrorKind.INCOMPLETE, "the call is cut off: close it with `</tool_call>`", tool=call.name
        )
    return call
