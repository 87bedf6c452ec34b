"""Responses of all dialects as JSON: whole, or in the events of a stream."""

from __future__ import annotations

import abc
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from art_trainer.serving.dialects.batch_scheduler import GenerationJob, GenerationOutput, TokenRun
from art_trainer.serving.dialects.chat import AgentChat
from art_trainer.serving.dialects.conversation import ChatMessage, FunctionCall, ToolCall
from art_trainer.serving.dialects.replies import split_reply, stream_safe_length
from art_trainer.serving.dialects.requests import DialectRequest, Generation
from art_trainer.serving.http.middleware import ApiError

Json = dict[str, Any]


class _Progress:
    """What of a reply has been streamed: its text, and how many tokens were reported and looked at."""

    begun = False
    text = ""
    reported = 0
    seen = 0


class ResponseWriter(abc.ABC):
    """Writes the replies to one request; a subclass for each dialect.

    Args:
        request: What was asked.
        generation: What it asks for.
        model: The model's name.
        prompts: Tokens of the prompts; the replies to the first come first.
        chat: Turns tokens into text.
        response_id: The response's id, without its prefix; by default a random one.
        created: Its time, in seconds since 1970; by default now.

    Attributes:
        last_line: What ends a stream after its last event.
    """

    last_line = ""

    def __init__(
        self,
        request: DialectRequest,
        generation: Generation,
        model: str,
        prompts: Sequence[Sequence[int]],
        chat: AgentChat,
        *,
        response_id: str | None = None,
        created: int | None = None,
    ) -> None:
        self.request = request
        self.generation = generation
        self._model = model
        self._prompts = prompts
        self._chat = chat
        self._id = response_id or secrets.token_hex(12)
        self._created = int(time.time()) if created is None else created
        self._progress = [_Progress() for _ in range(len(prompts) * generation.count)]

    def begin(self, version: int) -> None:
        """Name the version of the weights that sample the replies."""
        self._model += f"@{version}"

    def read(self, output: GenerationOutput, index: int = 0) -> ChatMessage:
        """Turn a reply's tokens into a message: text up to the stop string, and tool calls."""
        text, written = split_reply(
            self.generation.stops.cut(self._chat.decode(output.text_ids)), self.generation.tools
        )
        calls = [
            ToolCall(
                id=f"call_{self._id}_{index}_{place}", function=FunctionCall(name=name, arguments=arguments)
            )
            for place, (name, arguments) in enumerate(written[: self.generation.most_calls])
        ]
        return ChatMessage(role="assistant", content=text, tool_calls=calls)

    @abc.abstractmethod
    def whole(self, outputs: Sequence[GenerationOutput]) -> Json:
        """All replies at once."""

    @abc.abstractmethod
    def start(self, index: int) -> Iterator[Json]:
        """Events before a reply."""

    @abc.abstractmethod
    def delta(self, index: int, job: GenerationJob) -> Iterator[Json]:
        """Events with text of an unfinished reply that is new and certain."""

    @abc.abstractmethod
    def finish(self, index: int, output: GenerationOutput) -> Iterator[Json]:
        """Events that complete a reply."""

    def end(self) -> Iterator[Json]:
        """Events after all replies."""
        yield from ()

    def failure(self, error: ApiError) -> Json:
        """The event that ends a stream if sampling fails."""
        return error.to_json()

    def _advance(self, index: int, job: GenerationJob) -> tuple[str, TokenRun] | None:
        """Text of an unfinished reply that is new and certain, and its tokens; ``None`` if there is none."""
        progress, count = self._progress[index], len(job.run.token_ids)
        if count == progress.seen or not self._chat.decodes_in_order:
            return None
        progress.seen = count
        tools, stops = self.generation.tools, self.generation.stops
        text = stops.cut(self._chat.decode(job.run.token_ids[:count]))
        safe = text[: stream_safe_length(text, tools, stops.dropped)]
        if len(safe) <= len(progress.text):
            return None
        new, run = safe[len(progress.text) :], job.run.since(progress.reported)
        progress.text, progress.reported = safe, progress.reported + len(run.token_ids)
        return new, run


class BlockWriter(ResponseWriter):
    """Writes one reply as blocks: its text, unless that is empty and there are calls, then its calls."""

    _has_text = False

    def whole(self, outputs: Sequence[GenerationOutput]) -> Json:
        """The whole response."""
        (output,) = outputs
        return self._response(self.read(output), output)

    def start(self, index: int) -> Iterator[Json]:
        """Events that announce the response."""
        yield from self._announce()

    def delta(self, index: int, job: GenerationJob) -> Iterator[Json]:
        """Events with new text."""
        grown = self._advance(index, job)
        if grown is not None:
            yield from self._write(grown[0])

    def finish(self, index: int, output: GenerationOutput) -> Iterator[Json]:
        """Events with the rest of the text, the calls, and the response's end."""
        message = self.read(output)
        rest = message.content.removeprefix(self._progress[index].text)
        if rest or not (self._has_text or message.tool_calls):
            yield from self._write(rest)
        if self._has_text:
            yield from self._close_text(message)
        for place, call in enumerate(message.tool_calls, start=int(self._has_text)):
            yield from self._call(place, call)
        yield from self._close(message, output)

    def _write(self, text: str) -> Iterator[Json]:
        if not self._has_text:
            self._has_text = True
            yield from self._open_text()
        if text:
            yield self._text(text)

    @abc.abstractmethod
    def _response(self, message: ChatMessage, output: GenerationOutput) -> Json: ...

    @abc.abstractmethod
    def _announce(self) -> Iterator[Json]: ...

    @abc.abstractmethod
    def _open_text(self) -> Iterator[Json]: ...

    @abc.abstractmethod
    def _text(self, text: str) -> Json: ...

    @abc.abstractmethod
    def _close_text(self, message: ChatMessage) -> Iterator[Json]: ...

    @abc.abstractmethod
    def _call(self, place: int, call: ToolCall) -> Iterator[Json]: ...

    @abc.abstractmethod
    def _close(self, message: ChatMessage, output: GenerationOutput) -> Iterator[Json]: ...
