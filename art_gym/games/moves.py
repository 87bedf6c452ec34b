"""The result of a move in a game, and the seats that a tool is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from art_gym.base import add_terms
from art_gym.errors import ToolDeclarationError, did_you_mean
from art_gym.parsing.parser import Call, parse
from art_gym.tools import Tool, collect_tools

_Method = TypeVar("_Method", bound=Callable[..., Any])
_SEATS = "__art_seats__"


@dataclass(frozen=True, slots=True)
class MoveResult:
    """The result of a move; a tool of a game returns it.

    Attributes:
        messages: Messages to seats, by seat. A seat sees its message with its next observation.
        score_terms: Named parts of seats' rewards, by seat; a seat's reward is their sum.
        next: The seat to move now; ``None`` for the one after the seat that moved.
        ends: Whether the game is over.
        success: The seats that reached their goal; read when the game ends.
        metrics: Named numbers about the game, reported when it ends.
    """

    messages: Mapping[str, str] = field(default_factory=dict)
    score_terms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    next: str | None = None
    ends: bool = False
    success: frozenset[str] = frozenset()
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        said, terms = self.messages, self.score_terms
        if not (isinstance(said, Mapping) and all(isinstance(text, str) for text in said.values())):
            raise TypeError(f"the messages of a MoveResult must be texts by seat, not {said!r}")
        if not (isinstance(terms, Mapping) and all(isinstance(own, Mapping) for own in terms.values())):
            raise TypeError(f"the score_terms of a MoveResult are {{seat: {{name: number}}}}, not {terms!r}")
        if isinstance(self.success, str | bool):
            raise TypeError(f"the success of a MoveResult must be a set of seats, not {self.success!r}")

    def after(self, earlier: MoveResult) -> MoveResult:
        """Merge this with an earlier result: messages are joined by line, score terms are added.

        ``next``, ``ends`` and ``success`` are this result's.
        """
        messages = {
            name: "\n".join(filter(None, (earlier.messages.get(name), self.messages.get(name))))
            for name in {**earlier.messages, **self.messages}
        }
        terms = {name: dict(earlier.score_terms.get(name, {})) for name in earlier.score_terms}
        for name, added in self.score_terms.items():
            add_terms(terms.setdefault(name, {}), added)
        metrics = {**earlier.metrics, **self.metrics}
        return MoveResult(messages, terms, self.next, self.ends, self.success, metrics)


def seat(*names: str) -> Callable[[_Method], _Method]:
    """Limit a tool to some seats; write it above ``@tool``. Without it a tool is for every seat."""

    def mark(method: _Method) -> _Method:
        setattr(method, _SEATS, names)
        return method

    return mark


def seat_tools(cls: type, seats: Sequence[str]) -> dict[str, dict[str, Tool]]:
    """The tools that a class declares, by seat and name."""
    if isinstance(seats, str):
        raise ToolDeclarationError(f"{cls.__name__}.seats must be a tuple, as in ({seats!r},), not a text")
    found: dict[str, dict[str, Tool]] = {name: {} for name in seats}
    for name, item in collect_tools(cls).items():
        for where in getattr(getattr(cls, name), _SEATS, seats):
            if where not in found:
                raise ToolDeclarationError(
                    f"tool `{name}` is for the seat `{where}`{did_you_mean(where, seats)}"
                )
            found[where][name] = item
    for where, tools in found.items():
        if not tools:
            raise ToolDeclarationError(f"{cls.__name__} has no tool for the seat `{where}`; mark one: @tool")
    return found


def read_choices(choices: Sequence[str], tools: Mapping[str, Tool]) -> tuple[Call, ...]:
    """The calls that a seat's choices stand for."""
    calls = []
    for reply in choices:
        read = parse(reply, tools)
        if not isinstance(read, Call):
            raise ToolDeclarationError(f"the choice {reply!r} is no valid reply: {read.message}")
        calls.append(read)
    return tuple(calls)
