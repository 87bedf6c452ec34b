"""What the policy read and said in one episode, token by token, whatever became of the conversations.

An agent may hold several conversations (sub-agents), go back to an earlier point (branches) and rewrite its
history. Every reply is a node with the context that led to it. A request that begins with a conversation as
it was when a reply was given continues that reply's tokens; any other begins a context of its own. Where two
contexts begin alike, the replies they share are learned from once, in the first of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jinja2

from art_trainer.agent_server.fingerprints import chain, extended
from art_trainer.decoding import TokenSequence
from art_trainer.episodes import TokenHistory, Turn
from art_trainer.serving.agent_chat import AgentChat
from art_trainer.serving.errors import ContextFull
from art_trainer.serving.live_sampler import Sampled
from art_trainer.serving.messages import ChatMessage
from art_trainer.serving.replies import Ends, is_cut, seen_message
from art_trainer.timings import TurnTiming
from art_trainer.token_thread import TokenThread
from art_trainer.web.errors import ApiError

_ID_LENGTH = 20
_NO_ENDS = Ends()


@dataclass(eq=False, slots=True)
class Reply:
    """One reply of the policy, and the context that it ends.

    Attributes:
        number: Which reply of the episode it is, from 0.
        parent: The reply that it follows.
        anew: Whether its context does not continue the parent's, since the template rewrites the past.
        message: The reply as the client sees it.
        sampled: Its tokens.
        text: All that was said, as sampled.
        cut: Whether it ran into the limit of tokens.
        messages: The conversation as the template writes it, the reply included.
        digest: The conversation's, the reply included.
        thread: The context's tokens, the reply included.
        sequence: What the decoder has computed of them, until a request takes it over.
        asked: What the client said to get this reply, since the parent's.
        asked_at: When it did, by :func:`time.monotonic`.
        replied_at: When the reply was there.
        delivered: Whether the client got it; a reply that nobody got was not acted on.
    """

    number: int
    parent: Reply | None
    anew: bool
    message: ChatMessage
    sampled: Sampled
    text: str
    cut: bool
    messages: list[dict[str, Any]]
    digest: bytes
    thread: TokenThread
    sequence: TokenSequence | None
    asked: str
    asked_at: float
    replied_at: float
    delivered: bool = False


@dataclass(eq=False, slots=True)
class Opened:
    """A request whose context is read and waits for its reply."""

    parent: Reply | None
    anew: bool
    messages: list[dict[str, Any]]
    tools: tuple[str, ...]
    thread: TokenThread
    sequence: TokenSequence
    digest: bytes = b""
    """The conversation's."""
    asked: str = ""
    """What the client said since the parent."""
    repeat: int = 0
    """How many earlier requests had the same conversation."""
    asked_at: float = field(default_factory=time.monotonic)

    @property
    def context(self) -> list[int]:
        """All tokens to be read."""
        return list(self.thread.context)


class Recording:
    """An episode's replies and their contexts.

    Args:
        chat: How messages become tokens.
        max_context: Most tokens of a context and its reply together; ``None`` for any.
    """

    def __init__(self, chat: AgentChat, max_context: int | None) -> None:
        self._chat = chat
        self._max_context = max_context
        self._replies: dict[bytes, list[Reply]] = {}
        self._in_order: list[Reply] = []
        self._opened: Counter[bytes] = Counter()
        self.first_words = ""
        self.first_tools: tuple[Mapping[str, Any], ...] = ()

    def open(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
        *,
        reply_length: int,
        version: int,
    ) -> Opened:
        """Read a request's messages.

        Args:
            messages: The conversation.
            tools: What the model is shown of the tools; none where it must not call any.
            reply_length: Most tokens the reply may have.
            version: Of the weights that read it.

        Raises:
            ContextFull: Where the reply would not fit.
            ApiError: Where the chat template refuses the messages.
        """
        digests = chain(messages, tools)
        longest = None if self._max_context is None else self._max_context - reply_length
        parent, known = self._find(messages, digests)
        opened = None
        if parent is not None:
            opened = self._continued(parent, messages[known:], tools, longest, version)
        if opened is None:
            opened = self._begun(messages, tools, longest, version)
        if not opened.thread.spans:
            raise ContextFull(self._max_context or 0, reply_length)
        opened.digest = digests[-1]
        opened.asked = "\n\n".join(message.content for message in messages[known:])
        if not self._opened:
            self.first_words, self.first_tools = opened.asked, tuple(tools)
        opened.repeat = self._opened[opened.digest]
        self._opened[opened.digest] += 1
        return opened

    def close(
        self,
        opened: Opened,
        sampled: Sampled,
        *,
        ends: Ends = _NO_ENDS,
        one_call: bool = False,
    ) -> Reply:
        """Record a request's reply.

        Args:
            opened: The request.
            sampled: What was sampled.
            ends: Texts that end the reply.
            one_call: Whether the client takes no more than one tool call.
        """
        number = len(self._in_order)
        thread = opened.thread
        thread.turn = number
        text = thread.reply(
            self._chat,
            sampled.token_ids,
            sampled.logprobs,
            stopped=sampled.stopped,
            version=sampled.version,
        )
        stem = f"call_{opened.digest.hex()[:_ID_LENGTH]}_{opened.repeat}"
        message = seen_message(text, ends, opened.tools, call_stem=stem, one_call=one_call)
        reply = Reply(
            number=number,
            parent=opened.parent,
            anew=opened.anew,
            message=message,
            sampled=sampled,
            text=text,
            cut=is_cut(sampled),
            messages=[*opened.messages, {"role": "assistant", "content": text}],
            digest=extended(opened.digest, message),
            thread=thread,
            sequence=opened.sequence,
            asked=opened.asked,
            asked_at=opened.asked_at,
            replied_at=time.monotonic(),
        )
        self._in_order.append(reply)
        self._replies.setdefault(reply.digest, []).append(reply)
        return reply

    def turns(self, reward: float) -> tuple[Turn, ...]:
        """The replies that a client got, the reward paid with the last of them."""
        replies = [reply for reply in self._in_order if reply.delivered]
        answers: dict[int, str] = {}
        for reply in replies:
            if reply.parent is not None:
                answers.setdefault(reply.parent.number, reply.asked)
        return tuple(
            Turn(
                reply=reply.text,
                observation=answers.get(reply.number, ""),
                reward=reward if reply is replies[-1] else 0.0,
                call=_first_call(reply.message),
                cut=reply.cut,
            )
            for reply in replies
        )

    def timings(self) -> tuple[TurnTiming, ...]:
        """How long each delivered reply took, and the agent until it came back with what it did with it.

        An agent's time is from the reply to the first request that continues it; the last reply has none.
        """
        replies = [reply for reply in self._in_order if reply.delivered]
        back_at: dict[int, float] = {}
        for reply in replies:
            if reply.parent is not None:
                back_at.setdefault(reply.parent.number, reply.asked_at)
        return tuple(
            TurnTiming(
                reply.replied_at - reply.asked_at,
                back_at[reply.number] - reply.replied_at if reply.number in back_at else None,
            )
            for reply in replies
        )

    def histories(self) -> tuple[TokenHistory, ...]:
        """All contexts that no other continues, each delivered reply sampled in exactly one of them."""
        replies = [reply for reply in self._in_order if reply.delivered]
        turns = {reply.number: turn for turn, reply in enumerate(replies)}
        continued = {id(reply.parent) for reply in replies if not reply.anew}
        learned: set[int] = set()
        histories = []
        for reply in replies:
            if id(reply) in continued:
                continue
            spans = []
            for span in reply.thread.spans:
                if span.turn is not None and span.turn not in learned:
                    learned.add(span.turn)
                    spans.append(replace(span, turn=turns[span.turn]))
                else:
                    spans.append(replace(span, turn=None, logprobs=()))
            histories.append(TokenHistory(tuple(spans)))
        return tuple(histories)

    def sequences(self) -> list[TokenSequence]:
        """What the decoder may still keep for this episode."""
        return [reply.sequence for reply in self._in_order if reply.sequence is not None]

    def _find(self, messages: Sequence[ChatMessage], digests: Sequence[bytes]) -> tuple[Reply | None, int]:
        """The newest reply that the messages continue, and how many of them it knows."""
        for known in range(len(messages) - 1, 0, -1):
            if messages[known].role == "assistant":
                return None, 0  # words put into the model's mouth
            replies = self._replies.get(digests[known])
            if replies:
                ids = [call.id for call in messages[known - 1].calls]
                exact = [r for r in replies if [call.id for call in r.message.calls] == ids]
                reply = (exact or replies)[-1]
                reply.delivered = True
                return reply, known
        return None, 0

    def _continued(
        self,
        parent: Reply,
        news: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
        longest: int | None,
        version: int,
    ) -> Opened | None:
        """The request as a continuation of a reply; ``None`` where the template cannot write it so."""
        full = [*parent.messages, *(message.for_template() for message in news)]
        old = parent.thread
        thread = TokenThread(list(old.spans), turn=old.turn, ended=old.ended, rewritten=old.rewritten)
        try:
            reading = thread.read(self._chat, full, tools, longest=longest, version=version)
        except jinja2.TemplateError:
            return None  # a template may want to see a call as a call before it takes the answer to it
        sequence = TokenSequence([], group=0)
        if reading is None:
            thread.spans = []
        elif parent.sequence is not None:
            sequence, parent.sequence = parent.sequence, None
        anew = reading is not None and reading.anew
        return Opened(parent, anew, full, _names(tools), thread, sequence)

    def _begun(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
        longest: int | None,
        version: int,
    ) -> Opened:
        full = [message.for_template() for message in messages]
        thread = TokenThread()
        try:
            thread.read(self._chat, full, tools, longest=longest, version=version)
        except jinja2.TemplateError as refused:
            words = f"the model's chat template refuses these messages: {refused}"
            raise ApiError(words, param="messages") from refused
        return Opened(None, True, full, _names(tools), thread, TokenSequence([], group=0))


def _names(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(str(tool["function"]["name"]) for tool in tools)


def _first_call(message: ChatMessage) -> dict[str, Any] | None:
    if not message.calls:
        return None
    return {"name": message.calls[0].name, "arguments": message.calls[0].arguments}
