"""Token-exact record of what a policy read and sampled in one episode.

An agent may hold several conversations (sub-agents), go back to an earlier point (branches) and rewrite its
history. Each reply is a node with the context that led to it. A request that starts with the messages of a
recorded reply continues that reply's tokens; any other starts a new context. If two contexts share replies,
these are trained on once, in the first context.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import jinja2

from art_trainer.models.chat_template import TokenHistoryBuilder, Tools
from art_trainer.serving.dialects.batch_scheduler import GenerationOutput
from art_trainer.serving.dialects.chat import AgentChat, ContextFullError
from art_trainer.serving.dialects.conversation import ChatMessage, template_error
from art_trainer.types import TokenHistory, Turn


def fingerprint(message: ChatMessage) -> str:
    """Return a key that is equal for all ways in which a client may write the same message.

    Clients differ in content parts, ``null`` content, spaces and key order in the JSON of arguments. Ids of
    tool calls are left out, since a client may make its own, and space around an assistant's text, since many
    strip it.
    """
    if message.role == "assistant":
        calls = [[call.function.name, call.function.parsed()] for call in message.tool_calls]
        return _canonical(["assistant", message.content.strip(), calls])
    return _canonical([message.role, message.content, message.name])


def _prefix_digests(messages: Sequence[ChatMessage], tools: Tools) -> list[bytes]:
    """A digest of each prefix of a conversation, from the empty one to the whole."""
    empty = hashlib.sha256(_canonical(list(tools)).encode()).digest()
    return list(accumulate(messages, _extend, initial=empty))


def _extend(digest: bytes, message: ChatMessage) -> bytes:
    return hashlib.sha256(digest + fingerprint(message).encode()).digest()


def _canonical(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))


def _call_ids(message: ChatMessage) -> list[str]:
    return [call.id for call in message.tool_calls]


@dataclass(eq=False, slots=True)
class OpenRequest:
    """A request whose context is encoded and that waits for its reply.

    Attributes:
        parent: The reply that it continues.
        restarted: Whether its context does not extend the parent's tokens, since the template writes
            earlier messages differently.
        messages: The conversation for the template.
        history: The context's tokens.
        digest: The conversation's digest.
        new_text: What the client said since the parent.
        repeat: How many earlier requests had the same conversation.
    """

    parent: Reply | None
    restarted: bool
    messages: list[dict[str, Any]]
    history: TokenHistoryBuilder
    digest: bytes = b""
    new_text: str = ""
    repeat: int = 0

    @property
    def id(self) -> str:
        """The request's name in the episode, equal for equal conversations with the same ``repeat``."""
        return f"{self.digest.hex()[:24]}-{self.repeat}"


@dataclass(eq=False, slots=True)
class Reply:
    """One reply of the policy.

    Attributes:
        number: Its number in the episode, from 0.
        request: What it answers; its messages and its history now include the reply.
        message: The reply as the client sees it.
        output: What was sampled.
        text: All that was sampled, as text.
        delivered: Whether the client received it; others are not trained on.
    """

    number: int
    request: OpenRequest
    message: ChatMessage
    output: GenerationOutput
    text: str
    delivered: bool = False


class Recording:
    """An episode's replies and their contexts.

    Args:
        chat: Turns messages into tokens.
        max_context: Most tokens of a context and its reply; ``None`` for no limit.
    """

    def __init__(self, chat: AgentChat, max_context: int | None) -> None:
        self._chat = chat
        self._max_context = max_context
        self._by_digest: dict[bytes, list[Reply]] = {}
        self._replies: list[Reply] = []
        self._final: list[Reply] | None = None
        self._opened: Counter[bytes] = Counter()
        self.first_text = ""
        self.first_tools: tuple[Mapping[str, Any], ...] = ()

    def open(
        self, messages: Sequence[ChatMessage], tools: Tools, *, reply_length: int, version: int
    ) -> OpenRequest:
        """Encode a request's messages.

        Args:
            messages: The conversation.
            tools: The tools that the model sees.
            reply_length: Most tokens of the reply.
            version: Of the weights that read it.

        Raises:
            ContextFullError: The reply would not fit.
            ApiError: The chat template refuses the messages.
        """
        digests = _prefix_digests(messages, tools)
        parent, known = self._find_parent(messages, digests)
        try:
            opened = self._encode(parent, messages[known:], tools, reply_length, version)
        except (jinja2.TemplateError, TypeError):
            try:  # some templates want a call in their own form before they take its answer
                opened = self._encode(None, messages, tools, reply_length, version)
            except (jinja2.TemplateError, TypeError) as error:
                raise template_error(error) from error
        opened.digest = digests[-1]
        opened.new_text = "\n\n".join(message.content for message in messages[known:])
        if not self._opened:
            self.first_text, self.first_tools = opened.new_text, tuple(tools)
        opened.repeat = self._opened[opened.digest]
        self._opened[opened.digest] += 1
        return opened

    def close(self, opened: OpenRequest, output: GenerationOutput, message: ChatMessage) -> Reply:
        """Record the reply to a request.

        Args:
            opened: The request.
            output: What was sampled.
            message: The reply as the client sees it.
        """
        opened.history.turn = len(self._replies)
        text = opened.history.append_reply(
            self._chat,
            output.run.token_ids,
            output.run.logprobs,
            stopped=output.stopped,
            version=output.version,
        )
        opened.messages = [*opened.messages, {"role": "assistant", "content": text}]
        reply = Reply(len(self._replies), opened, message, output, text)
        self._replies.append(reply)
        self._by_digest.setdefault(_extend(opened.digest, message), []).append(reply)
        return reply

    def end(self) -> None:
        """Take as delivered what is so by now: a request that is still open may change that at any time."""
        self._final = self._delivered

    def conversations(self) -> list[list[dict[str, Any]]]:
        """The messages of each context that no other extends, its reply as it was sampled."""
        return [reply.request.messages for reply in self._ends()]

    def turns(self, reward: float) -> tuple[Turn, ...]:
        """The delivered replies as turns, of which the last has the reward."""
        replies = self._delivered
        following: dict[Reply, OpenRequest] = {}
        for reply in replies:
            if reply.request.parent is not None:
                following.setdefault(reply.request.parent, reply.request)
        turns = []
        for reply in replies:
            then, is_last = following.get(reply), reply is replies[-1]
            call = reply.message.tool_calls[0].function.model_dump() if reply.message.tool_calls else None
            turns.append(
                Turn(
                    reply=reply.text,
                    observation=then.new_text if then else "",
                    reward=reward if is_last else 0.0,
                    call=call,
                    cut=reply.output.truncated,
                )
            )
        return tuple(turns)

    def histories(self) -> tuple[TokenHistory, ...]:
        """All contexts that no other extends; each delivered reply is trained on in exactly one of them."""
        turns = {reply.number: turn for turn, reply in enumerate(self._delivered)}
        trained: set[int] = set()
        histories = []
        for reply in self._ends():
            spans = []
            for span in reply.request.history.spans:
                if span.turn is not None and span.turn not in trained:
                    trained.add(span.turn)
                    spans.append(replace(span, turn=turns[span.turn]))
                else:
                    spans.append(replace(span, turn=None, logprobs=()))
            histories.append(TokenHistory(tuple(spans)))
        return tuple(histories)

    def _ends(self) -> list[Reply]:
        """The delivered replies whose context no other extends."""
        extended = {reply.request.parent for reply in self._delivered if not reply.request.restarted}
        return [reply for reply in self._delivered if reply not in extended]

    @property
    def _delivered(self) -> list[Reply]:
        return [reply for reply in self._replies if reply.delivered] if self._final is None else self._final

    def _find_parent(
        self, messages: Sequence[ChatMessage], digests: Sequence[bytes]
    ) -> tuple[Reply | None, int]:
        """The newest reply that the messages continue, and how many of them it covers."""
        for known in range(len(messages) - 1, 0, -1):
            if messages[known].role == "assistant":
                return None, 0  # an assistant's message that the policy did not write
            replies = self._by_digest.get(digests[known])
            if replies:
                ids = _call_ids(messages[known - 1])
                reply = ([one for one in replies if _call_ids(one.message) == ids] or replies)[-1]
                reply.delivered = True
                return reply, known
        return None, 0

    def _encode(
        self, parent: Reply | None, news: Sequence[ChatMessage], tools: Tools, reply_length: int, version: int
    ) -> OpenRequest:
        """Append messages to a reply's context, or begin a new one.

        Raises:
            jinja2.TemplateError, TypeError: The template cannot write the conversation that way.
        """
        past, history = [], TokenHistoryBuilder()
        if parent is not None:
            past = parent.request.messages
            history = replace(parent.request.history, spans=list(parent.request.history.spans), closed=[])
        messages = [*past, *(message.for_template() for message in news)]
        longest = None if self._max_context is None else self._max_context - reply_length
        reading = history.append_observation(self._chat, messages, tools, longest=longest, version=version)
        if reading is None:
            raise ContextFullError(self._max_context or 0, reply_length)
        return OpenRequest(parent, reading.restarted, messages, history)
