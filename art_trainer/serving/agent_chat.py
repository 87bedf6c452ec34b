"""A chat format for conversations that others write: with tools' answers and with several messages a turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from art_trainer.chat import ChatFormat, Message, Tools

_SAID, _SEEN, _CALLED = "placeholder reply said", "what the tool answered", "called_tool_name"


class AgentChat(ChatFormat):
    """A tokenizer's way of writing an agent's conversations.

    The agent decides what the model sees, so a history window that was saved with the tokenizer does not
    count. Where the template has no place for a tool's answer, the user says it; where it has none for calls
    that the model did not sample here, they are written into the words as Hermes and Qwen write them.

    Args:
        tokenizer: As for :class:`~art_trainer.chat.ChatFormat`.

    Raises:
        ValueError: As for :class:`~art_trainer.chat.ChatFormat`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._folds_calls = self._folds_answers = False
        super().__init__(tokenizer)
        self.history_window = None
        self._folds_calls = not self._writes(_CALLED)
        self._folds_answers = not self._writes(_SEEN)

    def render(
        self, messages: Sequence[Message], tools: Tools = (), *, add_generation_prompt: bool = False
    ) -> str:
        """The conversation as the template's text.

        Raises:
            jinja2.TemplateError: Where the template refuses it, such as for the order of its roles.
        """
        if self._folds_calls:
            messages = [_call_as_words(message) for message in messages]
        if self._folds_answers:
            messages = _answers_as_users(messages)
        return super().render(messages, tools, add_generation_prompt=add_generation_prompt)

    def continuation(
        self, messages: Sequence[Message], tools: Tools = (), *, appended_only: bool = False
    ) -> list[int] | None:
        """The tokens between the last reply's end-of-turn token and the start of the next reply.

        Args:
            messages: A conversation whose last message of an assistant is the reply, as it was sampled;
                behind it stands at least one other message.
            tools: The same as in :meth:`prompt`.
            appended_only: Makes no difference: the conversation is rendered in any case.

        Returns:
            The tokens to append; ``None`` where the template writes the past otherwise now that there is
            more, so that the conversation has to be rendered anew.
        """
        place = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
        before, after = messages[:place], messages[place + 1 :]
        past = self.render(before, tools, add_generation_prompt=True).rstrip()
        probed = self.render(
            [*before, {"role": "assistant", "content": _SAID}, *after], tools, add_generation_prompt=True
        )
        said, found, tail = probed[len(past) :].partition(_SAID)
        if not probed.startswith(past) or said.strip() or not found or not tail.startswith(self._end_text):
            return None
        now = self.render(messages, tools, add_generation_prompt=True)
        long_enough = len(past) + len(tail) <= len(now)
        if not (long_enough and now.startswith(past) and now.endswith(tail)):
            return None
        # Space around a reply is as it was sampled, whatever the template makes of it.
        if now[len(past) : len(now) - len(tail)].strip() != str(messages[place]["content"]).strip():
            return None
        return self.encode(tail.removeprefix(self._end_text))

    def _writes(self, mark: str) -> bool:
        """Whether the template writes a call's name, or a tool's answer."""
        call = {"id": "call_0", "type": "function", "function": {"name": _CALLED, "arguments": {}}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "a question"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": _SEEN, "tool_call_id": "call_0", "name": _CALLED},
        ]
        if mark == _CALLED:
            messages.pop()
        elif self._folds_calls:
            messages[1] = {"role": "assistant", "content": _SAID}
        try:
            return mark in self.render(messages)
        except jinja2.TemplateError:
            return False


def _call_as_words(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [
        f'<tool_call>{{"name": {json.dumps(call["function"]["name"])}, '
        f'"arguments": {_as_json(call["function"]["arguments"])}}}</tool_call>'
        for call in message["tool_calls"]
    ]
    words = [message["content"]] if message["content"] else []
    return {"role": message["role"], "content": "\n".join([*words, *calls])}


def _as_json(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _answers_as_users(messages: Sequence[Message]) -> list[Message]:
    """Tools' answers as a user's words, those that follow each other, and what the user adds, as one."""
    merged: list[Message] = []
    answers = False
    for message in messages:
        is_answer = message["role"] == "tool"
        if (is_answer or message["role"] == "user") and answers:
            merged[-1] = {"role": "user", "content": f"{merged[-1]['content']}\n{message['content']}"}
            continue
        merged.append({"role": "user", "content": message["content"]} if is_answer else message)
        answers = is_answer
    return merged
