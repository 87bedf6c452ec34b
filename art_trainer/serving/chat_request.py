"""A request for a chat completion, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art_trainer.serving.messages import ChatMessage
from art_trainer.serving.terms import Terms, refuse_all_but, typed
from art_trainer.web.errors import ApiError

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "functions": ([],),
    "audio": (),
    "prediction": (),
    "modalities": (["text"],),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "echo": (False,),
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for a chat completion."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Mapping[str, Any], ...]
    """What the model is shown of the tools; none where it must not call any."""
    one_call: bool
    """Whether the client takes no more than one tool call."""
    terms: Terms

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> ChatRequest:
        """Check a request's body.

        Raises:
            ApiError: Where a field is of a wrong type, or asks for what is not offered.
        """
        refuse_all_but(body, _NEUTRAL)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ApiError("messages is a list with at least one message", param="messages")
        return cls(
            messages=tuple(ChatMessage.read(m, f"messages[{i}]") for i, m in enumerate(messages)),
            tools=_tools(body),
            one_call=typed(body, "parallel_tool_calls", bool) is False,
            terms=Terms.read(body, _logprobs(body)),
        )

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Names of the tools that the model is shown."""
        return tuple(str(tool["function"]["name"]) for tool in self.tools)


def _logprobs(body: Mapping[str, Any]) -> int | None:
    wanted, alternatives = typed(body, "logprobs", bool), typed(body, "top_logprobs", int)
    if alternatives and not wanted:
        raise ApiError(f"top_logprobs is {alternatives}: send logprobs=true with it", param="top_logprobs")
    return (alternatives or 0) if wanted else None


def _tools(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        words = f"tool_choice={choice!r} is not offered here: send 'auto' or 'none'"
        raise ApiError(words, param="tool_choice")
    tools: Sequence[Any] = typed(body, "tools", list) or []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            place = f"tools[{index}]"
            raise ApiError(f"{place} has no function with a name", param=place)
    return () if choice == "none" else tuple(tools)
