"""Tools: what an agent can do in an environment, declared once as a typed, documented method.

From that one declaration come the JSON schema for chat templates and servers, the usage line in the prompt,
the types the parser converts to, and the error messages for invalid calls.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, overload

from art_gym.errors import ToolDeclarationError, did_you_mean
from art_gym.parameters import SUPPORTED, Parameter, plain

_Method = TypeVar("_Method", bound=Callable[..., Any])
_MARK = "__art_tool__"
Examples = Mapping[str, Sequence[Any]]
"""Values that a tool takes, by the argument's name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a tool with rewards, an ending or metrics; a plain string is enough without them.

    Attributes:
        observation: The text that the agent sees.
        score_terms: Named parts of this turn's reward; the reward is their sum.
        ends: Whether the episode terminates here; ``None`` leaves it to the tool's declaration.
        success: Whether the task was solved; read when the episode ends.
        metrics: Named numbers reported when the episode ends.

    Raises:
        TypeError: If the observation is no text, or a term or metric no number.
    """

    observation: str
    score_terms: Mapping[str, float] = field(default_factory=dict)
    ends: bool | None = None
    success: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.observation, str):
            raise TypeError(f"the observation of an Outcome must be a str, not {self.observation!r}")
        for name in ("score_terms", "metrics"):
            given = getattr(self, name)
            if type(given) is dict and not given:
                continue
            try:
                numbers = {key: float(value) for key, value in given.items()}
            except (TypeError, ValueError, AttributeError) as error:
                wrong = f"the {name} of an Outcome must be a dict of names and numbers, not {given!r}"
                raise TypeError(wrong) from error
            object.__setattr__(self, name, numbers)


@dataclass(frozen=True, slots=True)
class Tool:
    """One thing an agent can do.

    Attributes:
        name: The method's name.
        description: The docstring's text before its first section.
        parameters: In the method's order, but required ones first: calls give those by position.
        ends: Whether a valid call ends the episode.
    """

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    ends: bool = False

    @classmethod
    def from_method(
        cls, method: Callable[..., Any], *, ends: bool, examples: Examples = types.MappingProxyType({})
    ) -> Tool:
        """Read a tool from a method's signature and Google-style docstring.

        Raises:
            ToolDeclarationError: If a type hint or a description is missing or not supported.
        """
        where = f"tool `{method.__name__}`"
        waits = inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method)
        if waits or not inspect.isfunction(method) or not inspect.signature(method).parameters:
            raise ToolDeclarationError(
                f"{where} must be an ordinary method with `self`, not async, a generator or static: what "
                "has to be awaited is run inside it, with asyncio.run"
            )
        if not isinstance(examples, Mapping):
            raise ToolDeclarationError(
                f"{where}: examples are by argument, as in {{'city': ['Paris', 'Lima']}}, not {examples!r}"
            )
        doc = inspect.getdoc(method)
        if not doc:
            raise ToolDeclarationError(f"{where} needs a docstring: it is what the model reads")
        try:
            hints = typing.get_type_hints(method)
        except NameError as error:
            raise ToolDeclarationError(
                f"{where}: {error}: what its type hints name must be imported or defined at the top of the "
                "file, and not under `if TYPE_CHECKING`"
            ) from error
        described = _described_arguments(doc)
        parameters = []
        for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ToolDeclarationError(
                    f"{where}: `{name}` must be an ordinary argument, not {parameter.kind}"
                )
            if name not in hints:
                raise ToolDeclarationError(f"{where}: `{name}` needs a type hint, as in `{name}: str`")
            if name not in described:
                raise ToolDeclarationError(f"{where}: describe `{name}` in the docstring's `Args:` section")
            read = _parameter(where, name, hints[name], described[name], parameter.default)
            parameters.append(_with_examples(where, read, examples.get(name, [])))
        for name in examples:
            known = [parameter.name for parameter in parameters]
            if name not in known:
                raise ToolDeclarationError(f"{where} has examples of `{name}`{did_you_mean(name, known)}")
        parameters.sort(key=lambda parameter: not parameter.required)  # of keyword-only ones any may be
        summary = " ".join(re.split(r"\n\s*\n|\n(?:Args|Returns|Raises):\n", doc.strip())[0].split())
        return cls(method.__name__, summary, tuple(parameters), ends)

    def schema(self) -> dict[str, Any]:
        """The tool in the format of OpenAI's ``tools`` and of chat templates; a fresh object at each call."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {parameter.name: parameter.schema() for parameter in self.parameters},
                    "required": [parameter.name for parameter in self.parameters if parameter.required],
                },
            },
        }

    def usage(self) -> str:
        """The signature as a model may write it, for instance ``search(query: str, limit: int = 5)``."""
        parts = []
        for parameter in self.parameters:
            default = "" if parameter.required else f" = {_literal(parameter.default)}"
            parts.append(f"{parameter.name}: {parameter.type_name}{default}")
        return f"{self.name}({', '.join(parts)})"

    def example(self, **given: Any) -> str:
        """A valid call with the required arguments, and those that are given."""
        return self.render({p.name: p.example() for p in self.parameters if p.required} | given)

    def render(self, arguments: Mapping[str, Any]) -> str:
        """Write a call with these arguments, required ones by position; the parser reads it back."""
        parts = []
        for parameter in self.parameters:
            if parameter.name in arguments:
                value = _literal(arguments[parameter.name])
                parts.append(value if parameter.required else f"{parameter.name}={value}")
        return f"{self.name}({', '.join(parts)})"


@overload
def tool(method: _Method, /) -> _Method: ...
@overload
def tool(*, ends: bool = ..., examples: Examples = ...) -> Callable[[_Method], _Method]: ...
def tool(
    method: _Method | None = None,
    /,
    *,
    ends: bool = False,
    examples: Examples = types.MappingProxyType({}),
) -> _Method | Callable[[_Method], _Method]:
    """Mark a method of a ``TextEnv`` as a tool.

    The method's name, type hints and Google-style docstring become the tool's schema. It returns the
    observation as a string, or an :class:`Outcome`; it raises ``ToolError`` to reject a call with a message.

    Args:
        method: The method, when used without parentheses.
        ends: Whether a valid call ends the episode.
        examples: Values that the tool takes, by argument, as in ``{"city": ["Paris", "Lima"]}``. The random
            player chooses among them. The model sees them in the schema: leave answers out.
    """

    def mark(marked: _Method) -> _Method:
        if not callable(marked):
            raise ToolDeclarationError(f"@tool takes ends=… and examples=…, not {marked!r}")
        setattr(getattr(marked, "__func__", marked), _MARK, {"ends": ends, "examples": examples})
        return marked

    return mark if method is None else mark(method)


def collect_tools(cls: type) -> dict[str, Tool]:
    """The tools a class declares or inherits, by name, base classes first and in order of declaration."""
    found: dict[str, Tool] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            # The mark of a function below @staticmethod is not the static method's own.
            declared = getattr(getattr(member, "__func__", member), _MARK, None)
            if declared is not None:
                found[name] = replace(Tool.from_method(member, **declared), name=name)
            elif name in found:  # overridden without the mark: no longer a tool
                del found[name]
    return found


def usage_lines(tools: Iterable[Tool]) -> str:
    """One line a tool: its signature and what it does."""
    return "\n".join(f"- {item.usage()}: {item.description}" for item in tools)


def _parameter(where: str, name: str, hint: Any, description: str, default: Any) -> Parameter:
    """Read one parameter from its type hint."""
    optional = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        optional = len(members) < len(typing.get_args(hint))
        if len(members) != 1:
            raise ToolDeclarationError(
                f"{where}: `{name}` can have one type, optionally with None, not {hint}"
            )
        hint = members[0]
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if len({type(choice) for choice in choices}) != 1 or type(choices[0]) not in (str, int):
            raise ToolDeclarationError(f"{where}: the choices of `{name}` must be all text or all int")
        return Parameter(name, Literal, description, default, optional, choices)
    items = typing.get_args(hint)  # of a bare `List` none
    if typing.get_origin(hint) is list and items and items[0] in SUPPORTED:
        return Parameter(name, list, description, default, optional, item=items[0])
    if hint not in SUPPORTED:
        supported = "str, int, float, bool, date, Code, list[…] of one of these, Literal[…], each | None"
        raise ToolDeclarationError(f"{where}: `{name}` has the type {hint}; supported are {supported}")
    return Parameter(name, hint, description, default, optional)


def _with_examples(where: str, parameter: Parameter, examples: Sequence[Any]) -> Parameter:
    """Add examples to a parameter; they and its default have to be of its type."""
    if not isinstance(examples, list | tuple):
        raise ToolDeclarationError(
            f"{where}: the examples of `{parameter.name}` must be a list, not {examples!r}"
        )
    default = [] if parameter.required or parameter.default is None else [parameter.default]
    for value in (*default, *examples):
        try:
            parameter.check(value)
        except ValueError as error:
            what = "default" if value in default else "example"
            raise ToolDeclarationError(f"{where}: the {what} {value!r} cannot be used: {error}") from error
    return replace(parameter, examples=tuple(map(parameter.convert, examples)))


def _described_arguments(doc: str) -> dict[str, str]:
    """The ``Args:`` section of a Google-style docstring as name → description."""
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)*)", doc, re.MULTILINE)
    described: dict[str, str] = {}
    if section is None:
        return described
    name = ""
    for line in textwrap.dedent(section.group(1)).split("\n"):
        start = re.match(r"(\w+)(?:\s*\([^)]*\))?:\s*(.*)", line)
        if start:
            name = start.group(1)
            described[name] = start.group(2).strip()
        elif name and line.strip():
            described[name] += " " + line.strip()
    return described


def _literal(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    return json.dumps(plain(value), ensure_ascii=False)
