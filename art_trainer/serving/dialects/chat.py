"""Chat template for conversations that agents write: with tools' answers and several messages a turn."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import Any, TypeVar

import jinja2
import jinja2.meta
from transformers import PreTrainedTokenizerBase

from art_gym.parsing.formats import write_call
from art_trainer.models.chat_template import ChatFormat, Message, Tools
from art_trainer.serving.dialects.replies import INCOMPLETE
from art_trainer.serving.http.middleware import ApiError

_Value = TypeVar("_Value")
_log = logging.getLogger(__name__)

_GENERATION_TAG = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
"""Marks replies for training; Jinja itself does not know it."""
_GIVEN = ("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now")
"""Variables that the rendering sets itself."""
_REPLY, _ANSWER, _TOOL = "placeholder reply said", "what the tool answered", "called_tool_name"
_CALL = {"id": "call_0", "type": "function", "function": {"name": _TOOL, "arguments": {}}}
_ASKED: Message = {"role": "user", "content": "a question"}
_CALLED: Message = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_ANSWERED: Message = {"role": "tool", "content": _ANSWER, "tool_call_id": "call_0", "name": _TOOL}
_SPACED = 'find("a b", n=1) ["c"] it\'s so.'


class ContextFullError(ApiError):
    """The prompt leaves no room for the reply.

    Args:
        limit: Most tokens of a prompt and its reply.
        reply: Most tokens the reply may have.
        param: The field that the prompt came from.
    """

    def __init__(self, limit: int, reply: int, param: str = "messages") -> None:
        # Starts with OpenAI's own sentence, by which client libraries recognise the error.
        super().__init__(
            f"this model's maximum context length is {limit} tokens, and the {param} leave less than the "
            f"{reply} that a reply may have: shorten the {param}, or ask for fewer tokens",
            "context_length_exceeded",
            param=param,
        )


class AgentChat(ChatFormat):
    """A tokenizer's chat template for an agent's conversations.

    The agent decides what the model sees, so a history window that was saved with the tokenizer is ignored.
    If the template cannot write a tool's answer, it becomes a user's message. If it cannot write tool calls,
    calls that were not sampled here are written in the format of Hermes and Qwen.

    Args:
        tokenizer: As for :class:`~art_trainer.models.chat_template.ChatFormat`.
        max_context: Most tokens of a prompt and its reply; ``None`` for no limit.

    Attributes:
        decodes_in_order: Whether the text of a reply's first tokens stays as it is when more tokens follow.
            Some tokenizers, as art-tiny's, take back the space before a quote or bracket.
        token_text: Gives the text of a single token.

    Raises:
        ValueError: As for :class:`~art_trainer.models.chat_template.ChatFormat`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_context: int | None = None) -> None:
        self._inline_calls = self._inline_answers = False
        self._told = True  # while the template is tried out
        self._max_context = max_context
        self._longest_token = max(map(len, tokenizer.get_vocab()))
        self._thread = ThreadPoolExecutor(1, "tokenizer")
        super().__init__(tokenizer)
        self.history_window = None
        self._inline_calls = not self._writes(_TOOL, [_ASKED, _CALLED])
        reply = {"role": "assistant", "content": _REPLY} if self._inline_calls else _CALLED
        self._inline_answers = not self._writes(_ANSWER, [_ASKED, reply, _ANSWERED])
        self.token_text = cache(lambda token: self.decode([token]))
        probe = super().encode(_SPACED)
        texts = [self.decode(probe[:count]).rstrip(INCOMPLETE) for count in range(len(probe) + 1)]
        self.decodes_in_order = all(texts[-1].startswith(text) for text in texts)
        self._told = self._lists_tools

    async def in_thread(self, work: Callable[[], _Value]) -> _Value:
        """Run something that encodes texts, without blocking the event loop: a long text takes seconds.

        All of it runs in one thread, since tokenizers are not thread-safe.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def encode(self, text: str, *, param: str = "messages", **options: Any) -> list[int]:
        """Tokenise text, unless it is so long that it cannot fit the context.

        Args:
            text: The text.
            param: The request's field that it comes from.
            **options: For the tokenizer, which adds no special tokens by default.

        Raises:
            ContextFullError: If it is too long.
        """
        limit = self._max_context
        if limit is not None and len(text) > limit * self._longest_token:
            raise ContextFullError(limit, 1, param)
        options = {"add_special_tokens": False, "return_attention_mask": False, **options}
        token_ids: list[int] = self.tokenizer(text, **options)["input_ids"]
        return token_ids

    @cached_property
    def variables(self) -> frozenset[str]:
        """What the template reads beside the conversation, such as ``enable_thinking``."""
        template = _GENERATION_TAG.sub("", self._template or self.tokenizer.get_chat_template())
        environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
        read = jinja2.meta.find_undeclared_variables(environment.parse(template))
        return frozenset(read).difference(_GIVEN, environment.globals, self.tokenizer.special_tokens_map)

    def render(
        self,
        messages: Sequence[Message],
        tools: Tools = (),
        *,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """Write the conversation with the template.

        Raises:
            jinja2.TemplateError: The template refuses it, for example for the order of its roles.
        """
        if tools and not self._told:
            self._told = True
            _log.warning("the model's chat template lists no tools, so it sees none: name them in a message")
        if self._inline_calls:
            messages = [_call_as_text(message) for message in messages]
        if self._inline_answers:
            messages = _answers_as_user_messages(messages)
        return super().render(messages, tools, add_generation_prompt=add_generation_prompt, **variables)

    def continuation(
        self, messages: Sequence[Message], tools: Tools = (), *, appended_only: bool = False
    ) -> list[int] | None:
        """The tokens between the last reply's end-of-turn token and the start of the next reply.

        Args:
            messages: A conversation whose last assistant message is the reply, as it was sampled, with at
                least one message after it.
            tools: The same as in :meth:`prompt`.
            appended_only: Not used: the conversation is always rendered.

        Returns:
            The tokens to append; ``None`` if the template now writes earlier messages differently, so that
            the whole conversation must be encoded again.
        """
        place = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
        before, after = messages[:place], messages[place + 1 :]
        past = self.render(before, tools, add_generation_prompt=True).rstrip()
        probed = self.render(
            [*before, {"role": "assistant", "content": _REPLY}, *after], tools, add_generation_prompt=True
        )
        said, found, tail = probed[len(past) :].partition(_REPLY)
        if not probed.startswith(past) or said.strip() or not found or not tail.startswith(self._end_text):
            return None
        now = self.render(messages, tools, add_generation_prompt=True)
        long_enough = len(past) + len(tail) <= len(now)
        if not (long_enough and now.startswith(past) and now.endswith(tail)):
            return None
        # Space around the reply stays as sampled, even if the template strips it.
        if now[len(past) : len(now) - len(tail)].strip() != str(messages[place]["content"]).strip():
            return None
        return self.encode(tail.removeprefix(self._end_text))


def _call_as_text(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [
        write_call(call["function"]["name"], json_text(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]
    text = [message["content"]] if message["content"] else []
    return {"role": message["role"], "content": "\n".join([*text, *calls])}


def json_text(value: object) -> str:
    """A value, such as a call's arguments, as JSON; a text is taken as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _answers_as_user_messages(messages: Sequence[Message]) -> list[Message]:
    """Turn tools' answers, and the user's text that follows, into one user message."""
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
