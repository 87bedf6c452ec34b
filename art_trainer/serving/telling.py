"""How a request's replies are written while they are sampled, and when they are complete."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol

from art_trainer.serving.agent_chat import AgentChat
from art_trainer.serving.asked import Asked, Choice
from art_trainer.serving.chat_answer import ChatAnswer
from art_trainer.serving.completion_answer import CompletionAnswer
from art_trainer.serving.live_sampler import Sampled
from art_trainer.serving.replies import Ends, SeenReply, seen_message
from art_trainer.serving.tool_calls import speakable
from art_trainer.serving.wire import STREAM_END, server_sent
from art_trainer.web.errors import ApiError

Json = dict[str, Any]


class Telling(Protocol):
    """Writes the replies of one request."""

    def whole(self, sampled: Sequence[Sampled]) -> Json:
        """All replies at once."""

    def begin(self, index: int) -> Iterator[Json]:
        """The chunks before a reply."""

    def grow(self, index: int, choice: Choice) -> Iterator[Json]:
        """Chunks with what is new of a reply and certain."""

    def end(self, index: int, sampled: Sampled) -> Iterator[Json]:
        """The chunks that complete a reply."""

    def close(self) -> Iterator[Json]:
        """The chunks after all replies."""


class _Progress:
    """What was told so far of one reply."""

    def __init__(self) -> None:
        self.said = ""
        self.reported = 0
        self._looked_at = 0

    def is_behind(self, choice: Choice) -> bool:
        """Whether there are tokens that were not looked at yet, and now are."""
        before, self._looked_at = self._looked_at, len(choice.token_ids)
        return self._looked_at > before


class ChatTelling:
    """Writes a chat completion; a :class:`Telling`.

    Args:
        answer: How it is written.
        ends: What ends a reply.
        chat: How tokens become text.
    """

    def __init__(self, answer: ChatAnswer, ends: Ends, chat: AgentChat) -> None:
        self._answer = answer
        self._ends = ends
        self._chat = chat
        self._tools = answer.request.tool_names
        self._progress = [_Progress() for _ in range(answer.request.terms.count)]
        self._replies: list[SeenReply] = []

    def whole(self, sampled: Sequence[Sampled]) -> Json:
        """All replies at once."""
        return self._answer.whole([self._reply(one) for one in sampled])

    def begin(self, index: int) -> Iterator[Json]:
        """Say who speaks."""
        yield self._answer.first_chunk(index)

    def grow(self, index: int, choice: Choice) -> Iterator[Json]:
        """Words, as far as they are no part of a tool call or a stop string."""
        progress = self._progress[index]
        if not progress.is_behind(choice):
            return
        text = self._ends.cut(self._chat.decode(choice.token_ids))
        certain = text[: speakable(text, self._tools, self._ends.dropped)]
        if len(certain) > len(progress.said):
            yield self._answer.words(certain[len(progress.said) :], index, choice.run(progress.reported))
            progress.said, progress.reported = certain, len(choice.token_ids)

    def end(self, index: int, sampled: Sampled) -> Iterator[Json]:
        """The rest of the words, the tool calls and why it ended."""
        progress, reply = self._progress[index], self._reply(sampled)
        self._replies.append(reply)
        yield from self._answer.last_chunks(reply, progress.said, index, progress.reported)

    def close(self) -> Iterator[Json]:
        """Say how many tokens it took."""
        yield from self._answer.closing(self._replies)

    def _reply(self, sampled: Sampled) -> SeenReply:
        stem = f"call_{secrets.token_hex(8)}"
        text = said(self._chat, sampled)
        one_call = self._answer.request.one_call
        message = seen_message(text, self._ends, self._tools, call_stem=stem, one_call=one_call)
        return SeenReply(message, sampled)


class CompletionTelling:
    """Writes text completions; a :class:`Telling`.

    Args:
        answer: How they are written.
        ends: What ends a completion.
        chat: How tokens become text.
    """

    def __init__(self, answer: CompletionAnswer, ends: Ends, chat: AgentChat) -> None:
        self._answer = answer
        self._ends = ends
        self._chat = chat
        self._progress = [_Progress() for _ in range(answer.count)]
        self._sampled = 0

    def whole(self, sampled: Sequence[Sampled]) -> Json:
        """All completions at once."""
        return self._answer.whole([(self._ends.cut(said(self._chat, one)), one) for one in sampled])

    def begin(self, index: int) -> Iterator[Json]:
        """Nothing: a completion begins with its words."""
        yield from ()

    def grow(self, index: int, choice: Choice) -> Iterator[Json]:
        """Words, as far as they are no part of a stop string."""
        progress = self._progress[index]
        if not progress.is_behind(choice):
            return
        text = self._ends.cut(self._chat.decode(choice.token_ids))
        certain = text[: speakable(text, (), self._ends.dropped)]
        if len(certain) > len(progress.said):
            new, run = certain[len(progress.said) :], choice.run(progress.reported)
            yield self._answer.chunk(index, new, run, progress.reported)
            progress.said, progress.reported = certain, len(choice.token_ids)

    def end(self, index: int, sampled: Sampled) -> Iterator[Json]:
        """The rest of the words, and why it ended."""
        progress = self._progress[index]
        rest = self._ends.cut(said(self._chat, sampled)).removeprefix(progress.said)
        self._sampled += len(sampled.token_ids)
        run = sampled.run(progress.reported)
        yield self._answer.chunk(index, rest, run, progress.reported, sampled)

    def close(self) -> Iterator[Json]:
        """Say how many tokens it took."""
        yield from self._answer.closing(self._sampled)


def said(chat: AgentChat, sampled: Sampled) -> str:
    """All that a reply says, without the token that ends the turn."""
    return chat.decode(sampled.token_ids[:-1] if sampled.stopped else sampled.token_ids)


async def events(asked: Asked, telling: Telling) -> AsyncIterator[str]:
    """Replies as server-sent events, words as soon as they are certain.

    Args:
        asked: The replies, which are closed at the end.
        telling: How they are written.
    """
    try:
        pending = dict(enumerate(asked.choices))
        for index in pending:
            for chunk in telling.begin(index):
                yield server_sent(chunk)
        while pending:
            asked.grown.clear()
            for index, choice in list(pending.items()):
                complete = choice.done
                if complete:
                    del pending[index]
                chunks = telling.end(index, choice.sampled()) if complete else telling.grow(index, choice)
                for chunk in chunks:
                    yield server_sent(chunk)
            if pending:
                await asked.grown.wait()
        for chunk in telling.close():
            yield server_sent(chunk)
        yield STREAM_END
    except ApiError as fault:
        yield server_sent(fault.to_json())
    finally:
        asked.close()
