"""What games are made of: what a tool returns, and which seat it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from art_gym.errors import ToolDeclarationError, did_you_mean
from art_gym.parser import Call, parse
from art_gym.spaces import MAX_LENGTH
from art_gym.tools import Tool, collect_tools

_Method = TypeVar("_Method", bound=Callable[..., Any])
_SEATS = "__art_seats__"


@dataclass(frozen=True, slots=True)
class Ply:
    """What one seat's move did: what a tool of a game returns.

    Attributes:
        words: What seats are told, by seat; the others are told nothing. Each sees it when it looks next.
        score_terms: Named parts of seats' rewards, by seat; a seat's reward is their sum.
        next: The seat to move now; ``None`` for the one after the seat that moved.
        ends: Whether the game is over.
        success: The seats that reached their goal; read when the game ends.
        metrics: Named numbers about the game, reported when it ends.
    """

    words: Mapping[str, str] = field(default_factory=dict)
    score_terms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    next: str | None = None
    ends: bool = False
    success: frozenset[str] = frozenset()
    metrics: Mapping[str, float] = field(default_factory=dict)

    def after(self, earlier: Ply) -> Ply:
        """This and what came before it as one: words below each other, score terms added up.

        How the game goes on (``next``, ``ends``, ``success``) is as this one says.
        """
        words = {
            name: "\n".join(filter(None, (earlier.words.get(name), self.words.get(name))))
            for name in {**earlier.words, **self.words}
        }
        terms = {name: dict(earlier.score_terms.get(name, {})) for name in earlier.score_terms}
        for name, added in self.score_terms.items():
            add_terms(terms.setdefault(name, {}), added)
        metrics = {**earlier.metrics, **self.metrics}
        return Ply(words, terms, self.next, self.ends, self.success, metrics)


def seat(*names: str) -> Callable[[_Method], _Method]:
    """Say which seats a tool is for, above ``@tool``; without it a tool is for every seat."""

    def mark(method: _Method) -> _Method:
        setattr(method, _SEATS, names)
        return method

    return mark


def seat_tools(cls: type, seats: Sequence[str]) -> dict[str, dict[str, Tool]]:
    """The tools that a class declares, by seat and name.

    Raises:
        ToolDeclarationError: Where a tool is for a seat that there is not, or a seat has no tool.
    """
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
    """The calls that a seat's choices stand for.

    Raises:
        ToolDeclarationError: Where one of them is no valid call.
    """
    calls = []
    for reply in choices:
        read = parse(reply, tools)
        if not isinstance(read, Call):
            raise ToolDeclarationError(f"the choice {reply!r} is no valid reply: {read.message}")
        calls.append(read)
    return tuple(calls)


def add_terms(terms: dict[str, float], more: Mapping[str, float]) -> None:
    """Add score terms to others of the same names, in place."""
    for name, value in more.items():
        terms[name] = terms.get(name, 0.0) + float(value)


def require_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a value that is not one of those known, naming the near miss."""
    if value not in known:
        raise ValueError(f"{name} `{value}`{did_you_mean(str(value), known)}")


def fitting(text: str) -> str:
    """A text that fits its space: no lone surrogates, and where too long cut in the middle, in words."""
    text = text.encode(errors="replace").decode()
    if len(text) <= MAX_LENGTH:
        return text
    note = f"\n[… {len(text) - MAX_LENGTH} characters left out …]\n"
    half = (MAX_LENGTH - len(note)) // 2
    return text[:half] + note + text[-half:]
