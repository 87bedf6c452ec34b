"""Bind a call to its tool: check its name, types and required arguments."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from art_gym.errors import did_you_mean
from art_gym.parameters import Code, Parameter
from art_gym.parsing.formats import read_json
from art_gym.parsing.text_calls import Bare, ErrorKind, Problem, RawCall, call_pattern, shown, tag_pattern
from art_gym.tools import Tool


@dataclass(frozen=True, slots=True)
class Call:
    """A valid call.

    Attributes:
        name: The tool's name.
        arguments: The arguments that were given, converted to their types; defaults are not filled in.
        extra_calls: How many further calls the reply held; only the first counts.
        notes: How the parser corrected the call, such as an argument left at its default.
    """

    name: str
    arguments: dict[str, Any]
    extra_calls: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParseError:
    """A reply without a valid call.

    Attributes:
        kind: An :class:`ErrorKind`, or ``"refused"`` if a tool refused a valid call.
        message: What was wrong, where, and a call that would be right.
    """

    kind: str
    message: str


# --- what is known about the tools ----------------------------------------------------------------------


@dataclass(slots=True)
class ToolIndex:
    """What parsing needs to know about a set of tools, computed once."""

    tools: dict[str, Tool]
    calls: re.Pattern[str]
    tags: re.Pattern[str]
    parameters: dict[str, dict[str, Parameter]]
    required: dict[str, tuple[str, ...]]
    example: str
    code: dict[str, str] = field(default_factory=dict)
    """Tools that take code, with the name of that argument."""
    bare_words: dict[str, tuple[str, str, Any]] = field(default_factory=dict)
    """Whole replies that are a call, also in lower case: the tool, its argument ("" for none), the value."""
    numbers: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Tools whose one required argument is a number, by their name; under "" the only such tool."""
    word_tool: tuple[str, str] | None = None
    """The only tool and its only argument, if that is a required text: any single word is a call."""
    choice_tool: str = ""
    """The tool whose argument a bare word is."""


_INDICES: dict[tuple[int, ...], ToolIndex] = {}
_MOST_INDICES = 256


def index_of(tools: Mapping[str, Tool]) -> ToolIndex:
    """The index of a set of tools, built at its first use."""
    # An index holds on to its tools, so their ids stay theirs for as long as it is kept.
    key = tuple(map(id, tools.values()))
    index = _INDICES.get(key)
    if index is None:
        if len(_INDICES) >= _MOST_INDICES:
            _INDICES.clear()
        index = _INDICES[key] = _build_index({tool.name: tool for tool in tools.values()})
    return index


def _build_index(tools: dict[str, Tool]) -> ToolIndex:
    required = {tool.name: tuple(p.name for p in tool.parameters if p.required) for tool in tools.values()}
    index = ToolIndex(
        tools=tools,
        calls=call_pattern(tools),
        tags=tag_pattern(tools),
        parameters={name: {p.name: p for p in tool.parameters} for name, tool in tools.items()},
        required=required,
        example=next((tool.example() for tool in tools.values()), ""),
    )
    arguments = [p for tool in tools.values() for p in tool.parameters]
    if len(tools) == len(arguments) == 1 and arguments[0].kind is str and arguments[0].required:
        index.word_tool = (next(iter(tools)), arguments[0].name)
    single = []
    for name, tool in tools.items():
        code = next((p.name for p in tool.parameters if p.kind is Code), None)
        if code is not None:
            index.code[name] = code
        if not required[name]:
            index.bare_words[name.lower()] = (name, "", None)
        elif len(required[name]) == 1:
            parameter = index.parameters[name][required[name][0]]
            if parameter.kind is Literal or parameter.kind is int:
                single.append((name, parameter))
    for name, parameter in single:
        _add_bare_words(index, name, parameter, alone=len(single) == 1)
    return index


def _add_bare_words(index: ToolIndex, name: str, parameter: Parameter, *, alone: bool) -> None:
    """Let ``move left`` be a call, and ``left`` if no other tool could be meant."""
    prefixes = [f"{name.lower()} ", f"{name.lower()}: "] + [""] * alone
    if parameter.kind is int:
        index.numbers |= {prefix.rstrip(" :"): (name, parameter.name) for prefix in prefixes}
        return
    index.choice_tool = name if alone else ""
    for spelled in (str, str.lower):  # as it is first: choices may differ in case alone
        for choice, prefix in itertools.product(parameter.choices, prefixes):
            index.bare_words.setdefault(spelled(f"{prefix}{choice}"), (name, parameter.name, choice))


# --- checking the arguments -----------------------------------------------------------------------------


def bind(raw: RawCall, index: ToolIndex) -> Call | ParseError:
    """Check a call against its tool and convert its arguments."""
    name = raw.name if raw.name in index.tools else raw.name.removeprefix("functions.")
    if name not in index.tools:
        near = did_you_mean(name[:100], index.tools)
        return invalid(ErrorKind.UNKNOWN_TOOL, f"there is no tool `{shown(name)}`{near}", index.example)
    checked = _check(raw, name, index)
    if isinstance(checked, Problem):
        return invalid(checked.kind, checked.message, index.tools[name].example())
    return checked


def _check(raw: RawCall, name: str, index: ToolIndex) -> Call | Problem:
    """The typed call, or the first argument that is wrong, or those that are missing."""
    parameters = index.parameters[name]
    given = _place(raw, name, parameters) if raw.positional else raw.keywords
    if isinstance(given, Problem):
        return given
    arguments: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    for key, value in given.items():
        parameter = parameters.get(key)
        if parameter is None:
            near = did_you_mean(key[:100], parameters) or "; it takes none"
            message = f"`{name}` has no argument `{shown(key)}`{near}"
            return Problem(ErrorKind.UNEXPECTED_ARGUMENT, message)
        if value is None and not parameter.required and not parameter.optional:
            notes += (f"`{key}` was left at its default",)
            continue
        try:
            arguments[key] = _convert(value.strip() if raw.strip and type(value) is str else value, parameter)
        except ValueError as error:
            return Problem(ErrorKind.WRONG_TYPE, f"`{name}`: {error}")
        except RecursionError:
            return Problem(ErrorKind.WRONG_TYPE, f"`{name}`: `{key}` is nested too deeply")
    missing = [f"`{key}`" for key in index.required[name] if key not in arguments]
    if missing:
        message = f"`{name}` needs {' and '.join(missing)}; its usage is {index.tools[name].usage()}"
        return Problem(ErrorKind.MISSING_ARGUMENT, message)
    return Call(name, arguments, raw.extra, notes)


def _place(raw: RawCall, name: str, parameters: dict[str, Parameter]) -> dict[str, Any] | Problem:
    """Give positional arguments their names."""
    if len(raw.positional) == 1 and not raw.keywords and isinstance(raw.positional[0], dict):
        return raw.positional[0]  # search({"query": "budget"})
    if len(raw.positional) > len(parameters):
        most = f"{len(parameters)} argument{'s' * (len(parameters) != 1)}"
        message = f"`{name}` takes at most {most}, not {len(raw.positional)}"
        return Problem(ErrorKind.UNEXPECTED_ARGUMENT, message)
    placed = dict(zip(parameters, raw.positional, strict=False))
    twice = placed.keys() & raw.keywords.keys()
    if twice:
        return Problem(ErrorKind.UNEXPECTED_ARGUMENT, f"`{name}` got `{min(twice)}` twice")
    return placed | raw.keywords


_LONGEST_CHOICE = 200


def _convert(value: Any, parameter: Parameter) -> Any:
    """Convert what was written to the parameter's type; raises ``ValueError`` with a message."""
    if isinstance(value, str):
        if type(value) is Bare:
            if parameter.kind in (str, Code, list):
                raise ValueError(f'the text of `{parameter.name}` needs quotes: "{shown(value)}"')
            value = str(value)
        if parameter.choices and len(value) > _LONGEST_CHOICE:
            known = did_you_mean("", map(str, parameter.choices))
            raise ValueError(f"`{parameter.name}` cannot be {shown(value)}{known}")
        if parameter.kind is list and value.lstrip().startswith("["):
            decoded = read_json(value.strip(), 0)
            value = value if isinstance(decoded, Problem) else decoded[0]
    converted = parameter.convert(value)
    for text in converted if isinstance(converted, list) else (converted,):
        if isinstance(text, str) and not text.isascii():
            _check_encodable(text, parameter.name)
    return converted


def _check_encodable(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"`{name}` holds half a character (a lone surrogate) at {error.start}") from None


# --- messages -------------------------------------------------------------------------------------------

_LONGEST_MESSAGE = 600


def invalid(kind: ErrorKind, message: str, example: str) -> ParseError:
    """An error in full sentences, of bounded length, with a valid call at its end."""
    message = message[:1].upper() + message[1:]
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + "…"
    message = f"{message}{'' if message.endswith(('?', '.', '!')) else '.'}"
    if example:
        message += f" A valid call: {example}"
    return ParseError(kind, message if message.isascii() else message.encode("utf-8", "replace").decode())
