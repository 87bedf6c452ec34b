"""Responses of all dialects: whole, or as server-sent events while the replies are sampled."""

from __future__ import annotations

import abc
import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from art_trainer.serving.http.middleware import ApiError
from art_trainer.serving.openai.batch_scheduler import (
    GenerationJob,
    GenerationOutput,
    TokenRun,
)
from art_trainer.serving.openai.chat import AgentChat
from art_trainer.serving.openai.replies import split_reply, stream_safe_length
from art_trainer.serving.openai.requests import ChatMessage, FunctionCall, Generation, ToolCall

Json = dict[str, Any]
T = TypeVar("T")


# Requests in progress.


class PendingRequest:
    """The replies of one request; created in the event loop that waits for them.

    Args:
        jobs: One job for each reply.
        results: The replies, by default those of the jobs.
        stream: Whether to wake waiters at each token, not only when a reply is complete.

    Attributes:
        changed: Set at the next change, and then replaced: take it before looking at the jobs.
    """

    def __init__(
        self,
        jobs: Sequence[GenerationJob],
        results: Sequence[Awaitable[GenerationOutput]] | None = None,
        *,
        stream: bool,
    ) -> None:
        self.jobs = jobs
        self.results = [
            asyncio.ensure_future(result)
            for result in results or [asyncio.wrap_future(job.result) for job in jobs]
        ]
        self._loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        for job, result in zip(jobs, self.results, strict=True):
            result.add_done_callback(self._notify)
            if stream:
                job.on_token = self._post

    async def started_version(self) -> int:
        """Wait until sampling has started; return the version of the weights.

        Raises:
            ApiError: Sampling failed.
        """
        while True:
            changed = self.changed
            for job, result in zip(self.jobs, self.results, strict=True):
                if result.done():
                    return result.result().version
                if job.started_version is not None and job.run.token_ids:
                    return job.started_version
            await changed.wait()

    async def outputs(self) -> list[GenerationOutput]:
        """Wait for all replies; whoever stops waiting does not end the sampling.

        Raises:
            ApiError: Sampling failed.
        """
        return [await asyncio.shield(result) for result in self.results]

    def delivered(self) -> None:
        """The client has received all replies."""

    def close(self) -> None:
        """Cancel unfinished replies: the client has left, or has them all."""
        for job in self.jobs:
            job.cancelled = True

    def _post(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._notify)

    def _notify(self, result: asyncio.Future[GenerationOutput] | None = None) -> None:
        if result is not None and not result.cancelled():
            result.exception()  # reported by whoever waits, if anybody does
        self.changed.set()
        self.changed = asyncio.Event()


# Responses.


class _Progress:
    """What of a reply has been streamed: its text, and how many tokens were reported and looked at."""

    text = ""
    reported = 0
    seen = 0


class ResponseWriter(abc.ABC):
    """Writes the replies of one request as JSON; a subclass for each dialect.

    Args:
        generation: What was asked for.
        model: The model's name.
        prompts: Tokens of the prompts; the replies to the first come first.
        chat: Turns tokens into text.
        response_id: The response's id, without its prefix; by default a random one.
        created: Its time, in seconds since 1970; by default now.
    """

    id_prefix: str
    whole_object: str
    chunk_object: str

    def __init__(
        self,
        generation: Generation,
        model: str,
        prompts: Sequence[Sequence[int]],
        chat: AgentChat,
        *,
        response_id: str | None = None,
        created: int | None = None,
    ) -> None:
        self.generation = generation
        self._prompts = prompts
        self._chat = chat
        self._id = response_id or secrets.token_hex(12)
        self._head: Json = {
            "id": f"{self.id_prefix}-{self._id}",
            "created": int(time.time()) if created is None else created,
            "model": model,
        }
        self._progress = [_Progress() for _ in range(len(prompts) * generation.count)]
        self._sampled = 0

    def begin(self, version: int) -> None:
        """Name the version of the weights that sample the replies."""
        self._head["model"] += f"@{version}"

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

    def whole(self, outputs: Sequence[GenerationOutput]) -> Json:
        """All replies at once."""
        choices = []
        for index, output in enumerate(outputs):
            message = self.read(output, index)
            finish = _finish_reason(message, output)
            choice = {"index": index, **self._content(index, message), "finish_reason": finish}
            choices.append(choice | self._tokens(output.run))
            self._sampled += len(output.run.token_ids)
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": self._usage()}

    def start(self, index: int) -> Iterator[Json]:
        """Chunks before a reply."""
        yield from ()

    def delta(self, index: int, job: GenerationJob) -> Iterator[Json]:
        """A chunk with text of an unfinished reply that is new and certain."""
        progress, count = self._progress[index], len(job.run.token_ids)
        if count == progress.seen:
            return
        progress.seen = count
        tools, stops = self.generation.tools, self.generation.stops
        text = stops.cut(self._chat.decode(job.run.token_ids[:count]))
        safe = text[: stream_safe_length(text, tools, stops.dropped)]
        if len(safe) > len(progress.text):
            run = job.run.since(progress.reported)
            yield self._chunk(index, self._text(safe[len(progress.text) :]), run)
            progress.text, progress.reported = safe, progress.reported + len(run.token_ids)

    def finish(self, index: int, output: GenerationOutput) -> Iterator[Json]:
        """Chunks that complete a reply."""
        progress, message = self._progress[index], self.read(output, index)
        self._sampled += len(output.run.token_ids)
        rest, run = message.content.removeprefix(progress.text), output.run.since(progress.reported)
        yield from self._last(index, rest, message.tool_calls, run, _finish_reason(message, output))

    def usage(self) -> Iterator[Json]:
        """The chunk after all replies with the numbers of tokens, if the client asked for it."""
        if self.generation.include_usage:
            yield {**self._head, "object": self.chunk_object, "choices": [], "usage": self._usage()}

    @abc.abstractmethod
    def _content(self, index: int, message: ChatMessage) -> Json: ...

    @abc.abstractmethod
    def _text(self, text: str) -> Json: ...

    @abc.abstractmethod
    def _last(
        self, index: int, rest: str, calls: Sequence[ToolCall], run: TokenRun, finish: str
    ) -> Iterator[Json]: ...

    @abc.abstractmethod
    def _logprobs(self, run: TokenRun) -> Json: ...

    def _prompt(self, index: int) -> Json:
        """The prompt's tokens, if the client asked for them."""
        if not self.generation.return_token_ids:
            return {}
        return {"prompt_token_ids": list(self._prompts[index // self.generation.count])}

    def _usage(self) -> dict[str, int]:
        read, sampled = sum(map(len, self._prompts)), self._sampled
        return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}

    def _chunk(
        self, index: int, fields: Json, run: TokenRun | None = None, finish: str | None = None
    ) -> Json:
        choice = {"index": index, **fields, "finish_reason": finish}
        choice |= {"logprobs": None} if run is None else self._tokens(run)
        return {**self._head, "object": self.chunk_object, "choices": [choice]}

    def _tokens(self, run: TokenRun) -> Json:
        """What a choice reports of its tokens."""
        wanted = self.generation.top_logprobs is not None
        fields: Json = {"logprobs": self._logprobs(run) if wanted else None}
        if self.generation.return_token_ids:
            fields["token_ids"] = run.token_ids
        return fields


def _finish_reason(message: ChatMessage, output: GenerationOutput) -> str:
    """OpenAI's word for why a reply ended."""
    if message.tool_calls:
        return "tool_calls"
    return "length" if output.truncated else "stop"


async def respond(request: Request, pending: PendingRequest, writer: ResponseWriter) -> Response:
    """Answer with all replies, or with a stream of events once the first token is there.

    Args:
        request: The HTTP request; if its client disconnects, nobody waits any longer.
        pending: The replies; closed at the end.
        writer: Writes them.

    Raises:
        ApiError: Sampling failed.
    """
    streams, responding = writer.generation.stream, False
    try:
        # The status of a stream is decided once the first token is there.
        waits: Coroutine[Any, Any, object] = pending.started_version() if streams else pending.outputs()
        if await _unless_disconnected(request, waits) is None:
            return Response(status_code=499)
        writer.begin(await pending.started_version())
        if streams:
            responding = True
            return _EventStream(pending, writer)
        body = writer.whole(await pending.outputs())
        pending.delivered()
        return JSONResponse(body)
    finally:
        if not responding:
            pending.close()


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Await something; ``None`` if the client disconnects first."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        left.cancel()


class _EventStream(StreamingResponse):
    """Server-sent events, which proxies such as nginx do not buffer; text as soon as it is certain."""

    def __init__(self, pending: PendingRequest, writer: ResponseWriter) -> None:
        events = _events(pending, writer)
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._pending = pending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._pending.close()


async def _events(pending: PendingRequest, writer: ResponseWriter) -> AsyncIterator[str]:
    try:
        unfinished = dict(enumerate(pending.jobs))
        for index in unfinished:
            for chunk in writer.start(index):
                yield _event(chunk)
        while unfinished:
            changed = pending.changed
            for index, job in list(unfinished.items()):
                result = pending.results[index]
                done = result.done()
                for chunk in writer.finish(index, result.result()) if done else writer.delta(index, job):
                    yield _event(chunk)
                if done:
                    del unfinished[index]
            if unfinished:
                await changed.wait()
        for chunk in writer.usage():
            yield _event(chunk)
        pending.delivered()
        yield "data: [DONE]\n\n"
    except ApiError as error:
        yield _event(error.to_json())


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
