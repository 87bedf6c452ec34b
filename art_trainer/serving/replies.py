"""What a client sees of what was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from art_trainer.serving.live_sampler import Sampled
from art_trainer.serving.messages import ChatMessage, ToolCall
from art_trainer.serving.tool_calls import split_reply


class ChatReply(Protocol):
    """A reply as answers are made of it."""

    @property
    def message(self) -> ChatMessage:
        """What the client sees."""

    @property
    def sampled(self) -> Sampled:
        """Its tokens."""

    @property
    def cut(self) -> bool:
        """Whether it ran into the limit of tokens."""


@dataclass(frozen=True, slots=True)
class SeenReply:
    """A reply that nobody records; a :class:`ChatReply`."""

    message: ChatMessage
    sampled: Sampled

    @property
    def cut(self) -> bool:
        """Whether it ran into the limit of tokens."""
        return is_cut(self.sampled)


@dataclass(frozen=True, slots=True)
class Ends:
    """Texts that end a reply."""

    dropped: tuple[str, ...] = ()
    """Those that are no part of what the client sees."""
    kept: tuple[str, ...] = ()
    """Those that are."""

    @property
    def strings(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.dropped, *self.kept)

    def cut(self, text: str) -> str:
        """The text up to the string that is complete first, with it or without."""
        return _up_to(_up_to(text, self.dropped), self.kept, keep=True)


def is_cut(sampled: Sampled) -> bool:
    """Whether a reply ran into the limit of tokens."""
    return not (sampled.stopped or sampled.said_stop)


def seen_message(
    text: str, ends: Ends, tools: Sequence[str], *, call_stem: str, one_call: bool = False
) -> ChatMessage:
    """A reply as an assistant's message.

    Args:
        text: All that was said.
        ends: What ended it.
        tools: Names of the tools that the model was shown.
        call_stem: What the ids of its tool calls begin with.
        one_call: Whether the client takes no more than one tool call.
    """
    seen = split_reply(ends.cut(text), tools)
    written = seen.calls[:1] if one_call else seen.calls
    calls = tuple(
        ToolCall(f"{call_stem}_{index}", name, arguments) for index, (name, arguments) in enumerate(written)
    )
    return ChatMessage("assistant", seen.content, calls)


def _up_to(text: str, stops: Sequence[str], *, keep: bool = False) -> str:
    found = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    if not found:
        return text
    end, start = min(found)
    return text[: end if keep else start]
